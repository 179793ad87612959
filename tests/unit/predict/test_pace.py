from __future__ import annotations

import math
import random

import pytest

from kvflow.predict import Pace
from kvflow.predict.pace import COLD_START_S


def test_before_anything_was_seen():
    pace = Pace()
    assert pace.step_s("w", "t", "a") == pace.spread_s("t", "a") == COLD_START_S
    assert pace.factor("w") == 1


def test_mean_and_spread_are_learned():
    chance = random.Random(4)
    pace = Pace()
    for index in range(500):
        pace.observe_step(f"w{index}", "t", "slow", chance.gauss(10, 2))
        pace.observe_step(f"w{index}", "t", "quick", chance.gauss(1, 0.1))
    assert pace.typical_s("t", "slow") == pytest.approx(10, rel=0.15)
    assert pace.typical_s("t", "quick") == pytest.approx(1, rel=0.4)
    assert pace.spread_s("t", "slow") == pytest.approx(2, rel=0.3)
    assert pace.spread_s("t", "quick") == pytest.approx(0.1, rel=0.3)


def test_backing_off():
    pace = Pace()
    for index in range(100):
        pace.observe_step(f"w{index}", "t", "a", 20.0)
    assert pace.typical_s("t", "new") == pytest.approx(20, rel=0.1)
    assert pace.typical_s("other", "new") == pytest.approx(20, rel=0.1)
    assert pace.spread_s("t", "new") == pytest.approx(0, abs=0.1)
    pace.observe_step("w", "t", "new", 2.0)
    assert 10 < pace.typical_s("t", "new") < 20


def test_drift_is_followed():
    pace = Pace()
    for seconds in [2.0] * 500 + [8.0] * 250:
        pace.observe_step("w", "t", "a", seconds)
    assert pace.typical_s("t", "a") == pytest.approx(8, rel=0.1)


def test_a_workflow_has_its_own_pace():
    pace = Pace()
    for index in range(300):
        pace.observe_step(f"w{index}", "t", "a", 4.0)
    for _ in range(8):
        pace.observe_step("slow", "t", "a", 12.0)
        pace.observe_step("usual", "t", "a", 4.0)
    assert pace.factor("usual") == pytest.approx(1, abs=0.3)
    assert 1.6 < pace.factor("slow") < 3
    assert pace.step_s("slow", "t", "a") > 1.5 * pace.step_s("usual", "t", "a")
    pace.forget("slow")
    pace.forget("never seen")
    assert pace.factor("slow") == 1


def test_one_step_says_little_about_a_workflow():
    pace = Pace()
    for index in range(300):
        pace.observe_step(f"w{index}", "t", "a", 4.0)
    pace.observe_step("w", "t", "a", 8.0)
    assert pace.factor("w") == pytest.approx(1.2, abs=0.05)


@pytest.mark.parametrize(("seconds", "factor"), [(1e5, 8), (0.0, 1 / 3)])
def test_the_pace_of_a_workflow_is_bounded(seconds, factor):
    pace = Pace()
    for index in range(2000):
        pace.observe_step("w" if index % 40 == 39 else f"w{index}", "t", "a", seconds if index % 40 == 39 else 1.0)
    assert pace.factor("w") == pytest.approx(factor, abs=0.05)


def test_times_of_nothing_are_no_error():
    pace = Pace()
    for _ in range(3000):
        pace.observe_step("w", "t", "a", 0.0)
    assert math.isfinite(pace.factor("w"))
    assert pace.step_s("w", "t", "a") == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_times_that_are_none_are_ignored(seconds):
    pace = Pace()
    pace.observe_step("w", "t", "a", seconds)
    assert len(pace) == 0


@pytest.mark.parametrize(
    "names", [("", "t", "a"), ("w", "", "a"), ("w", "t", ""), ("w" * 257, "t", "a"), ("w", "t", "a" * 129)]
)
def test_names_that_are_none_are_ignored(names):
    pace = Pace()
    pace.observe_step(*names, 1.0)
    assert len(pace) == 0
    assert pace.step_s(*names) == COLD_START_S


def test_huge_times_count_as_a_day():
    pace = Pace()
    pace.observe_step("w", "t", "a", 1e300)
    assert pace.typical_s("t", "a") <= 1e5
    assert math.isfinite(pace.spread_s("t", "a"))


def test_memory_is_bounded():
    pace = Pace(max_keys=10, max_workflows=5)
    for index in range(300):
        pace.observe_step(f"w{index}", f"t{index}", "a", 1.0)
        pace.observe_step("often", "t", "a", 3.0)
    assert len(pace) == 15
    assert pace.typical_s("t", "a") == pytest.approx(3, rel=0.1)
