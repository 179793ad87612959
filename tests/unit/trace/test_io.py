"""Files: what is written is what is read, and what is broken is told."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kvflow.errors import TraceError
from kvflow.trace import (
    BadRow,
    Event,
    Join,
    LLMCall,
    Piece,
    Prompt,
    Spawn,
    Supersede,
    ToolEnd,
    ToolStart,
    TraceHeader,
    WorkflowEnd,
    WorkflowStart,
    open_trace,
    read_header,
    read_trace,
    write_trace,
)

EVENTS: list[Event] = [
    WorkflowStart(workflow="w", t=0.5, type="demo", group="g"),
    LLMCall(
        workflow="w",
        agent="a",
        call="c1",
        prompt=Prompt(add=(Piece("x", 3), Piece("y", 2, 64))),
        output="o",
        output_tokens=4,
        fixed_tokens=3,
    ),
    ToolStart(workflow="w", agent="a", tool_call="t", tool="bash", verb="ls"),
    ToolEnd(workflow="w", tool_call="t", seconds=0.25, error=True),
    Spawn(workflow="w", child="side"),
    LLMCall(
        workflow="w",
        thread="side",
        agent="b",
        call="c2",
        prompt=Prompt(base="c1", keep_tokens=9, add=(Piece("z", 1),)),
        output="p",
        output_tokens=0,
    ),
    Join(workflow="w", child="side"),
    Supersede(workflow="w", call="c1", keep_tokens=3),
    WorkflowEnd(workflow="w", t=9.0),
]
HEADER = TraceHeader(source="here", token_counts="mixed", notes="none")


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert write_trace(path, HEADER, EVENTS) == len(EVENTS)
    bad: list[BadRow] = []
    header, events = open_trace(path, bad.append)
    assert (header, list(events), bad) == (HEADER, EVENTS, [])
    assert read_header(path) == HEADER


def test_the_content_says_whether_a_file_is_gzipped_not_its_name(tmp_path: Path) -> None:
    write_trace(tmp_path / "a.jsonl.gz", HEADER, EVENTS)
    renamed = (tmp_path / "a.jsonl.gz").rename(tmp_path / "b.jsonl")
    assert list(read_trace(renamed, pytest.fail)) == EVENTS


@pytest.mark.parametrize(
    "broken",
    [
        '{"event": "llm_call", "workflow": "w"',
        '{"event": "llm_call", "workflow": "w"}',
        '{"event": "nonsense", "workflow": "w"}',
        '{"event": "tool_end", "workflow": "w", "tool_call": "t", "seconds": -1}',
        '{"event": "workflow_end", "workflow": "w", "surprise": 1}',
        "[]",
        '{"event": "workflow_end", "workflow": "\udcff"}',
    ],
)
def test_a_broken_row_is_reported_and_the_rest_is_read(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, HEADER, EVENTS)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], broken.encode("utf-8", "surrogateescape") + b"\n\n", *lines[3:]]))
    bad: list[BadRow] = []
    assert list(read_trace(path, bad.append)) == EVENTS
    assert [each.line for each in bad] == [4]
    assert str(bad[0]).startswith(f"{path}:4: ")


def test_a_file_that_breaks_off_is_used_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    write_trace(path, HEADER, EVENTS)
    path.write_bytes(path.read_bytes()[:-20])
    bad: list[BadRow] = []
    read = list(read_trace(path, bad.append))
    assert 0 < len(read) < len(EVENTS)
    assert read == EVENTS[: len(read)]
    assert [each.line for each in bad] == [len(read) + 2]
    assert "cannot be read beyond line" in bad[0].problem


def test_a_file_that_breaks_off_before_its_first_event_says_where(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    write_trace(path, HEADER, EVENTS)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(TraceError, match="cannot be read beyond line"):
        list(read_trace(path, pytest.fail))


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", gzip.compress(b"", mtime=0), b"hello\n", b'{"event": "workflow_end"}\n']
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError):
        open_trace(path, pytest.fail)
    with pytest.raises(TraceError):
        read_header(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.jsonl"):
        open_trace(tmp_path / "nowhere.jsonl", pytest.fail)
    with pytest.raises(TraceError, match="directory"):
        open_trace(tmp_path, pytest.fail)
