"""Loads ahead in the simulated server: they hide what a slow link costs, and wrong ones cost next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest

from bench.adversaries import registered
from kvflow.sim import SimResult, SimSettings, load_profile, simulate
from kvflow.trace import Program, SynthOptions, programs, synthetic_trace

CONCURRENCY = 4
OPTIONS = {
    "chain": SynthOptions(workflows=16, agents=10, fixed_tokens=8192, task_tokens=64, output_tokens=48, seed=3),
    "rounds": SynthOptions(
        workflows=8, agents=10, turns=3, fixed_tokens=4096, task_tokens=64, output_tokens=48, seed=3
    ),
    "react": SynthOptions(workflows=24, turns=8, fixed_tokens=1024, task_tokens=8192, output_tokens=64, seed=3),
}
PROFILE = load_profile("a100")
SLOW_LINK = PROFILE.model_copy(update={"load_token_s": 8 * PROFILE.load_token_s})


@pytest.fixture(scope="module", autouse=True)
def adversaries() -> Iterator[None]:
    with registered():
        yield


@cache
def workload(kind: str) -> tuple[Program, ...]:
    return tuple(programs(synthetic_trace("react" if kind == "react" else "chain", OPTIONS[kind])[1]))


@cache
def run(kind: str, *, prefetch: bool, policy: str = "cost", device: float = 0.5) -> SimResult:
    loads = [max(call.prompt.tokens + call.output_tokens for call in program.calls) for program in workload(kind)]
    live_tokens = (CONCURRENCY if kind == "react" else 10) * sum(loads) / len(loads)
    settings = SimSettings(
        policy=policy,
        prefetch=prefetch,
        device_tokens=int(device * live_tokens),
        host_tokens=int(2 * live_tokens),
        concurrency=CONCURRENCY if kind == "react" else 1,
    )
    return simulate(workload(kind), SLOW_LINK, settings)


@pytest.mark.parametrize("kind", ["chain", "rounds"])
def test_a_chain_of_agents_does_not_wait_for_loads_any_more(kind: str) -> None:
    """In rounds what comes back is a prompt and what the agent has said since: the one must not wait for the other."""
    without, ahead = run(kind, prefetch=False), run(kind, prefetch=True)
    assert without.counters.stall_s > 1
    assert ahead.counters.stall_s < 0.2 * without.counters.stall_s
    assert fmean(ahead.completion_s.values()) < fmean(without.completion_s.values())
    assert ahead.counters.prefetch_wasted_tokens < 0.1 * ahead.counters.load_back_tokens


def test_the_first_workflow_of_its_type_waits_less_from_its_second_round_on() -> None:
    first = workload("rounds")[:1]
    (call, *_) = first[0].calls
    size = 10 * (call.prompt.tokens + call.output_tokens)
    settings = SimSettings(policy="cost", device_tokens=size // 2, host_tokens=2 * size, concurrency=1)
    without, ahead = (simulate(first, SLOW_LINK, replace(settings, prefetch=prefetch)) for prefetch in (False, True))
    assert ahead.counters.stall_s < 0.7 * without.counters.stall_s, "one of two rounds in which contexts come back"


@pytest.mark.parametrize("policy", ["inverted", "hostile"])
@pytest.mark.parametrize("kind", sorted(OPTIONS))
def test_wrong_predictions_cost_next_to_nothing(kind: str, policy: str) -> None:
    without, ahead = (run(kind, prefetch=prefetch, policy=policy) for prefetch in (False, True))
    assert fmean(ahead.completion_s.values()) <= 1.02 * fmean(without.completion_s.values())


@pytest.mark.parametrize("kind", sorted(OPTIONS))
def test_where_all_fits_nothing_is_loaded(kind: str) -> None:
    without, ahead = (run(kind, prefetch=prefetch, device=3) for prefetch in (False, True))
    assert ahead.counters.prefetches == 0
    assert ahead.completion_s == without.completion_s


@pytest.mark.parametrize("kind", sorted(OPTIONS))
def test_every_load_ahead_is_accounted_for(kind: str) -> None:
    counters = run(kind, prefetch=True).counters
    settled = counters.prefetch_used_tokens + counters.prefetch_late_tokens + counters.prefetch_wasted_tokens
    assert 0 < settled <= counters.prefetched_tokens <= counters.load_back_tokens
