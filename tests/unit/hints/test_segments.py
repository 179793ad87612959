"""What a request says about texts that stand in other prompts too."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kvflow.errors import HintDecodeError
from kvflow.hints import SegmentRange, Segments, Status, decode_envelope, envelope, segments_action, step_action
from kvflow.hints.segments import ReuseMode

FORMS: dict[str, dict[str, Any]] = {
    "tokens": {"start_tokens": 0, "end_tokens": 1},
    "a whole message": {"message": 0},
    "characters of a message": {"message": 10_000, "start": 5, "end": 2**31},
    "characters of a text": {"start": 0, "end": 7},
    "a name": {"name": "document", "start_tokens": 3, "end_tokens": 9},
}


@pytest.mark.parametrize("fields", FORMS.values(), ids=FORMS)
def test_there_are_these_ways_to_say_where(fields: dict[str, Any]) -> None:
    assert SegmentRange(**fields).model_dump(exclude_none=True) == fields


WRONG: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a name alone": {"name": "document"},
    "tokens and characters": {"start_tokens": 0, "end_tokens": 1, "start": 0, "end": 1},
    "tokens and a message": {"start_tokens": 0, "end_tokens": 1, "message": 0},
    "a mixture": {"start_tokens": 0, "end": 1},
    "where tokens begin": {"start_tokens": 0},
    "where tokens end": {"end_tokens": 9},
    "where characters begin": {"start": 0},
    "where they end in a message": {"message": 0, "end": 9},
    "no tokens": {"start_tokens": 4, "end_tokens": 4},
    "no characters": {"message": 0, "start": 4, "end": 4},
    "backwards": {"start": 5, "end": 4},
    "a negative number": {"start_tokens": -1, "end_tokens": 4},
    "a message before the first": {"message": -1},
    "a message too many": {"message": 10_001},
    "too far away": {"start": 0, "end": 2**31 + 1},
    "a fraction": {"start": 0, "end": 2.0},
    "text for a number": {"start": "0", "end": "2"},
    "an empty name": {"name": "", "message": 0},
    "a long name": {"name": "n" * 129, "message": 0},
    "what nobody knows": {"message": 0, "colour": "red"},
}


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
def test_all_else_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SegmentRange(**fields)


places = st.integers(0, 100) | st.none()


@settings(max_examples=200)
@given(st.none() | st.integers(0, 3), places, places, places, places)
def test_a_range_has_one_form_and_is_not_empty(
    message: int | None, start: int | None, end: int | None, first: int | None, last: int | None
) -> None:
    characters = start is not None and end is not None and start < end
    no_characters = start is None and end is None
    tokens = first is not None and last is not None and first < last
    no_tokens = first is None and last is None
    valid = (tokens and no_characters and message is None) or (
        no_tokens and (characters or (message is not None and no_characters))
    )
    try:
        SegmentRange(message=message, start=start, end=end, start_tokens=first, end_tokens=last)
    except ValidationError:
        assert not valid
    else:
        assert valid


@pytest.mark.parametrize("mode", [None, *get_args(ReuseMode)])
def test_every_mode_can_be_asked_for(mode: Any) -> None:
    assert Segments(mode=mode).mode == mode


@pytest.mark.parametrize(
    "fields",
    [{"mode": "magic"}, {"mode": ""}, {"messages": 1}, {"messages": "yes"}, {"ranges": None}, {"everything": True}],
)
def test_what_else_is_asked_for_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Segments(**fields)


def test_there_are_at_most_256_ranges() -> None:
    assert len(Segments(ranges=[SegmentRange(message=0)] * 256).ranges) == 256
    with pytest.raises(ValidationError):
        Segments(ranges=[SegmentRange(message=0)] * 257)


def sent(*payloads: dict[str, Any], version: str = "1") -> dict[str, Any]:
    actions = [
        {"action_id": str(index), "action_type": "kvflow.segments", "action_version": version, "payload": payload}
        for index, payload in enumerate(payloads)
    ]
    return json.loads(json.dumps(envelope(actions)))


def test_what_is_built_is_what_is_decoded() -> None:
    ranges = [SegmentRange(name="document", message=1, start=3, end=80), SegmentRange(start_tokens=1, end_tokens=99)]
    built = segments_action(ranges=ranges, messages=True, mode="kvcomm+repair")
    decoded = decode_envelope(json.loads(json.dumps(envelope([step_action(workflow_id="w", agent="a"), built]))))
    assert decoded.segments is not None
    assert decoded.segments.action_id == built["action_id"]
    assert decoded.segments.segments == Segments(ranges=ranges, messages=True, mode="kvcomm+repair")
    assert len(decoded.facts) == 1
    assert decoded.outcomes == ()


def test_what_is_not_said_is_not_sent() -> None:
    assert segments_action()["payload"] == {}
    built = segments_action(ranges=[SegmentRange(message=0)], messages=False)
    assert built["payload"] == {"ranges": [{"message": 0}]}


def test_asking_for_nothing_is_allowed() -> None:
    decoded = decode_envelope(sent({}))
    assert decoded.segments is not None
    assert decoded.segments.segments == Segments(ranges=[], messages=False, mode=None)


def test_who_does_not_ask_gets_none() -> None:
    assert decode_envelope(envelope([step_action(workflow_id="w", agent="a")])).segments is None


def test_the_last_one_counts() -> None:
    decoded = decode_envelope(sent({"messages": True, "mode": "rotate"}, {"mode": "kvcomm"}))
    assert decoded.segments is not None
    assert decoded.segments.action_id == "1"
    assert decoded.segments.segments == Segments(mode="kvcomm")
    assert decoded.outcomes == ()


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"mode": "magic"}, "mode"),
        ({"messages": 1}, "messages"),
        ({"ranges": {}}, "ranges"),
        ({"ranges": [{"message": 0}] * 257}, "ranges"),
        ({"ranges": [{"message": 0}, {"message": "1"}]}, "ranges.1.message"),
        ({"ranges": [{"message": 0}, {}]}, "ranges.1"),
        ({"ranges": [{"start": 0, "end": 0}]}, "ranges.0"),
        ({"ranges": [{"message": 0, "name": ""}]}, "ranges.0.name"),
        ({"ranges": [{"message": 0, "length": 3}]}, "ranges.0.length"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_malformed_payload_names_its_field(payload: dict[str, Any], field: str) -> None:
    with pytest.raises(HintDecodeError) as caught:
        decode_envelope(sent({}, payload))
    assert caught.value.field == f"actions.1.payload.{field}"


def test_one_that_is_malformed_is_not_made_good_by_a_later_one() -> None:
    with pytest.raises(HintDecodeError):
        decode_envelope(sent({"mode": "magic"}, {"mode": "rotate"}))


def test_too_large_a_payload_is_refused() -> None:
    with pytest.raises(HintDecodeError, match="at most 65536") as caught:
        decode_envelope(sent({"ranges": [{"message": 0, "name": "n" * 70_000}]}))
    assert caught.value.field == "actions.0.payload"


def test_a_later_version_is_unsupported() -> None:
    decoded = decode_envelope(sent({"future": True}, version="2"))
    assert decoded.segments is None
    assert [outcome.status for outcome in decoded.outcomes] == [Status.UNSUPPORTED]
