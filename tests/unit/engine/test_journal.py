"""The latest decisions, in words and in bounded memory."""

from __future__ import annotations

from kvflow.engine import Coordinator, Journal, PromptClaim
from kvflow.policy import EvictionClass
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.test_prefetch import Node


def claimed(coordinator: Coordinator, *workflows: str) -> Node:
    node = Node(64, Node())
    for name in workflows:
        claims = (ClaimPrediction(agent="a", steps=1, probability=0.5, due_s=12.0),)
        coordinator.apply(WorkflowUpdate(workflow_id=name, workflow_type="t", claims=claims))
        coordinator.tag(PromptClaim(workflow_id=name, workflow_type="t", agent="a"), [(node, 64)], 0)
    return node


def test_an_eviction_says_whose_it_was_and_what_was_expected() -> None:
    coordinator = Coordinator("cost")
    journal = Journal(coordinator.claims.clock, 10)
    coordinator.tick(2.0)
    journal.evicted(claimed(coordinator, "w"), "device", EvictionClass.TAIL, 64)
    (entry,) = journal.read()
    assert entry["owners"] == (("w", "a"),)
    assert (entry["at_s"], entry["event"], entry["tokens"]) == (2.0, "evicted", 64)
    assert entry["reason"] == "from the device, as tail; a use is expected in 10.02 s with probability 0.50"


def test_what_has_no_copy_is_said_to_be_lost() -> None:
    coordinator = Coordinator("cost")
    journal = Journal(coordinator.claims.clock, 10)
    journal.evicted(Node(64, Node(), backuped=False), "device", EvictionClass.UNCLAIMED, 64)
    assert journal.read()[0]["reason"] == (
        "from the device, as unclaimed, without a copy on the host; no further use is expected"
    )


def test_it_is_read_by_workflow_latest_last_and_keeps_so_many() -> None:
    coordinator = Coordinator("cost")
    journal = Journal(coordinator.claims.clock, 3)
    for number in range(5):
        coordinator.tick(float(number))
        journal.loaded("even" if number % 2 == 0 else "odd", "a", number)
    assert [entry["tokens"] for entry in journal.read()] == [2, 3, 4]
    assert [entry["tokens"] for entry in journal.read("even")] == [2, 4]
    assert [entry["tokens"] for entry in journal.read(limit=1)] == [4]
    assert journal.read("nobody") == []


def test_one_that_keeps_nothing_costs_nothing() -> None:
    coordinator = Coordinator("cost")
    journal = Journal(coordinator.claims.clock, 0)
    journal.evicted(claimed(coordinator, "w"), "device", EvictionClass.TAIL, 64)
    assert journal.read() == []


def test_waits_are_told_in_seconds() -> None:
    journal = Journal(Coordinator("cost").claims.clock, 10)
    journal.stalled("w", "a", 0.25)
    journal.admitted("w", 100, 3.0)
    assert [(entry["event"], entry["seconds"]) for entry in journal.read("w")] == [("stalled", 0.25), ("let in", 3.0)]
