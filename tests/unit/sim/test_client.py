"""What simulated programs find in the cache is what their prompts have in common with what is there."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvflow.engine import PromptClaim
from kvflow.sim import Waits, client, load_profile
from kvflow.sim.context import Context
from kvflow.sim.run import SimResult, SimSettings, simulate
from kvflow.sim.tree import Node, RadixTree
from kvflow.trace import Join, LLMCall, Piece, Program, Prompt, Spawn, ToolEnd, ToolStart, WorkflowStart

PAGE = SimSettings(device_tokens=0).page_tokens


def call(name: str, add: list[tuple[str, int]], *, base: str | None = None, keep_tokens: int = 0) -> LLMCall:
    pieces = tuple(Piece(content, tokens) for content, tokens in add)
    prompt = Prompt(base=base, keep_tokens=keep_tokens, add=pieces)
    return LLMCall(
        workflow="w", agent="a", call=name, prompt=prompt, output=f"out {name}", output_tokens=PAGE + 1, fixed_tokens=0
    )


def run(calls: list[LLMCall], *, device_tokens: int = 1_000_000, policy: str = "lru") -> SimResult:
    program = Program(start=WorkflowStart(workflow="w", type="t"), threads={"main": list(calls)}, ended=True)
    settings = SimSettings(policy=policy, device_tokens=device_tokens, host_tokens=2 * device_tokens, concurrency=1)
    return simulate([program], load_profile("h200"), settings)


def found_tokens(result: SimResult) -> int:
    return sum(result.counters.hit_tokens.values())


def test_a_call_that_is_rejected_is_not_answered() -> None:
    result = run([call("long", [("a", 600)]), call("short", [("b", 100)])], device_tokens=512)
    assert (result.calls, result.times.rejected) == (1, 1)


def test_a_prompt_that_goes_on_finds_the_whole_context() -> None:
    calls = [call("1", [("task", 10 * PAGE)]), call("2", [("more", 5 * PAGE)], base="1", keep_tokens=11 * PAGE)]
    assert found_tokens(run(calls)) == 11 * PAGE


def test_a_prompt_that_parts_from_the_last_one_finds_what_it_keeps() -> None:
    calls = [
        call("1", [("task", 10 * PAGE), ("old", 40 * PAGE)]),
        call("2", [("new", 40 * PAGE)], base="1", keep_tokens=10 * PAGE),
    ]
    assert found_tokens(run(calls)) == 10 * PAGE


def test_a_prompt_that_starts_over_finds_nothing() -> None:
    calls = [call("1", [("old", 20 * PAGE)]), call("2", [("new", 20 * PAGE)], base="1")]
    assert found_tokens(run(calls)) == 0


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_searching_from_the_last_prompt_finds_what_searching_from_the_root_does(
    monkeypatch: pytest.MonkeyPatch, seed: int, policy: str
) -> None:
    match = RadixTree.match

    def checked(self: RadixTree, context: Context, near: Node | None = None, pages: int | None = None) -> Node:
        node = match(self, context, near, pages)
        assert match(self, context, None, pages) is node
        return node

    monkeypatch.setattr(RadixTree, "match", checked)
    own = random.Random(seed)
    calls, lengths = [], [0]
    for number in range(1, 60):
        base = own.randrange(max(0, number - 6), number)
        keep_tokens = own.choice([lengths[base], own.randint(0, lengths[base]), 0])
        added = [(f"text {own.randrange(6)}", own.randint(1, 12 * PAGE)) for _ in range(own.randint(1, 3))]
        calls.append(call(str(number), added, base=str(base) if base else None, keep_tokens=keep_tokens if base else 0))
        lengths.append((keep_tokens if base else 0) + sum(tokens for _, tokens in added) + PAGE + 1)
    result = run(calls, device_tokens=max(lengths) + 40 * PAGE, policy=policy)
    assert result.calls == len(calls)


def in_thread(thread: str, made: LLMCall) -> LLMCall:
    return made.model_copy(update={"thread": thread})


def test_threads_that_nobody_joins_end_before_their_program() -> None:
    threads = {
        "main": [Spawn(workflow="w", child="a")],
        "a": [in_thread("a", call("1", [("slow", 200 * PAGE)])), Spawn(workflow="w", thread="a", child="b")],
        "b": [in_thread("b", call("2", [("late", 20 * PAGE)]))],
    }
    program = Program(start=WorkflowStart(workflow="w", type="t"), threads=threads, ended=True)
    result = simulate([program], load_profile("h200"), SimSettings(policy="cost", device_tokens=100_000, concurrency=1))
    assert (result.calls, result.workflows) == (2, 1)


def test_tenants_of_a_trace_are_told_to_the_brain(monkeypatch: pytest.MonkeyPatch) -> None:
    tenants = []

    def claim(**fields: Any) -> PromptClaim:
        tenants.append(fields["tenant"])
        return PromptClaim(**fields)

    monkeypatch.setattr(client, "PromptClaim", claim)
    start = WorkflowStart(workflow="w", type="t", tenant="acme")
    program = Program(start=start, threads={"main": [call("1", [("task", PAGE)])]}, ended=True)
    simulate([program], load_profile("h200"), SimSettings(policy="cost", device_tokens=100_000, concurrency=1))
    assert tenants == ["acme"]


def test_a_prompt_that_goes_on_from_another_threads_waits_for_it() -> None:
    threads = {
        "main": [
            Spawn(workflow="w", child="a"),
            call("2", [("more", 5 * PAGE)], base="1", keep_tokens=10 * PAGE),
        ],
        "a": [in_thread("a", call("1", [("task", 10 * PAGE)]))],
    }
    program = Program(start=WorkflowStart(workflow="w", type="t"), threads=threads, ended=True)
    result = simulate([program], load_profile("h200"), SimSettings(policy="lru", device_tokens=100_000, concurrency=1))
    assert result.calls == 2
    assert found_tokens(result) == 10 * PAGE


def with_tools(waits: Waits, tools: int) -> float:
    """How long a program takes that does nothing but call tools, none of which has a recorded time."""
    events = [
        event
        for number in range(tools)
        for event in (
            ToolStart(workflow="w", agent="a", tool_call=str(number), tool="shell"),
            ToolEnd(workflow="w", tool_call=str(number)),
        )
    ]
    program = Program(start=WorkflowStart(workflow="w", type="t"), threads={"main": events}, ended=True)
    settings = SimSettings(device_tokens=1000, concurrency=1, waits=waits)
    (taken_s,) = simulate([program], load_profile("h200"), settings).completion_s.values()
    return taken_s


def test_tools_without_a_recorded_time_vary_as_far_as_they_are_told_to() -> None:
    assert with_tools(Waits(tool_s=2.0, tool_spread=0.0), tools=50) == pytest.approx(100.0)
    assert with_tools(Waits(tool_s=2.0, tool_spread=1.0), tools=50) > 105.0


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_tool_that_has_waited_itself_goes_on_from_then(in_a_thread: bool) -> None:
    ask = call("1", [("task", 10 * PAGE)])
    threads = {
        "main": [
            ToolStart(workflow="w", agent="a", tool_call="t", tool="agent"),
            *([Spawn(workflow="w", child="b"), Join(workflow="w", child="b")] if in_a_thread else [ask]),
            ToolEnd(workflow="w", tool_call="t", seconds=0.01),
        ],
        "b": [in_thread("b", ask)],
    }
    program = Program(start=WorkflowStart(workflow="w", type="t"), threads=threads, ended=True)
    settings = SimSettings(device_tokens=100_000, concurrency=1)
    (taken_s,) = simulate([program], load_profile("h200"), settings).completion_s.values()
    (alone_s,) = run([ask]).completion_s.values()
    assert taken_s == pytest.approx(alone_s + 0.01)


def test_a_tool_takes_its_own_time_though_what_it_waited_for_was_over_before_it_began() -> None:
    def tool(name: str, seconds: float) -> list[ToolStart | ToolEnd]:
        start = ToolStart(workflow="w", agent="a", tool_call=name, tool=name)
        return [start, ToolEnd(workflow="w", tool_call=name, seconds=seconds)]

    start, end = tool("late", 10.0)
    ask = in_thread("b", call("1", [("task", 10 * PAGE)]))
    threads = {
        "main": [Spawn(workflow="w", child="b"), *tool("first", 50.0), start, Join(workflow="w", child="b"), end],
        "b": [ask],
    }
    program = Program(start=WorkflowStart(workflow="w", type="t"), threads=threads, ended=True)
    settings = SimSettings(device_tokens=100_000, concurrency=1)
    (taken_s,) = simulate([program], load_profile("h200"), settings).completion_s.values()
    assert taken_s == pytest.approx(60.0)


def test_a_thread_is_waited_for_that_another_one_spawns_later() -> None:
    """As a replay does; the file shows the spawn before, and a closed loop may come to it after."""

    def tool(thread: str, name: str, seconds: float) -> list[ToolStart | ToolEnd]:
        where = {"workflow": "w", "thread": thread, "tool_call": name}
        return [ToolStart(agent="a", tool=name, **where), ToolEnd(seconds=seconds, **where)]

    threads = {
        "main": [Spawn(workflow="w", child="a"), Join(workflow="w", child="b"), *tool("main", "last", 1.0)],
        "a": [*tool("a", "slow", 50.0), Spawn(workflow="w", thread="a", child="b")],
        "b": tool("b", "own", 5.0),
    }
    program = Program(start=WorkflowStart(workflow="w", type="t"), threads=threads, ended=True)
    settings = SimSettings(device_tokens=100_000, concurrency=1)
    (taken_s,) = simulate([program], load_profile("h200"), settings).completion_s.values()
    assert taken_s == pytest.approx(56.0)
