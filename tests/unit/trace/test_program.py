"""Programs: events that do not fit are left out, and named."""

from __future__ import annotations

import pytest

from kvflow.trace import (
    BadEvent,
    Event,
    Join,
    LLMCall,
    Piece,
    Prompt,
    Spawn,
    Supersede,
    ToolEnd,
    ToolStart,
    WorkflowEnd,
    WorkflowStart,
    programs,
)


def call(name: str, *, base: str | None = None, keep: int = 0, add: int = 5, thread: str = "main") -> LLMCall:
    pieces = (Piece(name, add),) if add else ()
    prompt = Prompt(base=base, keep_tokens=keep, add=pieces)
    return LLMCall(workflow="w", thread=thread, agent="a", call=name, prompt=prompt, output=f"{name}!", output_tokens=2)


def run(*events: Event) -> tuple[list[Event], list[str]]:
    bad: list[BadEvent] = []
    found = list(programs([WorkflowStart(workflow="w", type="t"), *events, WorkflowEnd(workflow="w")], bad))
    assert len(found) == 1
    assert found[0].ended
    return [event for thread in found[0].threads.values() for event in thread], [each.problem for each in bad]


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([call("c", add=0)], "empty prompt"),
        ([call("c", keep=1)], "keeps tokens of nothing"),
        ([call("c", base="b", keep=1)], "not known"),
        ([call("a"), call("c", base="a", keep=8)], "keeps 8 tokens of 7"),
        ([call("a"), call("a")], "exists already"),
        ([call("c", thread="side")], "has not been spawned"),
        ([Spawn(workflow="w", child="s"), Spawn(workflow="w", child="s")], "exists already"),
        ([Join(workflow="w", child="s")], "not there to be joined"),
        ([Spawn(workflow="w", child="s"), Join(workflow="w", thread="s", child="s")], "not there to be joined"),
        ([Spawn(workflow="w", child="s"), Join(workflow="w", child="s"), call("c", thread="s")], "has been joined"),
        ([ToolEnd(workflow="w", tool_call="t")], "has not started"),
        ([Supersede(workflow="w", call="c")], "not known"),
        ([WorkflowStart(workflow="w", type="t")], "started already"),
    ],
)
def test_an_event_that_does_not_fit_is_left_out(events: list[Event], problem: str) -> None:
    kept, problems = run(*events)
    assert len(problems) == 1
    assert problem in problems[0]
    assert len(kept) == len(events) - 1


def test_a_good_program_is_kept_whole() -> None:
    events: list[Event] = [
        call("a"),
        ToolStart(workflow="w", agent="a", tool_call="t", tool="x"),
        Spawn(workflow="w", child="s"),
        call("b", base="a", keep=7, add=0, thread="s"),
        Join(workflow="w", child="s"),
        ToolEnd(workflow="w", tool_call="t"),
        Supersede(workflow="w", call="a", keep_tokens=2),
        call("c", base="a", keep=2),
    ]
    kept, problems = run(*events)
    assert problems == []
    assert sorted(map(repr, kept)) == sorted(map(repr, events))


def test_tool_calls_that_are_numbered_anew_in_every_turn_are_told_apart() -> None:
    def turn(seconds: float) -> list[Event]:
        start = ToolStart(workflow="w", agent="a", tool_call="0", tool="x")
        return [start, ToolEnd(workflow="w", tool_call="0", seconds=seconds)]

    kept, problems = run(*turn(100.0), *turn(1.0))
    assert problems == []
    ends = {event.tool_call: event.seconds for event in kept if isinstance(event, ToolEnd)}
    assert ends == {"0": 100.0, "0~1": 1.0}
    assert [event.tool_call for event in kept if isinstance(event, ToolStart)] == ["0", "0~1"]


def test_workflows_may_interleave_and_one_may_never_end() -> None:
    start = [WorkflowStart(workflow=name, type="t") for name in ("one", "two")]
    found = list(programs([*start, WorkflowEnd(workflow="two"), WorkflowEnd(workflow="three")], bad := []))
    assert [(each.start.workflow, each.ended) for each in found] == [("two", True), ("one", False)]
    assert [str(each) for each in bad] == ["workflow three: workflow_end before its start"]
