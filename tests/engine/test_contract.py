"""The contract that licenses the simulator: SGLang's real cache and the simulated one do the same with equal requests.

One scenario (hinted workflows of several agents: shared fixed prompts, growing conversations, branches, superseded
states, ends) goes through SGLang's radix cache with its own allocator, admission and host tier, and through the
simulated tree and memory. Every prompt must find the same tokens on the same tiers, every tier must lose the same nodes
in the same order, every load must move as much. There is no tolerance.

What SGLang's scheduler frees beyond need is a rule of its own: a page per prompt, and per decode step a page per
running request, needed or not. Here the simulated side is asked for as much. The simulated server, which counts a page
for every running request instead, is held to answers of one token, where that makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvflow.engine import Choice
from tests.engine.contract_real import Real
from tests.engine.contract_scenario import PAGE, Answer, Ask, Scenario, Spelling
from tests.engine.contract_simulated import PROFILE, Served, Simulated

pytestmark = [pytest.mark.engine, pytest.mark.beside]


POLICIES = ("lru", "lfu", "steps", "ttl", "saga", "cost")
"""Orders that look at recency, hits, steps, pins, ages and rates: everything a node is known by."""


def compare(scenario: Scenario, count: int, real: Real, simulated: Simulated) -> None:
    """Play a scenario on both and compare after every operation."""
    for number, operation in enumerate(scenario.play(count)):
        real.do(operation)
        simulated.do(operation)
        where = f"operation {number}: {operation}"
        assert simulated.log.found[-1:] == real.log.found[-1:], where
        assert simulated.log.lost == real.log.lost, where
        assert simulated.log.loaded == real.log.loaded, where
        assert simulated.log.kept[-1] == real.log.kept[-1], where


def play(
    policy: str,
    seed: int,
    publish: Callable[[float], Any],
    *,
    host: float,
    at_once: int,
    share: float = 1.0,
    exclusive: bool = False,
) -> Real:
    spelling = Spelling()
    real = Real(policy, spelling, host_ratio=host, args=publish(host))
    real.cache.tree_core.exclusive = exclusive
    simulated = Simulated(policy, spelling, host_tokens=real.host_tokens, share=share, exclusive=exclusive)
    compare(Scenario(seed, at_once=at_once), 400, real, simulated)
    return real


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES)
def test_the_device_alone(publish: Callable[[float], Any], policy: str, seed: int) -> None:
    log = play(policy, seed, publish, host=0, at_once=1 + seed).log
    assert len(log.lost) > 100
    assert sum(device for _, device, _ in log.found) > 1000


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES)
def test_device_and_host(publish: Callable[[float], Any], policy: str, seed: int) -> None:
    log = play(policy, seed, publish, host=1.5, at_once=1 + seed).log
    assert {tier for tier, _, _ in log.lost} == {"device", "host"}
    assert len(log.loaded) > 3


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_a_host_smaller_than_the_device(publish: Callable[[float], Any], policy: str) -> None:
    """It fills with copies of what is on the device, which cannot leave it; what finds no room is tried again."""
    log = play(policy, 5, publish, host=0.5, at_once=2).log
    assert {tier for tier, _, _ in log.lost} == {"device", "host"}


@pytest.mark.parametrize("host", [0.5, 1.0])
@pytest.mark.parametrize("policy", ["steps", "cost"])
def test_a_host_that_drops_copies_of_what_the_device_holds(
    publish: Callable[[float], Any], policy: str, host: float
) -> None:
    """More is found where it does: a host no larger than the device has next to nothing else."""
    inclusive, exclusive = (
        play(policy, 7, publish, host=host, at_once=2, exclusive=exclusive) for exclusive in (False, True)
    )
    exclusive.cache.sanity_check()
    assert inclusive.cache.accounting.counters.dropped_copy_tokens == 0
    assert exclusive.cache.accounting.counters.dropped_copy_tokens > 10_000
    assert sum(on_host for _, _, on_host in inclusive.log.found) < 100
    assert sum(on_host for _, _, on_host in exclusive.log.found) > 500


@pytest.mark.parametrize("policy", ["saga", "cost"])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_candidates_of_a_guard_that_trusts_little(
    publish: Callable[[float], Any], monkeypatch: pytest.MonkeyPatch, policy: str, share: float
) -> None:
    from kvflow.patches.trust import Trust

    monkeypatch.setattr(Trust, "choice", lambda self, tier: Choice(share))
    assert play(policy, 6, publish, host=1.5, at_once=2, share=share).log.loaded


@pytest.mark.parametrize("host", [0, 1.5])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_simulated_server(publish: Callable[[float], Any], policy: str, host: float) -> None:
    spelling = Spelling()
    real = Real(policy, spelling, host_ratio=host, args=publish(host))
    serve(real, Served(policy, spelling, host_tokens=real.host_tokens))


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_the_simulated_server_when_prompts_are_computed_in_parts(publish: Callable[[float], Any], policy: str) -> None:
    """Orders without claims, on the device alone.

    The simulated server takes the memory of all parts at once, SGLang part by part. So what the first part enters, a
    claim or a copy on the host, can decide there what the other parts push out, and cannot here.
    """
    spelling = Spelling()
    real = Real(policy, spelling, host_ratio=0, args=publish(0), chunk_tokens=4 * PAGE)
    profile = PROFILE.model_copy(update={"chunk_tokens": 4 * PAGE})
    serve(real, Served(policy, spelling, host_tokens=0, profile=profile))


def serve(real: Real, served: Served) -> None:
    """Play a scenario of short answers, one after the other."""
    for operation in Scenario(8, answer_tokens=1).play(500):
        if isinstance(operation, Answer):
            continue
        real.do(operation)
        if isinstance(operation, Ask):
            real.do(Answer(operation.number))
        served.do(operation)
        assert served.log.found == real.log.found, operation
        assert served.log.lost == real.log.lost, operation
        assert served.log.loaded == real.log.loaded, operation
        assert served.log.kept[-1] == real.log.kept[-1], operation
    assert len(real.log.lost) > 100
