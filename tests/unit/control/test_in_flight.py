"""Requests in flight, and when an agent whose request was answered is expected back."""

from __future__ import annotations

from kvflow.control import Context, ControlPlane
from kvflow.graph import END
from kvflow.hints import DecodedFact
from tests.unit.control.test_plane import Clock, answer, ask, claim_of, clock, plane, step, take, tool

__all__ = ["clock", "plane"]


def test_a_request_is_in_flight_until_it_is_answered(plane: ControlPlane, clock: Clock) -> None:
    clock.now_s = 5.0
    assert claim_of(ask(plane, "code"), "code").since_s == 5.0
    clock.now_s = 8.0
    [update] = answer(plane, "code")
    answered = claim_of(update, "code")
    assert answered.since_s is None
    assert answered.due_s is not None
    assert answered.due_s >= 8.0


def test_facts_without_a_request_put_nothing_in_flight(plane: ControlPlane) -> None:
    _, [update] = take(plane, step("code"))
    assert claim_of(update, "code").since_s is None
    assert answer(plane, "code") == []


def test_only_the_last_step_started_is_that_of_the_request(plane: ControlPlane) -> None:
    take(plane, step("plan"), step("code"), tool("start"), with_request=True)
    assert answer(plane, "plan") == []
    assert answer(plane, "code") != []


def test_an_agent_with_several_requests_is_in_flight_until_the_last_is_answered(
    plane: ControlPlane, clock: Clock
) -> None:
    ask(plane, "code", step_id="s")
    clock.now_s = 2.0
    take(plane, step("code", step_id="s"), with_request=True)
    [update] = answer(plane, "code")
    assert claim_of(update, "code").since_s == 2.0  # the other one is still under way
    [update] = answer(plane, "code")
    assert claim_of(update, "code").since_s is None
    assert answer(plane, "code") == []


def test_answers_of_workflows_that_have_ended_change_nothing(plane: ControlPlane) -> None:
    ask(plane, "code")
    take(plane, step(END, final=True))
    assert answer(plane, "code") == []
    assert answer(plane, "code", "stranger") == []


def test_requests_of_the_agent_end_its_pause_and_teach_how_long_it_was(plane: ControlPlane, clock: Clock) -> None:
    for turn in range(40):
        ask(plane, "code", step_id=f"s{turn}")
        clock.now_s += 1.0
        plane.answered("w", "code")
        clock.now_s += 20.0
    ask(plane, "code", step_id="last")
    [update] = answer(plane, "code")
    due_s = claim_of(update, "code").due_s
    assert due_s is not None
    assert 10.0 < due_s - clock.now_s < 40.0


def test_a_tool_is_waited_for_as_long_as_it_took_before_by_verb(plane: ControlPlane, clock: Clock) -> None:
    ask(plane, "code")
    plane.answered("w", "code")
    for verb, seconds in [("test", 60.0), ("ls", 0.1)] * 30:
        take(plane, tool("start", verb=verb))
        clock.now_s += seconds
        take(plane, tool("end", verb=verb))
    left_s = {}
    for verb in ("test", "ls"):
        _, updates = take(plane, tool("start", verb=verb))
        due_s = claim_of(updates[-1], "code").due_s
        assert due_s is not None
        left_s[verb] = due_s - clock.now_s
        take(plane, tool("end", verb=verb))
    assert left_s["test"] > 20.0
    assert left_s["ls"] < 2.0


def test_what_is_overdue_is_predicted_anew(plane: ControlPlane, clock: Clock) -> None:
    ask(plane, "code")
    [before] = answer(plane, "code")
    due_s = claim_of(before, "code").due_s
    assert due_s is not None
    assert plane.expire() == []
    clock.now_s = due_s + 10.0
    [after] = [update for update in plane.expire() if update.workflow_id == "w"]
    later_s = claim_of(after, "code").due_s
    assert later_s is not None
    assert later_s > clock.now_s


def test_the_answer_to_an_earlier_workflow_of_the_same_id_is_none_to_this_one(plane: ControlPlane) -> None:
    def asked() -> Context:
        [context] = plane.take([DecodedFact(action_id="", action_type="", fact=step("code"))], with_request=True).asked
        return context

    earlier = asked()
    take(plane, step(END))
    later = asked()
    assert not plane.answered("w", "code", earlier)
    assert plane.view()[0]["next_use"]["code"]["asked"]
    assert plane.answered("w", "code", later)
    assert not plane.view()[0]["next_use"]["code"]["asked"]
