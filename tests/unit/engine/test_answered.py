"""What the scheduler knows of an answer before the control plane does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kvflow.engine import Coordinator, PromptClaim
from kvflow.engine.claim import Claim
from kvflow.engine.owners import Owners
from kvflow.policy import EvictionClass
from kvflow.predict import ClaimPrediction, WorkflowUpdate


@dataclass(eq=False)
class Leaf:
    owners: Owners | None = None
    key: range = range(64)
    parent: Any = None
    last_access_time: float = 0.0
    hit_count: int = 0
    backuped: bool = False
    evicted: bool = False


CLAIM = PromptClaim(workflow_id="w", workflow_type="t", agent="a")


def asking(
    coordinator: Coordinator,
    *,
    pause_s: float | None,
    probability: float = 0.5,
    since_s: float = 1.0,
    requests: int = 1,
) -> None:
    prediction = ClaimPrediction(
        agent="a", steps=0, since_s=since_s, pause_s=pause_s, probability=probability, requests=requests
    )
    coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=(prediction,)))


def held_by(coordinator: Coordinator) -> Claim:
    held = coordinator.claims.claim("w", "t", "a")
    assert held is not None
    return held


@pytest.fixture
def coordinator() -> Coordinator:
    coordinator = Coordinator("cost")
    coordinator.tick(10.0)
    return coordinator


def test_a_request_under_way_is_a_certain_use(coordinator: Coordinator) -> None:
    asking(coordinator, pause_s=4.0)
    held = held_by(coordinator)
    assert held.likelihood == 1.0


def test_after_the_answer_the_pause_begins(coordinator: Coordinator) -> None:
    asking(coordinator, pause_s=4.0)
    coordinator.answered(CLAIM)
    held = held_by(coordinator)
    assert held.likelihood == 0.5
    assert held.next_s(coordinator.claims.clock) == pytest.approx(4.0, abs=0.1)


def test_an_answer_changes_ranks(coordinator: Coordinator) -> None:
    asking(coordinator, pause_s=4.0)
    version = coordinator.claims.clock.version
    coordinator.answered(CLAIM)
    assert coordinator.claims.clock.version > version


def test_other_requests_under_way_keep_it_in_use(coordinator: Coordinator) -> None:
    asking(coordinator, pause_s=None)
    coordinator.answered(CLAIM)
    held = held_by(coordinator)
    assert held.since_s == 1.0


def test_answers_of_ended_workflows_change_nothing(coordinator: Coordinator) -> None:
    coordinator.answered(CLAIM)
    assert len(coordinator.claims) == 0


def test_the_same_prediction_again_starts_the_request_anew(coordinator: Coordinator) -> None:
    asking(coordinator, pause_s=4.0)
    coordinator.answered(CLAIM)
    asking(coordinator, pause_s=4.0)
    held = held_by(coordinator)
    assert held.likelihood == 1.0


def test_a_request_with_its_memory_is_not_waited_for(coordinator: Coordinator) -> None:
    """However long it runs: its role's other nodes do not become urgent by that."""
    asking(coordinator, pause_s=4.0)
    held = held_by(coordinator)
    coordinator.tag(CLAIM, [(Leaf(), 64)], 0)
    coordinator.tick(1000.0)
    clock = coordinator.claims.clock
    assert held.likelihood == 0.5
    assert held.next_s(clock) == pytest.approx(4.0 + clock.queue_s, abs=0.1)
    assert held.role.outlook(clock)[1] < 1.0


def test_a_retracted_request_is_waited_for_again(coordinator: Coordinator) -> None:
    asking(coordinator, pause_s=4.0)
    coordinator.tag(CLAIM, [(Leaf(), 64)], 0)
    coordinator.retracted(CLAIM)
    held = held_by(coordinator)
    assert held.likelihood == 1.0


def test_a_second_request_of_the_agent_is_waited_for(coordinator: Coordinator) -> None:
    asking(coordinator, pause_s=None, requests=2)
    coordinator.tag(CLAIM, [(Leaf(), 64)], 0)
    held = held_by(coordinator)
    assert held.likelihood == 1.0


def test_requests_that_run_are_not_waited_for_once_one_of_them_has_been_answered(coordinator: Coordinator) -> None:
    """Nothing more is heard of the others until they are answered: tails of the first must not outrank everything."""
    asking(coordinator, pause_s=None, requests=3)
    for _ in range(3):
        coordinator.tag(CLAIM, [(Leaf(), 64)], 0)
    held = held_by(coordinator)
    assert not held.waited_for
    asking(coordinator, pause_s=None, since_s=2.0, requests=2)
    assert not held.waited_for
    asking(coordinator, pause_s=4.0, since_s=3.0)
    assert not held.waited_for
    asking(coordinator, pause_s=4.0, since_s=9.0)
    assert held.waited_for, "one that has come since the last answer"


def test_what_requests_use_is_expected_to_be_used_again_though_nobody_knows_when(coordinator: Coordinator) -> None:
    """Of several, the pause after the last is told when only that is left; until then the others' contexts stay."""
    prediction = ClaimPrediction(agent="a", steps=None, since_s=1.0, pause_s=None, probability=0.5, requests=2)
    coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=(prediction,)))
    for _ in range(2):
        coordinator.tag(CLAIM, [(Leaf(), 64)], 0)
    held = held_by(coordinator)
    assert not held.waited_for
    assert held.outlook(coordinator.claims.clock) == (0.5, pytest.approx(coordinator.claims.clock.queue_s, abs=0.1))


def test_one_of_several_that_has_no_memory_yet_is_waited_for(coordinator: Coordinator) -> None:
    asking(coordinator, pause_s=None, requests=3)
    for _ in range(2):
        coordinator.tag(CLAIM, [(Leaf(), 64)], 0)
    coordinator.answered(CLAIM)
    asking(coordinator, pause_s=None, since_s=2.0, requests=2)
    assert held_by(coordinator).waited_for


def test_who_runs_is_not_waited_for_because_another_gave_up_that_never_had_memory(coordinator: Coordinator) -> None:
    asking(coordinator, pause_s=None, requests=2)
    coordinator.tag(CLAIM, [(Leaf(), 64)], 0)
    asking(coordinator, pause_s=4.0, since_s=2.0, requests=1)
    assert not held_by(coordinator).waited_for


def test_of_several_requests_one_that_was_retracted_is_waited_for_until_it_has_its_memory_again(
    coordinator: Coordinator,
) -> None:
    node = Leaf()
    asking(coordinator, pause_s=None, requests=2)
    for _ in range(2):
        coordinator.tag(CLAIM, [(node, 64)], 0)
    coordinator.retracted(CLAIM)
    assert held_by(coordinator).waited_for
    coordinator.tag(CLAIM, [(node, 64)], 0, first=False, again=True)
    assert not held_by(coordinator).waited_for
    coordinator.tag(CLAIM, [(node, 64)], 0, first=False)
    coordinator.answered(CLAIM)
    asking(coordinator, pause_s=4.0, since_s=2.0, requests=1)
    assert not held_by(coordinator).waited_for


def test_what_is_expected_by_time_alone_is_claimed(coordinator: Coordinator) -> None:
    node = Leaf()
    asking(coordinator, pause_s=4.0)
    coordinator.tag(CLAIM, [(node, 64)], 0)
    prediction = ClaimPrediction(agent="a", steps=None, due_s=16.0, probability=0.7)
    coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=(prediction,)))
    assert coordinator.class_of(node) is EvictionClass.TAIL
    coordinator.rank(node)
    assert coordinator.class_of(node) is EvictionClass.TAIL


def test_a_retracted_request_that_starts_again_is_ranked_by_what_comes_after_it_at_once(
    coordinator: Coordinator,
) -> None:
    node = Leaf()
    asking(coordinator, pause_s=40.0)
    coordinator.tag(CLAIM, [(node, 64)], 0)
    started = coordinator.rank(node)
    coordinator.retracted(CLAIM)
    assert coordinator.rank(node) > started
    coordinator.tag(CLAIM, [(node, 64)], 0, first=False)
    assert coordinator.rank(node) == started


def test_a_longer_context_is_known_on_all_nodes_of_the_tail_at_once(coordinator: Coordinator) -> None:
    first, second = Leaf(), Leaf()
    asking(coordinator, pause_s=4.0)
    coordinator.tag(CLAIM, [(first, 64)], 0)
    assert coordinator.standing(first).context_tokens == 64
    coordinator.tag(CLAIM, [(second, 128), (first, 64)], 0, first=False)
    assert coordinator.standing(first).context_tokens == coordinator.standing(second).context_tokens == 128


def test_what_a_request_at_another_replica_will_use_is_not_waited_for_here() -> None:
    here, there = Coordinator("cost"), Coordinator("cost")
    for replica in (here, there):
        replica.claims.replicated = True
        replica.tick(10.0)
        asking(replica, pause_s=4.0)
    here.asked(CLAIM)
    assert held_by(here).waited_for
    assert held_by(here).likelihood == 1.0
    assert not held_by(there).waited_for
    assert held_by(there).likelihood == 0.5
    assert held_by(there).next_s(there.claims.clock) > 4.0
    for replica in (here, there):  # another request, which comes to neither of them yet
        prediction = ClaimPrediction(agent="a", steps=0, since_s=12.0, pause_s=4.0)
        replica.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=(prediction,)))
    assert not held_by(here).waited_for
