"""Pins that nobody lifts: clients that die, tools that never answer, clocks that jump."""

from __future__ import annotations

from kvflow.config import Settings
from kvflow.control import ControlPlane
from kvflow.engine import Coordinator
from tests.unit.control.test_plane import Clock, clock, pinned, plane, step, take, tool

__all__ = ["clock", "plane"]

TTL_S = Settings().pin.max_ttl_s
IDLE_S = Settings().intake.workflow_idle_s


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
