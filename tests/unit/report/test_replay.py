"""The report of a replay: tables, one HTML file, and calm about what is missing or hostile."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvflow.report import replay_tables, write_replay_html
from kvflow.report.replay_record import ReplayRecord
from kvflow.report.replay_rows import cautions, headline
from tests.unit.report.reading import HOSTILE, Page, printed

ARMS = {"lru": 1.0, "lpm": 1.2, "kvflow": 0.5}


def against(ratio: float, half: float) -> dict[str, Any]:
    return {
        "ratio": ratio,
        "ratio_low": ratio - half,
        "ratio_high": ratio + half,
        "worst_ratio": ratio + 0.3,
        "pairs": 48,
        "distinct": abs(ratio - 1) > half,
    }


def arm_of(name: str, ratio: float) -> dict[str, Any]:
    call = {
        "what": "call", "name": "coder", "thread": "main", "start_s": 0.0, "run_s": 0.5, "first_s": 1.0, "end_s": 2.0,
        "prompt_tokens": 900, "device_tokens": 600, "host_tokens": 200, "recomputed_tokens": 50, "output_tokens": 30,
    }  # fmt: skip
    tool = {"what": "tool", "name": "bash", "thread": "tester", "start_s": 2.0, "end_s": 6.0 * ratio + 2}
    return {
        "name": name,
        "hints": name == "kvflow",
        "measures": {
            "completion_mean_s": 100 * ratio, "completion_p95_s": 180 * ratio, "latency_p50_s": 2.0,
            "ttft_mean_s": 1.5 * ratio, "recomputed_tokens": 123_456 * ratio, "loaded_tokens": 5_000.0,
            "failed_calls": 0, "late_p99_s": 0.01, "queued_s": 10.0, "prefilled_s": 30 * ratio, "decoded_s": 20.0,
        },
        "against_first": {} if name == "lru" else {"completion_s": against(ratio, 0.1), "ttft_s": against(ratio, 0.3)},
        "timeline": {
            "workflow": "w7", "start_s": 1.0, "end_s": 9.0 * ratio + 1, "events": [call, tool], "left_out": 3,
        },
        "errors": [],
    }  # fmt: skip


def make_document(loads: tuple[int, ...] = (24,)) -> dict[str, Any]:
    return {
        "kind": "replay",
        "created": "2026-11-20T17:00:00Z",
        "command": "kvflow replay sessions.jsonl.gz",
        "git": {"commit": "4f2c91ab", "dirty": False},
        "machine": {"cpu": "AMD EPYC", "cores": 2, "memory_gib": 24.0},
        "versions": {"kvflow": "0.1.0", "sglang": "0.5.23"},
        "settings": {"rounds": 8, "seed": 0},
        "traces": [{"name": "sessions.jsonl.gz", "source": "mini-swe-agent"}],
        "seams_hold": True,
        "loads": [
            {
                "at_once": at_once,
                "per_min": None,
                "programs": 24,
                "rounds": 8,
                "calls": 1900,
                "live_tokens": 29_000,
                "identical_tokens": True,
                "arms": [arm_of(name, ratio) for name, ratio in ARMS.items()],
            }
            for at_once in loads
        ],
    }


@pytest.fixture
def document() -> dict[str, Any]:
    return make_document()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    def written(document: dict[str, Any]) -> str:
        write_replay_html(document, tmp_path / "replay.html")
        return (tmp_path / "replay.html").read_text(encoding="utf-8")

    return written


def told(document: dict[str, Any]) -> str:
    return " ".join(cautions(ReplayRecord.read(document)))


def test_one_load_gets_a_table_of_everything(document: dict[str, Any]) -> None:
    text = printed(replay_tables(document))
    for words in ("24 programs, 24 at once", "workflow completion mean", "0.50 [0.40, 0.60]", "15,432", "0.80"):
        assert words in text
    assert "stalled" not in text, "nobody measured it"
    assert "Caution" not in text


def test_several_loads_get_a_line_per_arm() -> None:
    text = printed(replay_tables(make_document((8, 24))))
    assert text.count("kvflow") == 2
    assert "24 programs, 8 at once" in text


def test_the_headline_words_losses_like_gains(document: dict[str, Any]) -> None:
    assert headline(ReplayRecord.read(document)).endswith("0.50x [0.40, 0.60] as long as with lru: faster")
    found = document["loads"][0]["arms"][-1]["against_first"]
    found["completion_s"] = against(1.4, 0.1)
    assert headline(ReplayRecord.read(document)).endswith(
        "1.40x [1.30, 1.50] as long as with lru: slower, which is worse"
    )
    found["completion_s"] = against(1.05, 0.1)
    assert "equally long, as far as can be told: 1.05x" in headline(ReplayRecord.read(document))
    del found["completion_s"]
    assert "no workflow in common" in headline(ReplayRecord.read(document))


def test_what_makes_numbers_doubtful_is_said_first(document: dict[str, Any]) -> None:
    assert told(document) == ""
    load = document["loads"][0]
    load["identical_tokens"] = document["seams_hold"] = False
    load["rounds"] = 2
    assert "two rounds only, so little is known" in told(document)
    load["rounds"] = 1
    load["arms"][1]["measures"]["failed_calls"] = 4
    load["arms"][1]["errors"] = ["status 503"]
    load["arms"][2]["measures"]["late_p99_s"] = 0.6
    load["arms"][2]["degraded"] = {"admission": 8}
    load["arms"][1]["against_first"]["completion_s"]["pairs"] = 4
    for words in ("seam did not hold", "did not get the same answers", "lpm: 4", "status 503", "late by up to 0.60 s",
                  "admission: 8", "one round only", "intervals are of 4 programs"):  # fmt: skip
        assert words in told(document)


def test_a_difference_that_too_few_rounds_tell_is_not_called_none(document: dict[str, Any]) -> None:
    document["loads"][0]["arms"][-1]["against_first"]["completion_s"] |= {"distinct": False, "tells": False}
    assert headline(ReplayRecord.read(document)) == (
        "kvflow took 0.50x [0.40, 0.60] as long as lru, in too few rounds or programs to tell"
    )


def test_the_headline_is_of_the_largest_load_that_compares_something() -> None:
    document = make_document((8, 24))
    document["broken_off"] = True
    del document["loads"][1]["arms"][1:]
    assert headline(ReplayRecord.read(document)).endswith("as long as with lru: faster")


def test_workflows_that_are_left_out_are_counted(document: dict[str, Any], write: Callable[..., str]) -> None:
    measures = document["loads"][0]["arms"][2]["measures"]
    measures |= {"failed_calls": 6, "workflows": 24, "whole_workflows": 18}
    assert "workflows without one (kvflow: 18 of 24)" in told(document)
    assert "Of kvflow without workflows of which a call failed." in Page(write(document)).text


def test_rounds_that_were_not_played_in_turns_are_told_of(document: dict[str, Any]) -> None:
    load = document["loads"][0]
    load["kept"] = [f"{name}, round 0" for name in ARMS]
    assert told(document) == "", "all of that round was played together"
    load["kept"].append("lru, round 1")
    assert "an earlier run played lru, round 1, not in turns" in told(document)


def test_memory_is_told_of_every_load(write: Callable[..., str]) -> None:
    document = make_document((8, 24))
    for load, tokens in zip(document["loads"], (4_000, 16_720), strict=True):
        load["sizes"] = {"device_tokens": tokens, "host_tokens": 2 * tokens, "page_tokens": 16}
    for shown in (printed(replay_tables(document)), Page(write(document)).text):
        text = " ".join(shown.split())
        assert "room for 4,000 tokens on the device and 8,000 tokens on the host" in text
        assert "room for 16,720 tokens on the device" in text


def test_waits_that_nobody_told_are_in_the_time_to_the_first_token(
    document: dict[str, Any], write: Callable[..., str]
) -> None:
    assert "waiting to be run" in Page(write(document)).text
    for arm in document["loads"][0]["arms"]:
        del arm["measures"]["queued_s"]
    page = Page(write(document)).text
    assert "waiting to be run" not in page
    assert "until the first token: waiting, loading and computing" in page


def test_more_arms_than_colours_are_told_apart_by_dashes(write: Callable[..., str]) -> None:
    document = make_document((8, 24))
    for load in document["loads"]:
        load["arms"] = [arm_of(f"arm {number}", 1.0) for number in range(8)]
    assert "branch arm-0" in write(document)
    assert "branch arm-0" not in write(make_document((8, 24)))


def test_an_arm_that_has_finished_nothing_is_not_drawn_as_the_fastest(
    document: dict[str, Any], write: Callable[..., str]
) -> None:
    arms = document["loads"][0]["arms"]
    arms[1]["measures"] = {"failed_calls": 1900}
    page = Page(write(document))
    assert page.text.count("No data of lpm: no workflow ran without a failed call.") == 2
    for arm in arms:
        arm["measures"] = {"failed_calls": 1900}
        arm["timeline"] = None
    nothing = Page(write(document))
    assert nothing.text.count("No data of lru, lpm, kvflow") == 2
    assert nothing.tags["svg"] == 0


def test_the_page_draws_loads_times_and_a_workflow(document: dict[str, Any], write: Callable[..., str]) -> None:
    page = Page(write(document))
    assert page.tags["svg"] == 2 + len(ARMS), "completion, where time went, and one workflow of each arm"
    assert "w7: done after" in page.text
    assert "the last 3 calls and tools are left out" in page.text
    lines = Page(write(make_document((8, 16, 24))))
    assert lines.tags["svg"] == 1 + 3 + len(ARMS), "one line over all loads"


def test_everything_a_result_names_is_escaped(document: dict[str, Any], write: Callable[..., str]) -> None:
    load = document["loads"][0]
    load["identical_tokens"] = False
    for arm in load["arms"]:
        arm |= {"name": HOSTILE, "errors": [HOSTILE]}
        arm["measures"]["failed_calls"] = 1
        arm["timeline"]["workflow"] = HOSTILE
        for event in arm["timeline"]["events"]:
            event |= {"name": HOSTILE, "thread": HOSTILE}
    document |= {"command": HOSTILE, "created": HOSTILE, "settings": {HOSTILE: HOSTILE}, "git": {"commit": HOSTILE}}
    document["traces"][0] = {"name": HOSTILE, "source": HOSTILE}
    page = Page(write(document))
    assert not {"script", "img"} & page.tags.keys()
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    printed(replay_tables(document))


def test_nothing_at_all_is_a_page_of_notes(write: Callable[..., str]) -> None:
    page = Page(write({}))
    assert "svg" not in page.tags
    assert "no data" in page.text
    assert printed(replay_tables({})) == ""


@pytest.mark.parametrize("field", list(make_document()))
def test_any_field_may_be_missing_or_null(field: str, document: dict[str, Any], write: Callable[..., str]) -> None:
    Page(write({key: value for key, value in document.items() if key != field}))
    Page(write(document | {field: None}))
    printed(replay_tables(document | {field: None}))


@pytest.mark.parametrize("field", ["measures", "against_first", "timeline", "errors", "hints", "name"])
def test_any_field_of_an_arm_may_be_missing(field: str, document: dict[str, Any], write: Callable[..., str]) -> None:
    twin = copy.deepcopy(document)
    for arm in twin["loads"][0]["arms"][1:]:
        del arm[field]
    Page(write(twin))
    printed(replay_tables(twin))
    for arm in document["loads"][0]["arms"]:
        arm[field] = None
        arm["measures"] = {"completion_mean_s": None, "ttft_mean_s": float("nan")}
    Page(write(document))
    printed(replay_tables(document))


def test_the_document_survives_json_and_wrong_types_are_refused(document: dict[str, Any]) -> None:
    assert ReplayRecord.read(json.loads(json.dumps(document))) == ReplayRecord.read(document)
    document["loads"][0]["programs"] = "many"
    with pytest.raises(ValueError, match="programs"):
        ReplayRecord.read(document)
