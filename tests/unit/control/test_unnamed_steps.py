"""What is learned from clients that neither name nor end their steps."""

from __future__ import annotations

import pytest

from kvflow.control import ControlPlane
from tests.unit.control.test_plane import Clock, ask, clock, plane

__all__ = ["clock", "plane"]


def test_steps_that_are_neither_named_nor_ended_teach_how_long_they_take(plane: ControlPlane, clock: Clock) -> None:
    for _ in range(30):
        ask(plane, "plan")
        clock.now_s += 0.5
        plane.answered("w", "plan")
        ask(plane, "code")
        clock.now_s += 0.5
        plane.answered("w", "code")
    assert plane.forecaster.pace.typical_s("review", "plan") == pytest.approx(0.5, abs=0.2)


def test_a_step_that_is_still_in_flight_when_the_next_one_starts_teaches_nothing(
    plane: ControlPlane, clock: Clock
) -> None:
    before_s = plane.forecaster.pace.typical_s("review", "plan")
    ask(plane, "plan")
    clock.now_s += 0.01
    ask(plane, "code")
    assert plane.forecaster.pace.typical_s("review", "plan") == before_s
