"""Function calling tasks as the program that solves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvflow.trace import ToolStart


def called(name: str, result: str = "{}") -> dict[str, Any]:
    return {"call": f"{name}()", "name": name, "args": {}, "result": result, "seconds": None}


def task(**fields: Any) -> dict[str, Any]:
    return {
        "session_id": "bfcl:1",
        "group": "bfcl-1",
        "category": "multi_turn_base",
        "involved_classes": ["Files"],
        "turns": [
            {"user": [{"role": "user", "content": "list them" * 9}], "ground_truth": [called("ls"), called("cd")]},
            {"user": [{"role": "user", "content": "thanks"}], "ground_truth": []},
        ],
        "excluded_function": None,
        "missed_function": None,
        **fields,
    }


@pytest.fixture
def docs(tmp_path: Path) -> None:
    functions = [{"name": name, "description": f"{name} does something" * 5} for name in ("ls", "cd", "mv")]
    rows = [{"class": "Files", "functions": functions}, {"class": "Mail", "functions": functions}]
    (tmp_path / "aaa").write_text("no json\n")
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.usefixtures("docs")
def test_a_turn_is_a_call_for_its_tools_and_one_that_closes_it(imported: Any) -> None:
    found = imported(task())
    assert " ".join(found.shape) == "llm_call tool_start tool_end tool_start tool_end llm_call llm_call"
    first, second, third = found.calls
    assert [call.prompt.base for call in found.calls] == [None, first.call, second.call]
    assert second.prompt.keep_tokens == first.prompt.tokens + first.output_tokens
    assert [end.seconds for end in found.tool_ends] == [None, None]
    assert first.fixed_tokens == sum(piece.tokens for piece in first.prompt.add[:3])
    assert third.output_tokens == 50
    assert found.starts[0].type == "bfcl-multi_turn_base"


@pytest.mark.usefixtures("docs")
def test_tasks_share_the_docs_of_their_classes_but_for_what_is_left_out(imported: Any) -> None:
    found = imported(
        task(),
        task(excluded_function=["mv"]),
        task(missed_function={"1": ["mv"]}),
        task(involved_classes=["Unknown"]),
    )
    firsts = [call for call in found.calls if call.prompt.base is None]
    every, excluded, missed, unknown = firsts
    assert every.prompt.add[:2] == excluded.prompt.add[:2] == missed.prompt.add[:2]
    assert every.prompt.add[2] != excluded.prompt.add[2]
    later = [call for call in found.calls if call.workflow == missed.workflow][2]
    assert every.prompt.add[2] in later.prompt.add
    assert unknown.fixed_tokens is None


def test_without_the_docs_the_header_says_so(imported: Any) -> None:
    found = imported(task())
    assert "no file beside it" in found.header.notes
    assert found.calls[0].fixed_tokens is None


def test_parallel_tasks_call_everything_at_once(imported: Any) -> None:
    found = imported(
        {
            "session_id": "p",
            "category": "parallel",
            "question": [[{"role": "user", "content": "play both"}]],
            "function": [{"name": "play"}],
            "ground_truth": [{"play": {"artist": ["A"]}}, {"play": {"artist": ["B"]}}],
        }
    )
    assert found.shape == ["llm_call", "tool_start", "tool_start", "tool_end", "tool_end"]
    assert [event.tool for event in found.events if isinstance(event, ToolStart)] == ["play", "play"]
    assert "no file" not in found.header.notes


def test_a_task_that_cannot_be_used_is_reported(imported: Any) -> None:
    silent = task(turns=[{"user": [], "ground_truth": []}])
    found = imported(task(), silent, task(turns=[]), task(turns=3))
    assert len(found.programs) == 1
    assert [(each.line, each.problem.split(":")[0]) for each in found.bad] == [
        (2, "turns.0.user"),
        (3, "turns"),
        (4, "turns"),
    ]
