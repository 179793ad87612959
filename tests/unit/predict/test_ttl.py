from __future__ import annotations

import math
import random

import pytest

from kvflow.predict import DurationModel, continuum_ttl


def durations(seconds, tool="t"):
    model = DurationModel()
    for each in seconds:
        model.observe(tool, None, each)
    return model.of(tool)


def test_cold_start_is_the_optimum_for_an_exponential_tool():
    known = durations([20.0] * 10)
    for queue_s, reload_s in [(3.0, 0.5), (10.0, 0.0), (0.0, 2.0)]:
        ttl_s = continuum_ttl(known, queue_s=queue_s, eta=-1.0, reload_s=reload_s)
        grid = [i / 1000 for i in range(8000)]
        best_s = max(grid, key=lambda t: (1 - math.exp(-t)) * (queue_s + reload_s) - t)
        assert ttl_s == pytest.approx(best_s, abs=0.002)
    assert continuum_ttl(known, queue_s=0.6, eta=1.0, reload_s=0.3) == 0


def test_cold_start_ends_with_a_hundred_observations():
    first, later = durations([0.2] * 105), durations([0.2] * 125)
    assert first.total_weight < 100 < later.total_weight
    assert continuum_ttl(first, queue_s=3.0, eta=1.0, reload_s=0.0) == pytest.approx(math.log(3))
    assert continuum_ttl(later, queue_s=3.0, eta=1.0, reload_s=0.0) == pytest.approx(0.2, rel=0.25)
    assert continuum_ttl(first, queue_s=3.0, eta=1.0, reload_s=0.0, cold_start_samples=0) == pytest.approx(
        0.2, rel=0.25
    )


@pytest.mark.parametrize(
    ("benefit_s", "lowest_s", "highest_s"),
    [(0.01, 0.0, 0.0), (1.0, 0.2, 0.25), (25.0, 0.2, 0.25), (100.0, 20.0, 25.0)],
    ids=["not worth it", "the short ones", "still the short ones", "the long ones, too"],
)
def test_it_waits_for_as_many_calls_as_pay(benefit_s, lowest_s, highest_s):
    known = durations([0.2, 0.2, 20.0] * 100)  # 20 s pay when a third of the benefit is more
    ttl_s = continuum_ttl(known, queue_s=benefit_s / 2, eta=1.0, reload_s=benefit_s / 2)
    assert lowest_s <= ttl_s <= highest_s


def test_it_is_the_argmax():
    chance = random.Random(3)
    known = durations([chance.lognormvariate(0, 1.5) for _ in range(1000)])
    for benefit_s in (0.5, 2.0, 8.0, 50.0):

        def gain(ttl_s: float, benefit_s: float = benefit_s) -> float:
            return (1 - known.longer_than(ttl_s)) * benefit_s - ttl_s if ttl_s else 0.0

        ttl_s = continuum_ttl(known, queue_s=0.0, eta=1.0, reload_s=benefit_s)
        assert gain(ttl_s) == pytest.approx(max(gain(each) for each in (0.0, *known.candidates())))


def test_queueing_counts_by_eta():
    known = durations([5.0] * 200)
    assert continuum_ttl(known, queue_s=10.0, eta=1.0, reload_s=0.1) == pytest.approx(5.0, rel=0.25)
    assert continuum_ttl(known, queue_s=10.0, eta=0.1, reload_s=0.1) == 0
    assert continuum_ttl(known, queue_s=10.0, eta=-1.0, reload_s=0.1) == 0
    assert continuum_ttl(known, queue_s=10.0, eta=-0.1, reload_s=12.0) == pytest.approx(5.0, rel=0.25)


@pytest.mark.parametrize("name", ["queue_s", "eta", "reload_s"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none(name, value):
    with pytest.raises(ValueError, match="must be finite"):
        continuum_ttl(durations([1.0]), **({"queue_s": 1.0, "eta": 1.0, "reload_s": 1.0} | {name: value}))


@pytest.mark.parametrize("name", ["queue_s", "reload_s"])
def test_times_are_not_negative(name):
    with pytest.raises(ValueError, match="at least 0"):
        continuum_ttl(durations([1.0]), **({"queue_s": 1.0, "eta": 1.0, "reload_s": 1.0} | {name: -0.1}))
