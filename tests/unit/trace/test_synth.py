"""Synthetic traces: of the shape they are named for, and the same for the same seed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvflow.errors import TraceError
from kvflow.trace import (
    BadEvent,
    Join,
    LLMCall,
    Program,
    Spawn,
    SynthOptions,
    ToolEnd,
    ToolStart,
    WorkflowStart,
    programs,
    synthetic_trace,
    trace_stats,
)
from kvflow.trace.synth import KINDS


def made(kind: str, **options: int | float) -> list[Program]:
    bad: list[BadEvent] = []
    found = list(programs(synthetic_trace(kind, SynthOptions(**options))[1], bad))  # type: ignore[arg-type]
    assert bad == []
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_give_equal_traces_and_others_do_not(kind: str) -> None:
    one, same, other = (list(synthetic_trace(kind, SynthOptions(seed=seed))[1]) for seed in (7, 7, 8))
    assert one == same
    assert one != other


@pytest.mark.parametrize("kind", KINDS)
def test_traces_of_different_seeds_share_nothing(kind: str) -> None:
    one, other = (made(kind, workflows=2, seed=seed) for seed in (7, 8))
    assert contents(one).isdisjoint(contents(other))
    assert {program.start.workflow for program in one}.isdisjoint(program.start.workflow for program in other)


def contents(found: list[Program]) -> set[str]:
    calls = [call for program in found for call in program.calls]
    return {piece.content for call in calls for piece in call.prompt.add} | {call.output for call in calls}


@pytest.mark.parametrize("kind", KINDS)
def test_agents_have_fixed_prompts_that_all_workflows_share(kind: str) -> None:
    first: dict[str, set[str]] = {}
    for program in made(kind, workflows=5, agents=3, fixed_tokens=99):
        for call in program.calls:
            assert call.fixed_tokens == 99
            if call.prompt.base is None:
                assert call.prompt.add[0].tokens == 99
                first.setdefault(call.agent, set()).add(call.prompt.add[0].content)
    assert all(len(contents) == 1 for contents in first.values())
    assert len({next(iter(contents)) for contents in first.values()}) == len(first)


def test_a_chain_passes_through_its_agents_in_order() -> None:
    program = made("chain", workflows=1, agents=3, turns=2)[0]
    assert [call.agent for call in program.calls] == ["agent-0", "agent-1", "agent-2"] * 2
    assert len(program.threads) == 1
    assert program.calls[3].prompt.base == program.calls[0].call


def test_an_agent_of_a_relay_reads_only_the_answer_before_it() -> None:
    program = made("chain", workflows=1, agents=3, turns=2, relay=True)[0]
    outputs = [call.output for call in program.calls]
    assert [call.prompt.add[-1].content for call in program.calls[1:]] == outputs[:-1]
    assert all(call.prompt.tokens < 1024 + 512 for call in program.calls[1:])
    assert program.calls[3].prompt.keep_tokens == 1024, "its own fixed prompt"
    with pytest.raises(TraceError, match="relay is an option of chain, not of fan"):
        made("fan", relay=True)


def test_a_fan_runs_its_workers_beside_each_other() -> None:
    program = made("fan", workflows=1, agents=4, turns=2)[0]
    assert len(program.threads) == 1 + 4 * 2
    kinds = [type(event) for event in program.threads["main"]]
    assert kinds == [LLMCall, *[Spawn] * 4, *[Join] * 4, LLMCall] * 2
    assert all(call.prompt.base is None for call in program.calls if call.thread != "main")


def test_a_loop_goes_on_as_long_as_it_should_on_average() -> None:
    rounds = [sum(call.agent == "writer" for call in program.calls) for program in made("loop", workflows=400, turns=5)]
    assert min(rounds) == 1
    assert 4 < sum(rounds) / len(rounds) < 6


def test_a_react_agent_calls_tools_some_of_them_in_parallel() -> None:
    found = made("react", workflows=200, turns=4)
    events = [event for program in found for event in program.threads["main"]]
    seconds = [event.seconds for event in events if isinstance(event, ToolEnd)]
    assert all(second is not None and second > 0 for second in seconds)
    pairs = list(pairwise(events))
    parallel = sum(isinstance(a, ToolStart) and isinstance(b, ToolStart) for a, b in pairs)
    assert 0 < parallel < len(seconds) / 4
    for program in found:
        later = program.calls[1:]
        assert all(call.prompt.base for call in later)


def test_a_supervisor_reads_the_result_of_every_worker() -> None:
    program = made("supervisor", workflows=1, agents=3, turns=4)[0]
    assert [call.agent == "supervisor" for call in program.calls] == [True, False] * 4 + [True]
    jobs = {call.output for call in program.calls if call.agent != "supervisor"}
    read = {piece.content for call in program.calls if call.agent == "supervisor" for piece in call.prompt.add}
    assert jobs <= read


def test_workflows_start_apart_and_tokens_are_about_what_was_asked_for() -> None:
    options = SynthOptions(workflows=300, apart_s=2.0, output_tokens=200, task_tokens=50)
    events = list(synthetic_trace("chain", options)[1])
    starts = [event.t for event in events if isinstance(event, WorkflowStart)]
    assert starts == sorted(starts)  # type: ignore[type-var]
    assert 500 < (starts[-1] or 0) < 700
    outputs = trace_stats(events).output_tokens
    assert 180 < outputs.p50 < 220
    assert {start.t for start in made_starts(apart_s=0)} == {0.0}


def made_starts(**options: int | float) -> list[WorkflowStart]:
    return [program.start for program in made("chain", **options)]


@pytest.mark.parametrize("options", [{"workflows": 0}, {"turns": -1}, {"fixed_tokens": 0}, {"apart_s": -1.0}])
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(TraceError, match=next(iter(options))):
        SynthOptions(**options)


def test_an_unknown_program_is_refused() -> None:
    with pytest.raises(TraceError, match="no synthetic program 'star'; there are: chain, fan"):
        synthetic_trace("star", SynthOptions())
