"""Faults of our own: what a prediction or a model that raises must not take with it."""

from __future__ import annotations

from contextlib import suppress

import pytest

from kvflow.control import ControlPlane, GraphBook
from kvflow.control.forecast import Forecaster
from tests.unit.control.test_plane import Clock, answer, ask, clock, plane, step, take

__all__ = ["clock", "plane"]

IDLE_S = 1801.0


def fail(*_: object, **__: object) -> None:
    """Stand in for anything that has a fault."""
    raise ZeroDivisionError


@pytest.mark.parametrize("broken", ["claims", "step_ended"])
def test_a_request_that_could_not_be_taken_is_not_waited_for(
    plane: ControlPlane, clock: Clock, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    ask(plane, "plan")
    plane.answered("w", "plan")
    with monkeypatch.context() as patch:
        patch.setattr(Forecaster, broken, fail)
        with pytest.raises(ZeroDivisionError):
            ask(plane, "code")
    clock.now_s = IDLE_S
    assert [update.retired for update in plane.expire() if not update.expected] == [True]


def test_a_failure_leaves_earlier_requests_in_flight(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(plane, "plan")
    with monkeypatch.context() as patch:
        patch.setattr(plane._workflows, "touch", fail)
        with pytest.raises(ZeroDivisionError):
            ask(plane, "plan")
    assert plane.view()[0]["next_use"]["plan"]["asked"]
    assert answer(plane, "plan") != []


def test_workflows_that_are_retired_when_learning_fails_are_told_of_all_the_same(
    plane: ControlPlane, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(plane, *(step("plan", name) for name in ("w1", "w2", "w3")))
    learn = Forecaster.workflow_ended
    turns = {"w1": learn, "w2": fail, "w3": learn}
    monkeypatch.setattr(
        Forecaster, "workflow_ended", lambda self, workflow, **how: turns[workflow.workflow_id](self, workflow, **how)
    )
    clock.now_s = IDLE_S
    with pytest.raises(ZeroDivisionError):
        plane.expire()
    assert [update.workflow_id for update in plane.expire() if update.retired] == ["w1", "w2", "w3"]
    assert len(plane) == 0


@pytest.mark.parametrize(("owner", "broken"), [(Forecaster, "claims"), (GraphBook, "find")])
def test_what_cannot_be_predicted_does_not_keep_others_from_expiring(
    plane: ControlPlane, clock: Clock, monkeypatch: pytest.MonkeyPatch, owner: type, broken: str
) -> None:
    ask(plane, "plan", "odd")
    take(plane, step("plan", "dead"))
    monkeypatch.setattr(owner, broken, fail)
    clock.now_s = IDLE_S
    retired = []
    for _ in range(3):  # it fails for the workflow, and perhaps for the next one of its type
        with suppress(ZeroDivisionError):
            retired += [update.workflow_id for update in plane.expire() if update.retired]
    assert retired == ["dead"]
