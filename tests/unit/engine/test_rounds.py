"""Rounds of eviction: time, value, and who may be a candidate."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from kvflow.engine import FREE_CHOICE, Choice, Coordinator, PromptClaim
from kvflow.engine.owners import Owners
from kvflow.policy import POLICIES, EvictionClass
from kvflow.predict import ClaimPrediction, WorkflowUpdate


@dataclass(eq=False)
class Leaf:
    last_access_time: float
    key: range = range(64)
    owners: Owners | None = None
    parent: None = None
    hit_count: int = 0
    backuped: bool = False
    evicted: bool = False


def leaves(count: int) -> list[Leaf]:
    """Leaves of 64 tokens, oldest first."""
    return [Leaf(float(age)) for age in range(count)]


def predict(coordinator: Coordinator, node: Leaf, name: str, **prediction: float | None) -> None:
    """Hold a leaf for an agent of its own, with a prediction for it."""
    steps = prediction.pop("steps", 1.0)
    claim = ClaimPrediction(agent=name, steps=steps, **prediction)  # type: ignore[arg-type]
    coordinator.apply(WorkflowUpdate(workflow_id=name, workflow_type="t", claims=(claim,)))
    coordinator.tag(PromptClaim(workflow_id=name, workflow_type="t", agent=name), [(node, 64)], 0)


def order(coordinator: Coordinator, nodes: Sequence[Leaf], choice: Choice = FREE_CHOICE) -> list[int]:
    """Indexes of leaves in the order in which they would leave."""
    coordinator.open_round(nodes, choice)
    return sorted(range(len(nodes)), key=lambda i: (coordinator.priority(nodes[i]), nodes[i].last_access_time))


def test_what_is_due_last_leaves_first() -> None:
    coordinator, nodes = Coordinator("cost"), leaves(3)
    coordinator.tick(100.0)
    for node, due_s in zip(nodes, (110.0, 300.0, 130.0), strict=True):
        predict(coordinator, node, f"w{due_s}", due_s=due_s)
    assert order(coordinator, nodes) == [1, 2, 0]


def test_what_is_probably_not_used_again_leaves_before_what_surely_is() -> None:
    coordinator, nodes = Coordinator("cost"), leaves(2)
    predict(coordinator, nodes[0], "sure", due_s=30.0)
    predict(coordinator, nodes[1], "unlikely", due_s=20.0, probability=0.1)
    assert order(coordinator, nodes) == [1, 0]


def test_what_costs_a_load_leaves_before_what_costs_a_computation() -> None:
    coordinator, nodes = Coordinator("cost"), leaves(2)
    for name, node in enumerate(nodes):
        predict(coordinator, node, str(name), due_s=10.0)
    nodes[1].backuped = True
    assert order(coordinator, nodes) == [1, 0]


def test_what_a_request_uses_now_stays_longest_and_ended_workflows_leave_first() -> None:
    coordinator, nodes = Coordinator("cost"), leaves(4)
    predict(coordinator, nodes[0], "soon", due_s=1.0)
    predict(coordinator, nodes[1], "asked", since_s=0.0)
    predict(coordinator, nodes[2], "ended", due_s=0.5)
    coordinator.apply(WorkflowUpdate(workflow_id="ended", workflow_type="t", retired=True))
    assert order(coordinator, nodes) == [2, 3, 0, 1]
    assert coordinator.class_of(nodes[2]) is EvictionClass.RETIRED


def test_time_makes_what_is_due_urgent_and_never_runs_backwards() -> None:
    coordinator, nodes = Coordinator("cost"), leaves(2)
    predict(coordinator, nodes[0], "steady", due_s=1000.0)
    predict(coordinator, nodes[1], "distant", due_s=900.0, probability=0.5)
    assert order(coordinator, nodes) == [1, 0]
    coordinator.tick(890.0)
    assert order(coordinator, nodes) == [0, 1]
    version = coordinator.claims.clock.version
    coordinator.tick(100.0)
    assert coordinator.claims.clock.now_s == 890.0
    assert coordinator.claims.clock.version == version


def test_waiting_requests_teach_how_long_the_queue_is() -> None:
    coordinator, nodes = Coordinator("cost"), leaves(1)
    coordinator.tick(10.0)
    for turn in range(100):
        predict(coordinator, nodes[0], f"w{turn}", since_s=8.0, pause_s=1.0)
    assert coordinator.claims.clock.queue_s == pytest.approx(2.0, rel=0.01)


def test_a_share_leaves_the_choice_among_the_oldest_and_takes_the_rest_by_age() -> None:
    coordinator, nodes = Coordinator("cost"), leaves(8)
    for index, node in enumerate(nodes):
        predict(coordinator, node, str(index), due_s=10.0 + 100 * index)  # older ones are due sooner
    assert order(coordinator, nodes) == list(reversed(range(8)))
    assert order(coordinator, nodes, Choice(share=0.5)) == [3, 2, 1, 0, 4, 5, 6, 7]
    assert order(coordinator, nodes, Choice(share=0.25)) == [1, 0, *range(2, 8)]


def test_a_window_leaves_the_choice_among_the_oldest_tokens_however_many_there_are() -> None:
    coordinator, nodes = Coordinator("cost"), leaves(8)
    for index, node in enumerate(nodes):
        predict(coordinator, node, str(index), due_s=10.0 + 100 * index)
    assert order(coordinator, nodes, Choice(window_tokens=3 * 64 + 63)) == [2, 1, 0, *range(3, 8)]
    assert order(coordinator, nodes, Choice(share=0.25, window_tokens=3 * 64)) == [1, 0, *range(2, 8)]
    assert order(coordinator, nodes, Choice(window_tokens=63)) == list(range(8))
    assert order(coordinator, nodes, Choice(window_tokens=0)) == list(range(8))
    assert order(coordinator, nodes, Choice(window_tokens=8 * 64)) == list(reversed(range(8)))


def test_what_ended_workflows_leave_goes_first_whatever_its_age_unless_nothing_is_trusted() -> None:
    coordinator, nodes = Coordinator("cost"), leaves(4)
    for index, node in enumerate(nodes):
        predict(coordinator, node, str(index), due_s=10.0)
    coordinator.apply(WorkflowUpdate(workflow_id="2", workflow_type="t", retired=True))
    for choice in (Choice(window_tokens=0), Choice(window_tokens=64), Choice(share=0.25)):
        assert order(coordinator, nodes, choice) == [2, 0, 1, 3]
    assert order(coordinator, nodes, Choice(share=0.0)) == [0, 1, 2, 3]
    coordinator.set_policy("lru")
    assert order(coordinator, nodes, Choice(window_tokens=0)) == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", ["cost", "steps", "saga"])
def test_without_trust_every_order_is_recency(policy: str) -> None:
    coordinator, nodes = Coordinator(policy), leaves(16)
    rng = random.Random(1)
    for index, node in enumerate(nodes):
        due_s, probability = rng.uniform(1, 100), rng.random()
        predict(coordinator, node, str(index), due_s=due_s, probability=probability, steps=rng.randrange(9))
    assert order(coordinator, nodes) != list(range(16))
    assert order(coordinator, nodes, Choice(share=0.0)) == list(range(16))
    assert order(coordinator, nodes) != list(range(16))


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "saga"])
def test_without_claims_every_order_is_recency(policy: str) -> None:
    coordinator, nodes = Coordinator(policy), leaves(16)
    assert order(coordinator, nodes) == list(range(16))


def test_a_leaf_that_appears_during_a_round_is_as_old_as_its_last_use() -> None:
    coordinator, nodes = Coordinator("saga"), leaves(5)
    parent = nodes.pop()  # newer than all others
    for name, node in enumerate([*nodes, parent]):
        predict(coordinator, node, str(name), due_s=10.0)
    coordinator.open_round(nodes)
    assert coordinator.priority(parent) > max(coordinator.priority(node) for node in nodes)


def test_a_round_within_another_leaves_it_as_it_was() -> None:
    nodes = leaves(4)
    coordinator = Coordinator("cost")
    coordinator.open_round(nodes, FREE_CHOICE)
    before = [coordinator.priority(node) for node in nodes]
    with coordinator.round_within():
        coordinator.open_round(nodes, Choice(share=0.0))
        assert [coordinator.priority(node) for node in nodes] != before
    assert [coordinator.priority(node) for node in nodes] == before
