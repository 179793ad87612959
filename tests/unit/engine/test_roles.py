"""Roles: no more of them are remembered than may be, and those that are not serve their claims all the same."""

from __future__ import annotations

import pytest

from kvflow.engine import Coordinator, PromptClaim, claims
from kvflow.policy import EvictionClass
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.load_table import Node

MOST = 60


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    monkeypatch.setattr(claims, "_MAX_ROLES", MOST)
    return Coordinator("steps")


def announce(coordinator: Coordinator, name: str) -> None:
    """A workflow of a type of its own."""
    prediction = (ClaimPrediction(agent="a", steps=3),)
    coordinator.apply(WorkflowUpdate(workflow_id=name, workflow_type=name, claims=prediction))


def remembered(coordinator: Coordinator) -> list[str]:
    return [workflow_type for workflow_type, _ in coordinator.claims._roles]


def test_the_oldest_role_that_nobody_claims_is_forgotten(coordinator: Coordinator) -> None:
    announce(coordinator, "claimed")
    for number in range(MOST + 10):
        coordinator.claims.role(str(number), "a")
    assert len(remembered(coordinator)) == MOST
    assert "claimed" in remembered(coordinator)
    assert {str(number) for number in range(11, MOST + 10)} < set(remembered(coordinator))


def test_where_all_are_claimed_a_further_one_is_not_remembered_and_works(coordinator: Coordinator) -> None:
    for number in range(MOST):
        announce(coordinator, f"old {number}")
    tips = {name: Node(100) for name in ("new", "newer")}
    for name, tip in tips.items():
        announce(coordinator, name)
        coordinator.tag(PromptClaim(workflow_id=name, workflow_type=name, agent="a"), [(tip, 100)], 100)
    assert len(remembered(coordinator)) == MOST
    assert {coordinator.rank(tip) for tip in tips.values()} == {(EvictionClass.FIXED, -3)}
    claim = coordinator.claims.claim_of("new", "a")
    assert claim is not None
    assert [prompt.tip for prompt in claim.role.prompts.values()] == [tips["new"]]
    coordinator.flushed()
    assert [prompt.tip for prompt in claim.role.prompts.values()] == [None]
    coordinator.apply(WorkflowUpdate(workflow_id="old 0", workflow_type="old 0", retired=True))
    for number in range(4):
        announce(coordinator, f"newest {number}")
    assert "old 0" not in remembered(coordinator)
    assert len(remembered(coordinator)) == MOST


def test_not_all_are_looked_at_to_find_one_that_can_be_forgotten(coordinator: Coordinator) -> None:
    for number in range(MOST):
        if number == 50:
            coordinator.claims.role("idle", "a")
        else:
            announce(coordinator, str(number))
    for name in ("first", "second", "third"):
        coordinator.claims.role(name, "a")
        assert name not in remembered(coordinator)
    coordinator.claims.role("fourth", "a")
    assert "idle" not in remembered(coordinator)
    assert "fourth" in remembered(coordinator)


def test_an_agent_that_is_not_expected_any_more_and_holds_nothing_is_forgotten(coordinator: Coordinator) -> None:
    def expect(*agents: str) -> None:
        predictions = tuple(ClaimPrediction(agent=agent, steps=3) for agent in agents)
        coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=predictions))

    expect("first", "second", "third")
    node = Node(64)
    coordinator.tag(PromptClaim(workflow_id="w", workflow_type="t", agent="first"), [(node, 64)], 0, first=True)
    expect("third", "fourth")
    assert (coordinator.claims.of("w") or {}).keys() == {"first", "third", "fourth"}, "the first one has a context"
    assert coordinator.claims.contexts == 3
