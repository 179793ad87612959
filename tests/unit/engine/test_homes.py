"""Where a workflow's requests belong: to one program, at one replica, until admission is given up."""

from __future__ import annotations

from kvflow.engine import PromptClaim
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.test_claims import FakeNode
from tests.unit.engine.test_programs import Table


def elsewhere(table: Table, workflow: str) -> None:
    """A program asks again, and SGLang sends its request to another replica."""
    since_s = table.coordinator.claims.clock.now_s
    claims = (ClaimPrediction(agent="a", steps=0, since_s=since_s, pause_s=2.0),)
    table.coordinator.apply(WorkflowUpdate(workflow_id=workflow, workflow_type="t", claims=claims))


def test_a_program_whose_request_is_at_another_replica_gives_its_place_to_one_that_is_here() -> None:
    table = Table()
    table.coordinator.claims.replicated = True
    table.start("moved", 60_000)
    table.coordinator.tag(PromptClaim(workflow_id="moved", workflow_type="t", agent="a"), [(FakeNode(), 60_000)], 0)
    table.answer("moved", due_s=table.coordinator.claims.clock.now_s + 1.0)
    table.start("runs", 20_000)
    elsewhere(table, "moved")
    waits = table.ask("waits", 50_000)
    assert table.allowed(waits) == [], "its request may be on its way"
    table.coordinator.tick(5.0)
    assert table.allowed(waits) == ["waits"]


def test_a_workflow_stays_in_the_program_that_its_first_request_named() -> None:
    table = Table()
    table.ask("child", 60_000, program="mid", key="first")
    assert table.allowed("first") == ["first"]
    table.programs.started("first")
    table.ask("other", 10_000)
    assert table.allowed("other") == ["other"]
    table.programs.started("other")
    table.answer("first")
    table.coordinator.apply(
        WorkflowUpdate(workflow_id="child", workflow_type="t", claims=(ClaimPrediction(agent="a", steps=0, due_s=1.0),))
    )
    again = table.ask("child", 61_000, program="root", key="again")  # what it is below has asked meanwhile
    assert table.allowed(again) == ["again"]
    assert table.programs.known == 2
    table.programs.started("again")
    table.answer("again")
    table.end("child")
    assert table.allowed(table.ask("more", 1_000)) == ["more"]
    table.coordinator.tick(10.0)
    table.allowed(table.ask("last", 99_000))
    assert table.programs.known == 3, "it is forgotten with its program"
    table.ask("child", 1_000, program="root", key="new")
    assert "root" in table.programs._programs


def test_once_given_up_nobody_is_held_or_put_off() -> None:
    table = Table()
    table.start("runs", 60_000)
    waits = table.ask("waits", 60_000)
    assert table.allowed(waits) == []
    held = table.coordinator.claims.claim_of("waits", "a")
    assert held is not None
    assert held.held_s > 0
    table.programs.give_up()
    assert held.held_s == 0
    assert table.programs.at_rest
    assert (table.programs.known, table.programs.held) == (0, 0)
