"""Decoding envelopes: what is understood, what is ignored, what is refused and how."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvflow.errors import HintDecodeError
from kvflow.hints import (
    AgentTarget,
    Fact,
    FeedbackFact,
    Status,
    StepFact,
    ToolFact,
    command_action,
    decode_envelope,
    envelope,
    feedback_action,
    step_action,
    tool_action,
)

names = st.text(min_size=1, max_size=40)
steps = st.builds(
    StepFact,
    workflow_id=names,
    agent=names,
    workflow_type=names,
    step_id=st.none() | names,
    event=st.sampled_from(["start", "end"]),
    parent_workflow_id=st.none() | names,
    fixed_prompt_tokens=st.none() | st.integers(0, 10_000),
    tools=st.lists(names, max_size=3),
    final=st.booleans(),
)
tools = st.builds(
    ToolFact,
    workflow_id=names,
    agent=names,
    tool=names,
    event=st.sampled_from(["start", "end"]),
    step_id=st.none() | names,
    expected_s=st.none() | st.floats(0.001, 1000),
)


feedback = st.builds(FeedbackFact, workflow_id=names, outcome=st.floats(0, 1))
BUILDERS = {StepFact: step_action, ToolFact: tool_action, FeedbackFact: feedback_action}


@given(st.lists(steps | tools | feedback, max_size=5))
def test_what_is_built_is_what_is_decoded_after_a_trip_over_the_wire(facts: list[Fact]) -> None:
    actions = [BUILDERS[type(fact)](**fact.model_dump()) for fact in facts]
    decoded = decode_envelope(json.loads(json.dumps(envelope(actions))))
    assert [item.fact for item in decoded.facts] == facts
    assert decoded.outcomes == ()


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=12), children, max_size=4),
    max_leaves=20,
)


@given(junk | st.fixed_dictionaries({"protocol_version": junk, "message_id": junk, "actions": junk}))
def test_junk_is_refused_with_our_error_or_understood(value: Any) -> None:
    with contextlib.suppress(HintDecodeError):
        decode_envelope(value)


def with_payload(payload: dict[str, Any], action_type: str = "kvflow.step") -> dict[str, Any]:
    action = {"action_id": "1", "action_type": action_type, "action_version": "1", "payload": payload}
    return envelope([action])


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"agent": "a"}, "actions.0.payload.workflow_id"),
        ({"workflow_id": "w", "agent": ""}, "actions.0.payload.agent"),
        ({"workflow_id": "w", "agent": "a", "colour": "red"}, "actions.0.payload.colour"),
        ({"workflow_id": "w", "agent": "a", "fixed_prompt_tokens": -1}, "actions.0.payload.fixed_prompt_tokens"),
        ({"workflow_id": "w", "agent": "a", "fixed_prompt_tokens": "9"}, "actions.0.payload.fixed_prompt_tokens"),
        ({"workflow_id": "w" * 300, "agent": "a"}, "actions.0.payload.workflow_id"),
    ],
)
def test_a_malformed_payload_names_its_field(payload: dict[str, Any], field: str) -> None:
    with pytest.raises(HintDecodeError) as caught:
        decode_envelope(with_payload(payload))
    assert caught.value.field == field


def test_foreign_actions_are_unsupported_and_never_an_error() -> None:
    decoded = decode_envelope(with_payload({"anything": [1, 2]}, action_type="dynamo.prefetch"))
    assert decoded.facts == ()
    assert [outcome.status for outcome in decoded.outcomes] == [Status.UNSUPPORTED]


def test_a_later_version_of_our_action_is_unsupported() -> None:
    value = with_payload({"future": True})
    value["actions"][0]["action_version"] = "2.0"
    assert decode_envelope(value).outcomes[0].status is Status.UNSUPPORTED


@pytest.mark.parametrize("action_type", ["kvflow.step", "kvflow.segments", "kv.pin"])
def test_of_a_later_minor_version_the_fields_count_that_are_known(action_type: str) -> None:
    payload: dict[str, Any] = {
        "kvflow.step": {"workflow_id": "w", "agent": "a"},
        "kvflow.segments": {"ranges": [{"message": 0, "start": 5, "end": 50, "future": 2}]},
        "kv.pin": {"target": {"kind": "workflow", "workflow_id": "w", "future": {"a": 1}}},
    }[action_type]
    value = with_payload(payload | {"future": [1]}, action_type)
    value["actions"][0]["action_version"] = "1.4"
    decoded = decode_envelope(value)
    assert len(decoded.facts) + len(decoded.commands) + (decoded.segments is not None) == 1
    assert decoded.outcomes == ()


def test_of_a_later_minor_version_a_field_that_is_known_has_to_be_right() -> None:
    value = with_payload({"workflow_id": "w", "agent": 7, "future": 1})
    value["actions"][0]["action_version"] = "1.4"
    with pytest.raises(HintDecodeError, match=r"payload\.agent"):
        decode_envelope(value)


def test_version_one_and_one_point_nought_are_the_same() -> None:
    value = with_payload({"workflow_id": "w", "agent": "a", "future": 1})
    value["actions"][0]["action_version"] = "1.0"
    with pytest.raises(HintDecodeError, match=r"payload\.future"):
        decode_envelope(value)


def test_too_large_a_payload_is_refused() -> None:
    with pytest.raises(HintDecodeError, match="at most 65536") as caught:
        decode_envelope(with_payload({"workflow_id": "w", "agent": "a", "tools": ["y" * 100] * 700}))
    assert caught.value.field == "actions.0.payload"


def test_too_many_of_our_actions_are_refused() -> None:
    value = with_payload({"workflow_id": "w", "agent": "a"})
    value["actions"] *= 65
    with pytest.raises(HintDecodeError, match="at most 64"):
        decode_envelope(value)


def test_what_others_write_passes_whatever_its_size_and_keys_but_not_without_end() -> None:
    value = with_payload({"x": "y" * 70_000}, action_type="other") | {"trace_id": "t", "protocol_version": "9"}
    value["actions"] = [action | {"lane": 3} for action in value["actions"] * 256]
    assert len(decode_envelope(value).outcomes) == 256
    value["actions"] += value["actions"][:1]
    with pytest.raises(HintDecodeError, match="actions: are 257; at most 256"):
        decode_envelope(value)


@pytest.mark.parametrize("field", ["action_id", "action_type", "action_version"])
@pytest.mark.parametrize("value", ["\ud800", "x" * 257])
def test_what_is_said_again_in_answers_is_short_and_can_be_written(field: str, value: str) -> None:
    sent = with_payload({"workflow_id": "w", "agent": "a"})
    sent["actions"][0][field] = value
    with pytest.raises(HintDecodeError) as caught:
        decode_envelope(sent)
    assert caught.value.field == f"actions.0.{field}"
    assert len(str(caught.value).encode()) < 200


def test_the_words_of_others_may_be_empty() -> None:
    sent = with_payload({}, action_type="")
    sent["actions"][0] |= {"action_id": "", "action_version": ""}
    assert [outcome.status for outcome in decode_envelope(sent).outcomes] == [Status.UNSUPPORTED]


def test_commands_are_told_from_facts() -> None:
    target = {"kind": "agent", "workflow_id": "w", "agent": "a"}
    sent = envelope([step_action(workflow_id="w", agent="a"), command_action("kv.pin", target=target, ttl_s=5)])
    decoded = decode_envelope(json.loads(json.dumps(sent)))
    assert [item.action_type for item in decoded.facts] == ["kvflow.step"]
    (item,) = decoded.commands
    assert (item.verb, item.command.ttl_s, item.command.target) == ("kv.pin", 5, AgentTarget(**target))
    assert decoded.outcomes == ()


@pytest.mark.parametrize(
    "payload", [{}, {"target": {"kind": "everything"}}, {"pages": [1, 2]}, {"target": {"kind": "prompt"}, "ttl_s": -1}]
)
def test_a_command_in_a_shape_that_is_not_ours_is_somebody_elses(payload: dict[str, Any]) -> None:
    decoded = decode_envelope(with_payload(payload, action_type="kv.pin"))
    assert decoded.commands == ()
    (outcome,) = decoded.outcomes
    assert outcome.status is Status.UNSUPPORTED
    assert "payload" in outcome.reason


def test_a_verb_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match=r"kv\.pin"):
        command_action("kv.explode", target={"kind": "prompt"})
