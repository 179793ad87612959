"""What running only the programs that fit gains in a closed loop, and that it costs nothing where all fit."""

from __future__ import annotations

from functools import cache
from statistics import fmean

import pytest

from kvflow.policy import AdmissionMemory
from kvflow.sim import SimResult, SimSettings, load_profile, simulate
from kvflow.sim.admission import Admission, LongestPrefix
from kvflow.sim.request import Request
from kvflow.trace import Piece, Program, SynthOptions, programs, synthetic_trace
from tests.unit.sim.world import World

CONCURRENCY = 16
OPTIONS = {
    "react": SynthOptions(workflows=64, turns=12, fixed_tokens=1024, task_tokens=16_384, output_tokens=64, seed=3),
    "supervisor": SynthOptions(workflows=48, agents=3, turns=4, fixed_tokens=1024, task_tokens=8192, seed=3),
}


@cache
def workload(kind: str) -> tuple[Program, ...]:
    return tuple(programs(synthetic_trace(kind, OPTIONS[kind])[1]))


@cache
def run(kind: str, admission: Admission, *, device: float, host: float = 0.0, policy: str = "cost") -> SimResult:
    loads = [max(call.prompt.tokens + call.output_tokens for call in program.calls) for program in workload(kind)]
    live_tokens = CONCURRENCY * sum(loads) / len(loads)
    settings = SimSettings(
        policy=policy,
        admission=admission,
        device_tokens=int(device * live_tokens),
        host_tokens=int(host * live_tokens),
        concurrency=CONCURRENCY,
    )
    return simulate(workload(kind), load_profile("a100"), settings)


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_programs_that_fit_finish_sooner_than_all_at_once(policy: str) -> None:
    everyone = run("react", "fcfs", device=0.3, policy=policy)
    fitting = run("react", "workflow", device=0.3, policy=policy)
    assert fmean(fitting.completion_s.values()) < 0.7 * fmean(everyone.completion_s.values())
    assert max(fitting.completion_s.values()) < max(everyone.completion_s.values())
    assert fitting.lost_s < 0.5 * everyone.lost_s


def test_of_those_with_nothing_in_the_cache_one_of_each_beginning_goes_before_the_others() -> None:
    world = World()
    short = world.ask(Piece("short", 100))
    long = world.ask(Piece("long", 300))
    order = {
        "new": world.request(Piece("other", 200)),
        "same": world.request(Piece("other", 200), Piece("more", 40)),
        "tiny": world.request(Piece("tiny", 1), output_tokens=1),
        "short": world.request(Piece("more", 30), after=short),
        "long": world.request(Piece("more", 30), after=long),
    }
    names = {request: name for name, request in order.items()}
    arranged = LongestPrefix(world.memory.tree).arrange(list(names), AdmissionMemory(device_tokens=4096))
    assert [names[request] for request in arranged] == ["long", "short", "new", "tiny", "same"]


def arranged(world: World, **order: Request) -> list[str]:
    names = {request: name for name, request in order.items()}
    waiting = LongestPrefix(world.memory.tree).arrange(list(names), AdmissionMemory(device_tokens=4096))
    return [names[request] for request in waiting]


def test_what_only_the_host_has_makes_nobody_the_second_to_begin_alike() -> None:
    world = World(host=4096)
    long = world.ask(Piece("long", 300))
    for node in world.nodes():
        node.on_device, node.on_host = False, True
    first, second = (world.request(Piece(name, 30), after=long) for name in ("a", "b"))
    new = world.request(Piece("other", 200))
    assert arranged(world, new=new, first=first, second=second) == ["first", "new", "second"]


@pytest.mark.parametrize(("tokens", "order"), [(32, ["first", "new", "second"]), (48, ["first", "second", "new"])])
def test_a_few_tokens_on_the_device_are_as_good_as_none(tokens: int, order: list[str]) -> None:
    world = World()
    short = world.ask(Piece("short", tokens))
    first, second = (world.request(Piece(name, 30), after=short) for name in ("a", "b"))
    new = world.request(Piece("other", 200))
    assert arranged(world, new=new, first=first, second=second) == order


def test_beyond_a_hundred_or_so_requests_keep_their_places() -> None:
    world = World()
    long = world.ask(Piece("long", 300))
    waiting = [world.request(Piece(f"{number}", 100)) for number in range(128)]
    last = world.request(Piece("more", 30), after=long)
    tree, memory = world.memory.tree, AdmissionMemory(device_tokens=4096)
    assert LongestPrefix(tree).arrange([*waiting[:-1], last], memory)[0] is last
    assert LongestPrefix(tree).arrange([*waiting, last], memory)[-1] is last


def test_who_has_most_in_the_cache_first_computes_less_again_than_first_come_first_served() -> None:
    everyone = run("react", "fcfs", device=0.3, host=0.5, policy="lru")
    longest = run("react", "lpm", device=0.3, host=0.5, policy="lru")
    assert longest.counters.recomputed_tokens < 0.5 * everyone.counters.recomputed_tokens
    assert fmean(longest.completion_s.values()) < fmean(everyone.completion_s.values())


@pytest.mark.parametrize("kind", sorted(OPTIONS))
@pytest.mark.parametrize("admission", ["lpm", "workflow"])
@pytest.mark.parametrize(("device", "host"), [(0.3, 0.0), (0.3, 0.5), (0.6, 0.0)])
def test_every_call_is_answered(kind: str, admission: Admission, device: float, host: float) -> None:
    result = run(kind, admission, device=device, host=host)
    assert result.calls == sum(len(program.calls) for program in workload(kind))
    assert len(result.completion_s) == len(workload(kind))


@pytest.mark.parametrize("kind", sorted(OPTIONS))
def test_nobody_is_slower_where_all_fit(kind: str) -> None:
    """Some are faster, because who shares a prompt waits for the one that computes it."""
    everyone, fitting = run(kind, "fcfs", device=2.5), run(kind, "workflow", device=2.5)
    for program, seconds in fitting.completion_s.items():
        assert seconds <= 1.01 * everyone.completion_s[program]
