"""Pins: who gets one, what lifts it, and those nobody lifts: dead clients, tools that never answer, clock jumps."""

from __future__ import annotations

from kvflow.config import Settings
from kvflow.control import ControlPlane
from kvflow.engine import Coordinator
from kvflow.hints import Status
from tests.unit.control.test_plane import Clock, clock, pinned, plane, step, take, tool

__all__ = ["clock", "plane"]

TTL_S = Settings().pin.max_ttl_s
IDLE_S = Settings().intake.workflow_idle_s


def test_a_tool_pins_its_agent_until_it_ends(plane: ControlPlane) -> None:
    take(plane, step("code"))
    assert pinned(take(plane, tool("start"))[1][-1]) == {"code"}
    assert pinned(take(plane, tool("end"))[1][-1]) == set()


def test_parallel_calls_of_one_tool_pin_until_the_last_one_ends(plane: ControlPlane) -> None:
    take(plane, step("code"), tool("start", call_id="1"), tool("start", call_id="2"))
    assert take(plane, tool("end", call_id="1"))[1] == []  # still pinned: nothing changed
    assert pinned(take(plane, tool("end", call_id="2"))[1][-1]) == set()


def test_a_pin_expires_and_a_long_one_is_clipped(plane: ControlPlane, clock: Clock) -> None:
    take(plane, step("code"))
    outcomes, _ = take(plane, tool("start", expected_s=5000))
    assert outcomes[0].status is Status.CLIPPED
    assert "600" in outcomes[0].reason
    clock.now_s = 599
    assert all(pinned(update) == {"code"} for update in plane.expire())
    clock.now_s = 601
    [update] = plane.expire()
    assert pinned(update) == set()


def test_the_next_step_of_the_agent_lifts_its_pin(plane: ControlPlane) -> None:
    take(plane, step("code", step_id="s1"), tool("start"))
    _, updates = take(plane, step("code", step_id="s2"))
    assert pinned(updates[-1]) == set()


def test_parallel_steps_of_an_agent_wait_for_tools_of_their_own(plane: ControlPlane) -> None:
    for name in ("s1", "s2"):
        take(plane, step("code", step_id=name), tool("start", call_id=name, step_id=name))
    _, updates = take(plane, step("code", step_id="s1"))
    assert not updates, "the other step still waits"
    [outcome], [update] = take(plane, tool("end", call_id="s2", step_id="s2"))
    assert outcome.status is Status.ACCEPTED, "its call is still known"
    assert pinned(update) == set()
    [outcome], _ = take(plane, tool("end", call_id="s1", step_id="s1"))
    assert outcome.status is Status.MISSING, "its step has gone on"


def test_requests_of_parallel_steps_are_no_new_steps(plane: ControlPlane) -> None:
    for _ in range(20):
        take(plane, step("plan", step_id="p"), step("code", step_id="c"))
    [workflow] = plane.view()
    assert workflow["steps_taken"] == {"code": 1, "plan": 1}


def test_of_steps_that_never_end_the_latest_are_remembered(plane: ControlPlane) -> None:
    for number in range(2000):
        take(plane, step("code", step_id=str(number)))
    [workflow] = plane._workflows
    assert len(workflow.started_s) == 1024


def test_pins_are_bounded_and_need_an_agent_that_has_run(clock: Clock) -> None:
    plane = ControlPlane(Settings(pin={"max_calls": 2}), clock)
    take(plane, step("code"))
    outcomes, _ = take(plane, tool("start", agent="stranger"), *(tool("start", call_id=str(i)) for i in range(3)))
    assert [outcome.status.value for outcome in outcomes] == ["accepted"] * 4
    [workflow] = plane._workflows
    assert [*workflow.waits] == [*workflow.pins] == [("code", "1"), ("code", "2")], "the latest"


def test_a_tool_that_never_answers_holds_its_pin_no_longer_than_allowed(plane: ControlPlane, clock: Clock) -> None:
    take(plane, step("code"), tool("start", expected_s=10 * TTL_S))
    clock.now_s += TTL_S + 0.25
    updates = plane.expire()
    assert [pinned(update) for update in updates if not update.expected] == [set()]
    clock.now_s += 1.0
    assert all(not pinned(update) for update in plane.expire())


def test_a_client_that_dies_leaves_nothing_behind(plane: ControlPlane, clock: Clock) -> None:
    take(plane, step("code"), tool("start", expected_s=10.0))
    clock.now_s += IDLE_S + 1.0
    [update] = [update for update in plane.expire() if not update.expected]
    assert update.retired
    assert len(plane) == 0


def test_after_a_jump_of_the_clock_pins_have_expired_once_and_what_follows_is_as_ever(
    plane: ControlPlane, clock: Clock
) -> None:
    take(plane, step("code"), tool("start", expected_s=10.0))
    clock.now_s += TTL_S + 1.0
    assert [pinned(update) for update in plane.expire() if not update.expected] == [set()]
    _, updates = take(plane, step("code"), tool("start", expected_s=10.0))
    assert pinned(updates[-1]) == {"code"}


def test_schedulers_never_go_back_in_time() -> None:
    coordinator = Coordinator("cost")
    coordinator.tick(100.0)
    version = coordinator.claims.clock.version
    coordinator.tick(40.0)
    assert coordinator.claims.clock.now_s == 100.0
    assert coordinator.claims.clock.version == version


def test_a_request_in_a_tool_ends_no_wait_where_the_client_says_when_tools_end(
    plane: ControlPlane, clock: Clock
) -> None:
    take(
        plane, step("code", step_id="s"), tool("start", step_id="s", call_id="0"), tool("end", call_id="0", took_s=9.0)
    )
    take(plane, tool("start", step_id="s", call_id="1"))
    for _ in range(2):
        clock.now_s += 0.5
        take(plane, step("code", step_id="s"))  # the tool asks the model itself
    [workflow] = plane._workflows
    assert [*workflow.pins] == [("code", "1")]
    clock.now_s += 59.0
    [outcome], _ = take(plane, tool("end", step_id="s", call_id="1", took_s=60.0))
    assert outcome.status is Status.ACCEPTED
    assert not workflow.pins
    take(plane, tool("start", step_id="s", call_id="2"))
    take(plane, step("code", step_id="s", event="end"))
    assert not workflow.waits, "its step is over"


def test_what_a_tool_took_is_learned_though_nobody_waits_for_it_any_more(plane: ControlPlane, clock: Clock) -> None:
    for number in range(20):
        take(plane, step("code", step_id=f"s{number}"), tool("start", step_id=f"s{number}", call_id=f"{number}"))
        take(plane, step("code", step_id=f"s{number}", event="end"))
        clock.now_s += 60.0
        [outcome], _ = take(plane, tool("end", call_id=f"{number}", took_s=60.0))
        assert outcome.status is Status.MISSING
    known = plane.forecaster.tools.of("pytest")
    assert 40.0 < known.quantile_s(0.5) < 90.0
