"""The latest decisions, in words and in bounded memory."""

from __future__ import annotations

from kvflow.engine import Coordinator, Journal, PromptClaim
from kvflow.engine.stalls import Stalls
from kvflow.policy import EvictionClass
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.load_table import Node


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
    journal.stalled("w", "a", "r", 0.25)
    journal.admitted(["w"], 100, 3.0)
    assert [(entry["event"], entry["seconds"]) for entry in journal.read("w")] == [("stalled", 0.25), ("let in", 3.0)]


def test_waits_for_loads_add_up_beyond_the_entries_that_are_kept() -> None:
    coordinator = Coordinator("cost")
    journal = Journal(coordinator.claims.clock, 1)
    for number, (workflow, request) in enumerate((("w", "r1"), ("v", "r2"), ("w", "r3"), ("w", "r1"))):
        coordinator.tick(float(number))
        journal.stalled(workflow, "a", request, 0.25)
    assert len(journal.read()) == 1
    stalled = journal.stalls.read()
    assert stalled["workflows"] == [
        {"workflow_id": "w", "requests": 2, "seconds": 0.75},
        {"workflow_id": "v", "requests": 1, "seconds": 0.25},
    ]
    assert [stall["request_id"] for stall in stalled["requests"]] == ["r2", "r3", "r1"], "a retracted one waits again"
    assert stalled["requests"][-1] == {
        "request_id": "r1",
        "workflow_id": "w",
        "agent": "a",
        "at_s": 3.0,
        "seconds": 0.5,
    }
    assert [stall["request_id"] for stall in journal.stalls.read("w", limit=1)["requests"]] == ["r1"]
    assert journal.stalls.read("nobody") == {"workflows": [], "requests": []}


def test_of_workflows_and_requests_without_end_the_latest_are_kept() -> None:
    stalls = Stalls()
    for number in range(5000):
        stalls.add("always" if number % 2 else f"w{number}", "a", f"r{number}", float(number), 0.5)
    kept = stalls.read(limit=10_000)
    assert kept["workflows"][0] == {"workflow_id": "always", "requests": 2500, "seconds": 1250.0}
    assert len(kept["workflows"]) == 2501
    assert [stall["request_id"] for stall in kept["requests"]] == [f"r{number}" for number in range(5000 - 256, 5000)]
    for number in range(5000):
        stalls.add(f"v{number}", "a", f"q{number}", 0.0, 0.5)
    assert len(stalls.read(limit=10_000)["workflows"]) == 4096
