"""Pins that last as long as Continuum would keep a context: ``pin.ttl`` is ``learned``."""

from __future__ import annotations

import math

import pytest

from kvflow.config import Settings
from kvflow.control import ControlPlane
from tests.unit.control.test_plane import Clock, clock, step, take, tool

__all__ = ["clock"]


@pytest.fixture
def plane(clock: Clock) -> ControlPlane:
    """Of a server where requests wait for three seconds."""
    plane = ControlPlane(Settings(pin={"ttl": "learned"}), clock)
    plane.forecaster.queue_s = 3.0
    return plane


def pinned_s(plane: ControlPlane, clock: Clock, **fields: object) -> float:
    """How long a call's pin is to last."""
    take(plane, step("code"), tool("start", **fields))
    [workflow] = plane._workflows
    return max(workflow.pins.values(), default=clock.now_s) - clock.now_s


def test_a_pin_lasts_as_long_as_pays_by_what_is_known_of_its_tool(plane: ControlPlane, clock: Clock) -> None:
    assert pinned_s(plane, clock) == pytest.approx(math.log(3)), "nothing is known: it takes a second on average"
    for _ in range(125):
        take(plane, step("code"), tool("start"))
        clock.now_s += 0.2
        take(plane, tool("end"))
    assert pinned_s(plane, clock) == pytest.approx(0.2, rel=0.25)
    assert pinned_s(plane, clock, expected_s=7.0) == pytest.approx(7.0), "what the client says counts for more"


def test_nothing_is_pinned_where_nobody_waits_and_loads_take_no_time(plane: ControlPlane, clock: Clock) -> None:
    plane.forecaster.queue_s = 0.0
    assert pinned_s(plane, clock) == 0.0
    plane.forecaster.reload_s = 4.0
    assert pinned_s(plane, clock) == pytest.approx(math.log(4))
