"""Detection by content, and rows that cannot be used."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvflow.errors import TraceError
from kvflow.trace import FORMATS, BadRow, import_trace, open_trace

REQUEST = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
ROWS: dict[str, dict[str, Any]] = {
    "sessions": {"messages": [], "llm_calls": []},
    "dialogue": {"messages": [], "llm_calls": [{"th": "agent"}]},
    "prompts": {"calls": [{"suffix": "x", "output": "y"}]},
    "group-chat": {"steps": [{"agent": "a", "content": "x"}]},
    "metagpt": {"steps": [{"agent": "a", "content": "x", "fn": "f"}]},
    "chatdev": {"steps": [{"agent": "a", "content": "x", "kind": "message"}]},
    "marble": {"iterations": [{"task_results": []}]},
    "bfcl": {"turns": [], "involved_classes": []},
    "weka": {"requests": [{"h": [0]}]},
    "hashes": REQUEST,
    "recording": {"fact": "step_start", "workflow": "w", "at_s": 1.0},
}


def test_every_format_has_an_example_here() -> None:
    assert set(ROWS) == set(FORMATS)


@pytest.mark.parametrize("format", ROWS)
def test_a_row_says_its_format_and_no_other(format: str) -> None:
    fits = [name for name, importer in FORMATS.items() if importer.fits(ROWS[format])]
    assert fits[0] == format
    assert fits in ([format], ["dialogue", "sessions"])


@pytest.mark.parametrize("format", ROWS)
def test_odd_rows_are_refused_and_do_not_break_detection(format: str) -> None:
    for key in ROWS[format]:
        for odd in (None, 3, "x", [], [None], [3], {}):
            FORMATS[format].fits({**ROWS[format], key: odd})


@pytest.mark.parametrize("th", [[], {}, ["agent"]])
def test_threads_that_are_no_names_do_not_break_detection(th: object) -> None:
    assert not FORMATS["dialogue"].fits({"messages": [], "llm_calls": [{"th": th}]})


def test_sources_are_named_whatever_stands_in_them(imported: Any) -> None:
    assert imported(json.dumps(REQUEST)[:-1] + ', "source": "a\\ud800b"}').header.source == "a?b"


def test_a_prompt_of_billions_of_tokens_is_a_mistake(imported: Any) -> None:
    found = imported(REQUEST, REQUEST | {"input_length": 10**12})
    assert [each.line for each in found.bad] == [2]


def test_broken_rows_before_the_first_good_one_do_not_matter(imported: Any) -> None:
    found = imported("{broken", "[1]", "null", json.dumps(REQUEST))
    assert len(found.programs) == 1
    assert [each.line for each in found.bad] == [1, 2, 3]


@pytest.mark.parametrize("zipped", [True, False])
def test_names_of_files_do_not_matter(imported: Any, zipped: bool) -> None:
    for name in ("traces.jsonl.gz", "sessions.jsonl", "x"):
        assert len(imported(REQUEST, name=name, zipped=zipped).programs) == 1


def test_what_no_importer_knows_is_refused_with_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text('{"question": "?", "answer": "!"}\n')
    with pytest.raises(TraceError, match=r"no known format .*sessions.*its rows have: question, answer"):
        open_trace(path, pytest.fail)
    path.write_text("hello\n")
    with pytest.raises(TraceError, match="no JSON objects"):
        open_trace(path, pytest.fail)


def test_a_format_can_be_demanded(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(json.dumps(REQUEST))
    with pytest.raises(TraceError, match=r"no format 'csv'; there are: .*weka"):
        import_trace(path, "csv")
    bad: list[BadRow] = []
    _, events = import_trace(path, "weka", bad.append)
    assert list(events) == []
    assert len(bad) == 1
    assert list(import_trace(path)[1])


@pytest.mark.parametrize(("count", "long", "least"), [(2000, 1, 100), (20, 2000, 5)])
def test_a_file_that_breaks_off_keeps_what_came_before(tmp_path: Path, count: int, long: int, least: int) -> None:
    path = tmp_path / "x.gz"
    row = REQUEST | {"input_length": 512 * long + 88}
    rows = [json.dumps({**row, "hash_ids": [n + k * 7919 for k in range(long + 1)]}) for n in range(count)]
    path.write_bytes(gzip.compress("\n".join(rows).encode())[:-500])
    bad: list[BadRow] = []
    _, events = open_trace(path, bad.append)
    assert len(list(events)) > least
    assert len(bad) == 1
    assert "cannot be read beyond line" in bad[0].problem


def test_rows_are_read_as_events_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(json.dumps(REQUEST) + "\n" + "{broken\n" * 50)
    bad: list[BadRow] = []
    _, events = open_trace(path, bad.append)
    next(events)
    next(events)
    assert bad == []
    list(events)
    assert len(bad) == 50
