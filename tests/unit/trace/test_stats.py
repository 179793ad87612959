"""Counting traces, and what a cache that never forgets would hit."""

from __future__ import annotations

import random

import pytest

from kvflow.trace import (
    Event,
    LLMCall,
    Piece,
    Prompt,
    Spawn,
    ToolEnd,
    ToolStart,
    WorkflowEnd,
    WorkflowStart,
    trace_stats,
)
from kvflow.trace.ideal import IdealCache
from kvflow.trace.stats import Spread


def call(
    name: str, *add: tuple[str, int] | tuple[str, int, int], base: str | None = None, keep: int = 0, out: int = 0
) -> LLMCall:
    workflow, _, _ = name.partition("/")
    prompt = Prompt(base=base, keep_tokens=keep, add=tuple(Piece(*piece) for piece in add))
    return LLMCall(workflow=workflow, agent="a", call=name, prompt=prompt, output=f"{name}!", output_tokens=out)


def test_an_ideal_cache_finds_what_prompts_begin_with_alike() -> None:
    cache = IdealCache()
    assert cache.hit_tokens(call("v/1", ("system", 10), ("x", 5), out=3)) == 0
    assert cache.hit_tokens(call("w/1", ("system", 10), ("y", 5), out=3)) == 10
    assert cache.hit_tokens(call("w/2", ("z", 1), base="w/1", keep=18)) == 18
    assert cache.hit_tokens(call("w/3", ("system", 10), ("y", 5), ("w/1!", 3), ("z", 1), ("n", 1))) == 19
    assert cache.hit_tokens(call("w/4", ("w/1!", 3), ("z", 1), base="w/1", keep=12)) == 12


def test_keeping_more_than_there_is_keeps_what_there_is() -> None:
    cache = IdealCache()
    cache.hit_tokens(call("w/1", ("x", 10)))
    assert cache.hit_tokens(call("w/2", ("y", 5), base="w/1", keep=20)) == 10
    assert cache.hit_tokens(call("w/3", ("z", 5), base="w/2", keep=5)) == 5


def test_a_slice_is_the_same_tokens_however_it_is_cut() -> None:
    cache = IdealCache()
    cache.hit_tokens(call("v/1", ("x", 100)))
    assert cache.hit_tokens(call("v/2", ("x", 40), ("x", 60, 40), ("y", 1))) == 100
    assert cache.hit_tokens(call("v/3", ("x", 40), ("x", 60, 41))) == 40
    assert cache.hit_tokens(call("v/4", ("x", 39), ("y", 1))) == 39
    assert cache.hit_tokens(call("v/5", ("x", 130))) == 100
    assert cache.hit_tokens(call("v/6", ("x", 130), ("y", 1), base="v/5", keep=0)) == 130


@pytest.mark.parametrize("seed", range(30))
def test_an_ideal_cache_agrees_with_comparing_every_token(seed: int) -> None:
    chance = random.Random(seed)
    cache = IdealCache()
    contexts: dict[str, list[tuple[str, int]]] = {}
    for number in range(40):
        base = chance.choice([None, *contexts])
        keep = chance.randrange(len(contexts[base]) + 1) if base else 0
        add = [
            (chance.choice("xy"), chance.randrange(1, 6), chance.randrange(3)) for _ in range(chance.randrange(1, 4))
        ]
        one = call(f"w/{number}", *add, base=base, keep=keep, out=chance.randrange(3))
        tokens = contexts[base][:keep] if base else []
        tokens = tokens + [(content, offset + i) for content, count, offset in add for i in range(count)]
        known = 0
        for other in contexts.values():
            common = 0
            while common < min(len(tokens), len(other)) and tokens[common] == other[common]:
                common += 1
            known = max(known, common)
        assert cache.hit_tokens(one) == known
        contexts[one.call] = tokens + [(one.output, i) for i in range(one.output_tokens)]


def test_everything_is_counted_in_one_pass() -> None:
    def tool(name: str, verb: str | None, seconds: float | None, error: bool = False) -> list[Event]:
        return [
            ToolStart(workflow="w", agent="a", tool_call=name, tool="bash", verb=verb),
            ToolEnd(workflow="w", tool_call=name, seconds=seconds, error=error),
        ]

    events: list[Event] = [
        WorkflowStart(workflow="w", type="coding"),
        call("w/1", ("system", 10), ("task", 10), out=5),
        *tool("t1", "ls", 0.5),
        *tool("t2", "ls", 1.5, error=True),
        *tool("t3", "pytest", 30.0),
        *tool("t4", None, None),
        call("w/2", ("result", 15), base="w/1", keep=25),
        Spawn(workflow="w", child="s"),
        call("w/3", ("other", 20), base="w/2", keep=20),
        WorkflowStart(workflow="x", type="coding"),
        call("x/1", ("system", 10), ("task 2", 30)),
        WorkflowEnd(workflow="w"),
        WorkflowStart(workflow="y", type="chat"),
    ]
    stats = trace_stats(events)
    assert (stats.workflows, stats.types, stats.calls, stats.threads) == (3, {"coding": 2, "chat": 1}, 4, 1)
    assert stats.prompt_tokens == Spread(count=4, p50=40, p90=40, max=40, total=140)
    assert stats.calls_per_workflow == Spread(count=3, p50=1, p90=3, max=3, total=4)
    assert stats.new_tokens.total == 20 + 15 + 20 + 40
    assert stats.output_tokens.max == 5
    assert stats.kept_share == 45 / 140
    assert stats.ideal_hit_share == 55 / 140
    assert stats.whole_context_share == 1 / 2
    tools = [(tool.tool, tool.verb, tool.calls, tool.errors, tool.seconds.total) for tool in stats.tools]
    assert tools == [("bash", "pytest", 1, 0, 30.0), ("bash", "ls", 2, 1, 2.0), ("bash", None, 1, 0, 0)]


def test_an_empty_trace_has_stats_too() -> None:
    stats = trace_stats([])
    assert (stats.calls, stats.kept_share, stats.prompt_tokens.max, stats.tools) == (0, 0.0, 0, ())
