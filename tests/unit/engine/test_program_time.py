"""What programs have been given: their time, their room, and what is learned from it."""

from __future__ import annotations

import pytest

from kvflow.engine import PromptClaim
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.test_claims import FakeNode
from tests.unit.engine.test_programs import Table


def test_a_lull_is_nobodys_turn_and_nobodys_wait() -> None:
    table = Table()
    table.start("ended", 60_000)
    table.start("keeps its place", 1000)
    table.answer("keeps its place", due_s=31.0)
    table.coordinator.tick(30.0)
    table.answer("ended")
    table.end("ended")
    table.coordinator.tick(8 * 3600.0)
    table.start("a", 60_000)
    table.ask("large", 70_000)
    table.allowed("large")
    table.coordinator.tick(8 * 3600.0 + 60.0)
    table.ask("small", 10_000)
    assert table.allowed("large", "small") == [], "programs take half a minute, so the large one is overdue"


def test_a_request_that_was_given_up_does_not_wait_on() -> None:
    table = Table()
    table.start("a", 60_000)
    table.ask("b", 60_000)
    table.allowed("b")
    table.programs.left("b", 0)
    table.answer("a", due_s=3601.0)
    table.coordinator.tick(3600.0)
    table.start("c", 1000)
    table.ask("b", 60_000)
    assert table.allowed("b") == ["b"]
    assert table.programs._programs["b"].view.held_s < 1.0


def test_programs_that_were_never_answered_say_nothing_of_how_long_programs_take() -> None:
    """Those whose clients time out while they are held took no time at all, and would have everybody overdue."""
    table = Table()
    table.start("a", 60_000)
    for number in range(5):
        name = f"gives up {number}"
        table.ask(name, 60_000)
        assert table.allowed(name) == []
        table.coordinator.tick(60.0 * (number + 1))
        table.programs.left(name, 0)
        table.end(name)
        table.ask("b", 60_000)
        table.allowed("b")
        table.programs.left("b", 0)
    assert table.programs._typical.program_s == 0


def test_requests_of_one_agent_at_a_time_take_room_each() -> None:
    table = Table()
    prediction = ClaimPrediction(agent="searcher", steps=0, since_s=0.0)
    table.coordinator.apply(WorkflowUpdate(workflow_id="fan", workflow_type="t", claims=(prediction,)))
    claim = PromptClaim(workflow_id="fan", workflow_type="t", agent="searcher")
    for key in range(4):
        table.programs.arrived(key, claim, 30_000)
    assert table.allowed(*range(4)) == [0, 1, 2, 3], "somebody has to run"
    for key in range(4):
        table.programs.started(key)
        table.coordinator.tag(claim, [(FakeNode(key=range(30_000)), 30_000)], 0)
    table.ask("b", 30_000)
    assert table.allowed("b") == []


def test_what_they_go_on_from_takes_room_once() -> None:
    table = Table()
    said = range(30_000 // 64)
    for key in range(4):
        table.ask("a", 31_000, key=str(key), digests=[*said, 10_000 + key])
    table.allowed(*"0123")
    for key in range(4):
        table.programs.started(str(key))
    table.ask("b", 30_000)
    assert table.allowed("b") == ["b"]


def test_retractions_of_one_moment_teach_once() -> None:
    table = Table()
    keys = [table.ask(str(number), 1000) for number in range(20)]
    table.allowed(*keys)
    for key in keys:
        table.programs.started(key)
    for key in keys:
        table.programs.retracted(key)
    table.programs.retracted("of a request that says nothing")
    for key in keys:
        table.answer(key)
        table.end(key)
    keys = [table.ask(name, 40_000) for name in "ab"]
    assert table.allowed(*keys) == ["a", "b"]


def test_the_wait_for_ones_turn_is_not_the_queues() -> None:
    table = Table()
    table.start("a", 60_000)
    table.ask("b", 60_000)
    waits = ClaimPrediction(agent="a", steps=0, since_s=0.0, pause_s=1.0)
    table.coordinator.apply(WorkflowUpdate(workflow_id="b", workflow_type="t", claims=(waits,)))
    assert table.allowed("b") == []
    table.coordinator.tick(300.0)
    table.answer("a")
    table.end("a")
    assert table.allowed("b") == ["b"]
    table.programs.started("b")
    table.coordinator.tick(301.0)
    claim = PromptClaim(workflow_id="b", workflow_type="t", agent="a")
    table.coordinator.tag(claim, [(FakeNode(key=range(60_000)), 60_000)], 0)
    assert 0 < table.coordinator.claims.clock.queue_s <= 1.0


def test_a_programs_time_is_booked_by_what_it_did_meanwhile() -> None:
    def served_s(table: Table) -> float:
        return table.programs._programs["a"].view.served_s

    table = Table()
    table.start("a", 1000)
    table.coordinator.tick(100.0)
    table.answer("a", due_s=1100.0)
    assert served_s(table) == 100.0, "it has computed all the time"
    table.coordinator.tick(1100.0)
    table.ask("a", 1000)
    table.allowed("a")
    assert 100.0 <= served_s(table) < 110.0, "a long tool has served nobody"


@pytest.mark.parametrize("lost", [False, True])
def test_contexts_that_leave_although_their_program_has_a_place_teach_that_less_fits(lost: bool) -> None:
    table = Table()
    table.start("a", 40_000)
    node = FakeNode(key=range(40_000), parent=FakeNode(), backuped=not lost, evicted=lost)
    for second in range(10):
        table.coordinator.tag(PromptClaim(workflow_id="a", workflow_type="t", agent="a"), [(node, 40_000)], 0)
        table.answer("a", due_s=second + 1.0)
        table.coordinator.tick(second + 1.0)
        table.start("a", 40_100)
    table.answer("a")
    table.end("a")
    keys = [table.ask(name, 46_000) for name in "bc"]
    assert table.allowed(*keys) == (["b"] if lost else ["b", "c"])


def interrupted() -> Table:
    """Two of three programs that fit decode, and the third one has lost its memory in the middle of its answer."""
    table = Table()
    keys = [table.ask(name, 30_000) for name in "abc"]
    assert table.allowed(*keys) == keys
    for key in keys:
        table.programs.started(key)
    for second in range(8):
        table.coordinator.tick(second + 1.0)
        table.programs.started("c")
        table.programs.retracted("c")
    table.programs.arrived("c", PromptClaim(workflow_id="c", workflow_type="t", agent="a"), 32_000)
    return table


def test_an_answer_goes_on_however_many_others_live() -> None:
    table = interrupted()
    for second in range(20):
        table.coordinator.tick(second + 10.0)
        assert table.allowed("c") == ["c"]
    assert table.programs.held == 0
    table.programs.started("c")
    table.programs.left("c", 2_000)
    assert table.allowed(table.ask("d", 1000), table.ask("c", 32_000)) == ["d"], "its next prompt has to wait its turn"


def test_who_is_to_go_on_with_an_answer_is_not_expected_later() -> None:
    table = interrupted()
    table.programs._programs["c"].view.admitted = False  # it has made way for one that waited longest
    table.allowed(table.ask("d", 60_000), "c")
    held_s = {name: claim.held_s for name in "cd" for claim in (table.coordinator.claims.of(name) or {}).values()}
    assert held_s["c"] == 0 < held_s["d"]


def test_what_an_interrupted_request_has_generated_takes_room() -> None:
    table = interrupted()
    table.allowed("c")
    assert table.programs._programs["c"].view.live_tokens >= 32_000


def test_others_wait_for_room_beside_an_answer_that_is_to_go_on() -> None:
    table = interrupted()
    table.answer("a")
    table.end("a")
    assert table.allowed(table.ask("d", 30_000), "c") == ["c"]
    table.programs.left("c", 0)  # given up
    table.end("c")
    assert table.allowed("d") == ["d"]


def test_an_answer_that_does_not_fit_alone_goes_on_and_holds_up_nobody_for_ever() -> None:
    table = Table()
    table.start("a", 120_000)
    table.programs.retracted("a")
    assert table.allowed("a", table.ask("b", 1000)) == ["a"]
    table.programs.started("a")
    table.answer("a")
    table.end("a")
    assert table.allowed("b") == ["b"]
