from __future__ import annotations

import math
import random

import pytest

from kvflow.predict.trials.scores import (
    area_under_curve,
    brier,
    interval_coverage,
    log_loss,
    median,
    reliability,
    surprise,
)


def test_area_under_curve():
    assert area_under_curve([1, 2, 3, 4], [False, False, True, True]) == 1
    assert area_under_curve([4, 3, 2, 1], [False, False, True, True]) == 0
    assert area_under_curve([1, 1, 1, 1], [False, True, True, False]) == 0.5
    assert area_under_curve([1, 3, 2, 4], [False, False, True, True]) == 0.75
    assert area_under_curve([1, 2], [True, True]) is None
    assert area_under_curve([], []) is None


def test_area_under_curve_is_the_share_of_pairs():
    chance = random.Random(1)
    scores = [chance.randint(0, 9) for _ in range(200)]
    labels = [chance.random() < score / 12 for score in scores]
    pairs = [
        (a > b) + (a == b) / 2
        for a, positive in zip(scores, labels, strict=True)
        for b, other in zip(scores, labels, strict=True)
        if positive and not other
    ]
    assert area_under_curve(scores, labels) == pytest.approx(sum(pairs) / len(pairs))


def test_losses():
    assert log_loss([0.5, 0.5], [True, False]) == pytest.approx(math.log(2))
    assert log_loss([0.9], [False]) == pytest.approx(-math.log(0.1))
    assert log_loss([], []) is None
    assert surprise(0.0) == pytest.approx(13.8, abs=0.1)
    assert brier([1.0, 0.0, 0.5], [True, True, True]) == pytest.approx((0 + 1 + 0.25) / 3)
    assert brier([], []) is None
    assert median([3.0, 1.0, 2.0]) == 2
    assert median([]) is None


def test_reliability():
    bins = reliability([0.05, 0.06, 0.95, 1.0], [False, True, True, True])
    assert [(each.count, each.observed) for each in bins] == [(2, 0.5), (2, 1.0)]
    assert bins[0].predicted == pytest.approx(0.055)


def test_coverage_of_a_right_and_of_a_too_sure_distribution():
    chance = random.Random(1)
    right = [(p := chance.random(), p) for _ in range(4000)]
    sure = [(p, p) for p in (min(1.0, max(0.0, 0.5 + 3 * (p - 0.5))) for p, _ in right)]
    assert interval_coverage(right, 0.8) == pytest.approx(0.8, abs=0.03)
    assert interval_coverage(sure, 0.8) == pytest.approx(0.8 / 3, abs=0.03)
    assert interval_coverage([], 0.8) is None


def test_coverage_of_a_distribution_in_few_bins():
    """Two outcomes: no interval holds 80 % of them, but the distribution is right."""
    levels = [(0.0, 0.3)] * 300 + [(0.3, 1.0)] * 700
    assert interval_coverage(levels, 0.8) == pytest.approx(0.8)
    assert interval_coverage(levels, 0.5) == pytest.approx(0.5)
