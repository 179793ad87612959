"""The workflow that has not started yet comes nearer as the one under way goes on, and so does a step as it runs."""

from __future__ import annotations

import pytest

from kvflow.control import ControlPlane
from kvflow.control.arrivals import Arrivals
from tests.unit.control.test_plane import Clock, claim_of, clock, plane, step, steps_of, take

__all__ = ["clock", "plane"]

AGENTS = ("plan", "code", "test", "write")


def run(plane: ControlPlane, clock: Clock, workflow: str, seconds: float = 2.0) -> list[float | None]:
    """One workflow, a step after the other; returns the first agent's steps in the next one, as told at every step."""
    told: list[float | None] = []
    for agent in AGENTS:
        _, updates = take(plane, step(agent, workflow, step_id=agent))
        told += [steps_of(update)["plan"] for update in updates if update.expected]
        clock.now_s += seconds
        take(plane, step(agent, workflow, step_id=agent, event="end", final=agent == AGENTS[-1]))
    return told


def test_the_next_workflow_comes_a_step_nearer_with_every_step(plane: ControlPlane, clock: Clock) -> None:
    run(plane, clock, "w1")
    assert run(plane, clock, "w2") == [4.0, 3.0, 2.0, 1.0]


def test_one_that_is_long_overdue_in_steps_is_as_late_again() -> None:
    arrivals = Arrivals()
    arrivals.start(0.0)
    for _ in range(4):
        arrivals.step(1)
    arrivals.start(8.0)
    left = []
    for _ in range(12):
        left.append(arrivals.left_steps)
        arrivals.step(1)
    assert left == [4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 6.0, 7.0]


def test_it_is_due_a_gap_after_the_last_start_and_when_that_has_passed_as_long_again() -> None:
    arrivals = Arrivals()
    arrivals.start(0.0)
    arrivals.start(8.0)
    assert arrivals.next_s(10.0) == 16.0
    assert arrivals.next_s(20.0) == 32.0


def test_what_is_left_of_a_step_shrinks_while_it_runs_as_far_as_such_steps_are_alike(
    plane: ControlPlane, clock: Clock
) -> None:
    for number in range(40):
        run(plane, clock, f"w{number}", seconds=8.0)
    due_s = []
    for passed_s in (0.0, 4.0, 2.0):
        clock.now_s += passed_s
        _, updates = take(plane, step("plan", "last", step_id="plan"))
        due_s.append(claim_of(next(update for update in updates if not update.expected), "code").due_s)
    assert due_s == pytest.approx([due_s[0]] * 3, abs=1.0)
