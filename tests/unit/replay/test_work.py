"""What rounds play: contents, scaled programs, arrivals, sizes."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from kvflow.replay.contents import Contents
from kvflow.replay.scaling import scaled
from kvflow.replay.work import Load
from kvflow.sim.workload import Workload
from kvflow.trace import (
    MAIN_THREAD,
    LLMCall,
    Piece,
    Program,
    Prompt,
    SynthOptions,
    ToolEnd,
    WorkflowStart,
    programs,
    synthetic_trace,
)


def made(kind: str = "react", workflows: int = 8, **sizes: int) -> list[Program]:
    return list(programs(synthetic_trace(kind, SynthOptions(workflows=workflows, seed=5, **sizes))[1]))


def contexts(program: Program, contents: Contents) -> dict[str, list[int]]:
    """Prompt of every call, as it would be sent."""
    prompts: dict[str, list[int]] = {}
    whole: dict[str, list[int]] = {}
    for call in program.calls:
        base = whole[call.prompt.base] if call.prompt.base is not None else []
        prompt = base[: call.prompt.keep_tokens]
        for piece in call.prompt.add:
            prompt = prompt + list(contents.tokens(piece))
        prompts[call.call] = prompt
        whole[call.call] = prompt + list(contents.tokens(Piece(call.output, call.output_tokens)))
    return prompts


def test_equal_names_are_equal_tokens_however_they_are_cut() -> None:
    one, other = Contents(), Contents()
    whole = one.tokens(Piece("text", 100))
    assert other.tokens(Piece("text", 30, 20)) == whole[20:50]
    assert other.tokens(Piece("text", 100)) == whole
    assert one.tokens(Piece("another", 100)) != whole
    assert set(whole) <= set(range(10, 250))
    assert set(Contents(1000, 1002).tokens(Piece("text", 50))) == {1000, 1001}


def test_a_slice_is_spelled_however_far_it_is_from_the_beginning() -> None:
    contents = Contents()
    far = Piece("blocks", 1500, 2**64 * 512)
    assert contents.tokens(far) == Contents().tokens(Piece("blocks", 1600, far.offset - 100))[100:]
    started_s = time.perf_counter()
    for number in range(500):
        contents.tokens(Piece("blocks", 512, number * 100_000))
    assert time.perf_counter() - started_s < 2.0, "what comes before a slice is not spelled"


def test_what_is_far_from_the_beginning_is_scaled_as_exactly() -> None:
    pieces = tuple(Piece("blocks", 512, (2**64 + number) * 512) for number in range(4))
    call = LLMCall(workflow="w", agent="a", call="c", prompt=Prompt(add=pieces), output="o", output_tokens=8)
    start = WorkflowStart(workflow="w", type="t")
    (small,) = scaled(Program(start=start, threads={MAIN_THREAD: [call]}), 0.25, 1.0).calls
    assert [piece.tokens for piece in small.prompt.add] == [128] * 4


@pytest.mark.parametrize("kind", ["chain", "fan", "react", "supervisor"])
def test_a_scaled_program_shares_what_it_shared(kind: str) -> None:
    contents = Contents()
    for program in made(kind, 3):
        small = scaled(program, 0.25, 0.5)
        whole, part = contexts(program, contents), contexts(small, contents)
        assert list(whole) == list(part)
        for call, prompt in part.items():
            assert abs(len(prompt) - len(whole[call]) / 4) <= 2 + len(program.calls)
        assert [call.agent for call in small.calls] == [call.agent for call in program.calls]
        names = list(part)
        for first, second in pairwise(names):
            assert shared(part[first], part[second]) >= shared(whole[first], whole[second]) / 4 - 2 - len(names)


def shared(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_times_are_scaled_by_themselves() -> None:
    (program,) = made(workflows=1)
    small = scaled(program, 1.0, 0.5)
    assert [call.prompt for call in small.calls] == [call.prompt for call in program.calls]
    assert tools(small) == [seconds / 2 for seconds in tools(program)] != []
    assert scaled(program, 1, 1) is program


def tools(program: Program) -> list[float]:
    events = (event for thread in program.threads.values() for event in thread)
    return [event.seconds for event in events if isinstance(event, ToolEnd) and event.seconds is not None]


def test_no_prompt_or_answer_gets_empty() -> None:
    for program in made():
        calls: list[LLMCall] = scaled(program, 0.0001, 1).calls
        assert all(call.prompt.tokens >= 1 and call.output_tokens >= 1 for call in calls)


def test_rounds_of_equal_seeds_are_equal() -> None:
    workload = Workload(made(workflows=20))
    load = Load(programs=6, per_min=60)
    one, other = (load.arrivals(load.drawn(workload, 3), 3) for _ in range(2))
    assert one == other
    assert len({name for _, _, name in one}) == 6
    assert [at for at, _, _ in one] == sorted(at for at, _, _ in one)
    assert one != load.arrivals(load.drawn(workload, 4), 4)


def test_arrivals_come_at_their_rate() -> None:
    workload = Workload(made(workflows=400))
    arrivals = Load(per_min=120).arrivals(workload.programs, 1)
    assert arrivals[-1][0] == pytest.approx(200, rel=0.15)
    assert {at for at, _, _ in Load().arrivals(workload.programs, 1)} == {0.0}
