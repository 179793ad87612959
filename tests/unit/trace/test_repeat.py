"""Traces played more than once: what tasks have in common stays, all else is new."""

from __future__ import annotations

import pytest

from kvflow.errors import TraceError
from kvflow.trace import (
    LLMCall,
    Piece,
    Program,
    Prompt,
    Spawn,
    SynthOptions,
    WorkflowStart,
    programs,
    repeated,
    synthetic_trace,
)


def program_of(workflow: str, *contents: str, group: str | None = None) -> Program:
    prompt = Prompt(add=tuple(Piece(content, 3, 2) for content in contents))
    call = LLMCall(workflow=workflow, agent="a", call="c", prompt=prompt, output=f"{workflow}!", output_tokens=2)
    start = WorkflowStart(workflow=workflow, type="t", group=group)
    return Program(start=start, threads={"main": [call, Spawn(workflow=workflow, child="s")], "s": []}, ended=True)


def pieces(program: Program) -> list[Piece]:
    return list(program.calls[0].prompt.add)


def test_once_is_what_there_was() -> None:
    found = list(programs(synthetic_trace("supervisor", SynthOptions(workflows=3))[1]))
    assert repeated(found, 1) == found


def test_less_than_once_is_refused() -> None:
    with pytest.raises(TraceError, match="once or more, not 0 times"):
        repeated([], 0)


def test_what_tasks_have_in_common_stays_common() -> None:
    once = [program_of("one", "system", "task 1"), program_of("two", "system", "task 2")]
    first, second, third, fourth = repeated(once, 2)
    assert [first, second] == once
    assert pieces(third) == [Piece("system", 3, 2), Piece("task 1~1", 3, 2)]
    assert pieces(fourth) == [Piece("system", 3, 2), Piece("task 2~1", 3, 2)]
    assert third.calls[0].output == "one!~1"
    assert {event.workflow for events in third.threads.values() for event in events} == {"one~1"}
    assert (third.start.workflow, third.ended, list(third.threads)) == ("one~1", True, ["main", "s"])


def test_texts_of_which_only_blocks_are_known_are_not_played_again_as_if_they_were_others() -> None:
    rows = [program_of("one", "blocks:ab"), program_of("two", "blocks:ab")]
    assert repeated(rows, 1) == rows
    with pytest.raises(TraceError, match="block hashes can be played only once"):
        repeated(rows, 2)


def test_what_is_fixed_stays_common_though_there_is_one_task_only() -> None:
    program = program_of("one", "system", "tools", "task")
    call = program.calls[0].model_copy(update={"fixed_tokens": 5})
    program.threads["main"][0] = call
    _, again = repeated([program], 2)
    assert [piece.content for piece in pieces(again)] == ["system", "tools~1", "task~1"], "but two tokens of the tools"


def test_what_attempts_at_one_task_have_in_common_is_new_with_the_task() -> None:
    attempts = [program_of(name, "system", "the task", group="g") for name in ("one", "two")]
    other = program_of("three", "system", "else", group="h")
    found = repeated([*attempts, other], 3)
    assert [pieces(each)[1].content for each in found[3:8]] == ["the task~1", "the task~1", "else~1"] + [
        "the task~2"
    ] * 2
    assert {pieces(each)[0].content for each in found} == {"system"}
    assert found[3].start.group == "g~1"


@pytest.mark.parametrize("kind", ["react", "fan", "loop"])
def test_sharing_within_a_program_is_as_it_was(kind: str) -> None:
    once = list(programs(synthetic_trace(kind, SynthOptions(workflows=3))[1]))
    for before, after in zip(once, repeated(once, 2)[len(once) :], strict=True):
        renamed: dict[str, str] = {}
        for one, two in zip(before.calls, after.calls, strict=True):
            assert (one.prompt.base, one.prompt.tokens, one.agent) == (two.prompt.base, two.prompt.tokens, two.agent)
            for was, now in zip(one.prompt.add, two.prompt.add, strict=True):
                assert renamed.setdefault(was.content, now.content) == now.content
        assert len(set(renamed.values())) == len(renamed)
