"""Which contexts are copied to the host before they have to leave."""

from __future__ import annotations

import pytest

from kvflow.engine import BackupPlanner, Coordinator, PromptClaim
from kvflow.policy import ServingCosts
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.load_table import Node

DEVICE_TOKENS = 10_000
COSTS = ServingCosts(load_token_s=1e-4)
"""All of the device loads in a second."""


class Table:
    def __init__(self) -> None:
        self.coordinator = Coordinator("cost", COSTS)
        self.planner = BackupPlanner(self.coordinator, DEVICE_TOKENS)
        self.node = Node(100, Node(), backuped=False)
        self.expect(due_s=0.1)
        claim = PromptClaim(workflow_id="w", workflow_type="t", agent="a")
        self.coordinator.tag(claim, [(self.node, 100)], 0)

    def expect(self, **prediction: float) -> None:
        claims = (ClaimPrediction(agent="a", steps=0, **prediction),)
        self.coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=claims))

    def next(self, *under_way: Node) -> Node | None:
        return self.planner.next(lambda node: node in under_way)


def test_a_context_that_is_not_used_for_long_is_copied_once() -> None:
    table = Table()
    table.expect(due_s=2.0)
    assert table.next() is table.node
    assert table.next(table.node) is None
    table.node.backuped = True
    table.expect(due_s=3.0)
    assert table.next() is None


@pytest.mark.parametrize(
    "prediction",
    [{"due_s": 0.5}, {"due_s": 2.0, "probability": 0.1}, {"since_s": 0.0}],
    ids=["used soon", "hardly used again", "in use"],
)
def test_what_stays_or_is_not_wanted_is_not_copied(prediction: dict[str, float]) -> None:
    table = Table()
    table.expect(**prediction)
    assert table.next() is None


def test_what_the_host_had_no_room_for_is_tried_again_when_something_changes() -> None:
    table = Table()
    table.expect(due_s=2.0)
    assert table.next() is table.node
    table.planner.refused(table.node)
    assert table.next() is None
    table.coordinator.tick(0.25)
    assert table.next() is table.node


def test_a_context_there_is_no_room_for_holds_up_no_other() -> None:
    table = Table()
    large = Node(5_000, Node(), backuped=False)
    table.planner.order([large], until_s=600.0)
    table.expect(due_s=2.0)
    assert table.next() is large
    table.planner.refused(large)
    assert table.next() is table.node
    table.planner.cancel([large])
    table.coordinator.tick(0.25)
    assert table.next() is table.node


def test_the_context_of_a_program_that_is_held_is_copied() -> None:
    table = Table()
    table.expect(since_s=0.0)
    assert table.next() is None
    table.coordinator.claims.hold("w", 10.0)
    assert table.next() is None, "it looks ten times a second"
    table.coordinator.tick(0.25)
    assert table.next() is table.node


def test_what_has_left_is_not_copied() -> None:
    table = Table()
    table.expect(due_s=2.0)
    table.node.evicted = True
    assert table.next() is None


def test_orders_for_what_has_a_copy_or_is_over_are_not_kept() -> None:
    table = Table()
    table.planner.order([Node(100, Node(), backuped=True)], until_s=9.0)
    table.planner.order([table.node], until_s=1.0)
    table.coordinator.tick(2.0)
    table.planner.order([Node(100, Node(), backuped=False)], until_s=9.0)
    assert len(table.planner._ordered) == 1
