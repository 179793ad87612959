from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from kvflow.predict import DurationModel
from kvflow.predict.histogram import EDGES_S, LONGEST_S, bin_of
from kvflow.predict.trials.scores import area_under_curve, interval_coverage

_BIN = EDGES_S[1] / EDGES_S[0]


def normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def learned(seconds, tool="t", verb=None) -> DurationModel:
    model = DurationModel()
    for each in seconds:
        model.observe(tool, verb, each)
    return model


@pytest.fixture
def chance() -> random.Random:
    return random.Random(7)


@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0, 5.0, 30.0])
def test_a_lognormal_distribution_is_learned(chance, seconds):
    known = learned(chance.lognormvariate(math.log(0.5), 1.2) for _ in range(5000)).of("t")
    expected = 1 - normal_cdf((math.log(seconds) - math.log(0.5)) / 1.2)
    assert known.longer_than(seconds) == pytest.approx(expected, abs=0.06)


def test_a_level_that_knows_nothing_more_does_not_make_the_prior_count_for_less():
    prior, model = DurationModel().of("t"), DurationModel()
    for _ in range(12):
        model.observe("t", "v", 1.0)
    assert model.of("t", "v").longer_than(20.0) == pytest.approx(prior.longer_than(20.0) * 4 / 16, rel=0.02)


@pytest.mark.parametrize(("elapsed_s", "error"), [(0.0, 0.1), (0.5, 0.1), (2.0, 0.15), (5.0, 0.35)])
def test_an_exponential_call_is_always_as_far_from_its_end(chance, elapsed_s, error):
    """Where few calls get to, what is left of the prior (1 %, with a heavier tail) shows."""
    model = DurationModel()
    residuals = []
    for index in range(6000):
        model.observe("t", None, chance.expovariate(0.5))
        if index > 500 and index % 50 == 0:
            residuals.append(model.of("t").residual_s(elapsed_s))
    assert sum(residuals) / len(residuals) == pytest.approx(2.0, rel=error)


def test_the_residual_is_the_integral_of_the_tail(chance):
    known = learned(chance.lognormvariate(0, 1.5) for _ in range(400)).of("t")
    for elapsed_s in (0.0, 0.01, 0.7, 3.0):
        grid = [elapsed_s] + [elapsed_s + 1e-4 * 1.01**i for i in range(2100)]
        area = sum(
            (b - a) * (known.longer_than(a, elapsed_s=elapsed_s) + known.longer_than(b, elapsed_s=elapsed_s)) / 2
            for a, b in pairwise(grid)
        )
        assert known.residual_s(elapsed_s) == pytest.approx(area, rel=0.02)


@pytest.mark.parametrize("elapsed_s", [0.0, 0.4, 2.0])
def test_quantiles_are_where_the_tail_says(chance, elapsed_s):
    known = learned(chance.lognormvariate(0, 1) for _ in range(500)).of("t")
    for q in (0.1, 0.5, 0.9, 0.99):
        at_s = known.quantile_s(q, elapsed_s=elapsed_s)
        assert at_s >= elapsed_s
        assert known.longer_than(at_s, elapsed_s=elapsed_s) == pytest.approx(1 - q, abs=1e-6)
    assert known.quantile_s(0.0, elapsed_s=elapsed_s) == pytest.approx(max(elapsed_s, 1e-3), rel=_BIN - 1)
    assert known.quantile_s(1.0) == pytest.approx(LONGEST_S, rel=_BIN - 1)


def test_several_moments_at_once_are_as_one_by_one(chance):
    known = learned(chance.expovariate(1) for _ in range(300)).of("t")
    moments_s = [0.0, 0.1, 1.0, 20.0, 4e5]
    for elapsed_s in (0.0, 0.5, 3.0, 900.0):
        expected = [known.longer_than(elapsed_s + each, elapsed_s=elapsed_s) for each in moments_s]
        assert known.still_running(moments_s, elapsed_s=elapsed_s) == pytest.approx(expected)


def test_intervals_cover_what_they_should(chance):
    """Asked before every observation, with tools of very different kinds, from the start."""
    model, levels = DurationModel(), []
    for _ in range(6000):
        verb = chance.choice(["steady", "wide", "double"])
        seconds = {
            "steady": chance.gauss(0.63, 0.003),
            "wide": chance.lognormvariate(0, 2),
            "double": chance.choice([0.02, 7.0]) * chance.lognormvariate(0, 0.2),
        }[verb]
        known = model.of("bash", verb)
        index = bin_of(seconds)
        levels.append((1 - known.longer_than(EDGES_S[index]), 1 - known.longer_than(EDGES_S[index + 1])))
        model.observe("bash", verb, seconds)
    for share in (0.5, 0.8, 0.95):
        assert interval_coverage(levels, share) == pytest.approx(share, abs=0.03)


def test_long_calls_are_told_from_short_ones_as_well_as_can_be(chance):
    medians_s = {f"v{i}": 0.05 * 1.5**i for i in range(12)}
    model, scores, best, labels = DurationModel(), [], [], []
    for index in range(4000):
        verb = chance.choice(list(medians_s))
        seconds = chance.lognormvariate(math.log(medians_s[verb]), 0.8)
        if index >= 200:
            scores.append(model.of("bash", verb).longer_than(2.0))
            best.append(medians_s[verb])
            labels.append(seconds > 2)
        model.observe("bash", verb, seconds)
    reached, possible = area_under_curve(scores, labels), area_under_curve(best, labels)
    assert reached is not None
    assert possible is not None
    assert possible - 0.015 < reached <= 1


def test_before_anything_was_seen():
    known = DurationModel().of("bash", "make")
    assert known.weight == known.total_weight == 0
    assert known.quantile_s(0.5) == pytest.approx(1.0, rel=0.02)
    assert known.longer_than(10.0) == pytest.approx(1 - normal_cdf(math.log(10) / 2), abs=0.01)
    assert known.residual_s(30.0) > 10  # an exponential prior would say 1 s
    assert known.candidates()


def test_backing_off():
    model = learned([0.1] * 200, "bash", "ls")
    for _ in range(200):
        model.observe("web", "get", 20.0)
    assert model.of("bash", "make").longer_than(1.0) == model.of("bash").longer_than(1.0) < 0.05
    assert model.of("web", "post").longer_than(1.0) > 0.95
    assert model.of("other").longer_than(1.0) == pytest.approx(0.5, abs=0.25)
    assert model.of("").weight == model.of("other").weight == model.of("bash").total_weight > 200
    assert model.of("bash", "ls").weight == pytest.approx(150, abs=15)


def test_a_new_verb_gains_weight_with_every_observation():
    model = learned([0.1] * 300, "bash", "ls")
    said = []
    for _ in range(12):
        said.append(model.of("bash", "make").longer_than(1.0))
        model.observe("bash", "make", 30.0)
    assert all(later > earlier for earlier, later in pairwise(said))
    assert said[0] < 0.05
    assert said[4] == pytest.approx(0.5, abs=0.03)  # four observations weigh as much as all the tool's
    assert said[-1] > 0.7


def test_a_workflow_has_its_own_durations():
    model = DurationModel()
    for index in range(300):
        model.observe("bash", "make", 1.0, workflow=f"w{index}")
    said = []
    for _ in range(33):
        said.append(model.of("bash", "make", workflow="slow").longer_than(5.0))
        model.observe("bash", "make", 20.0, workflow="slow")
    assert all(later > earlier for earlier, later in pairwise(said))
    assert said[0] == model.of("bash", "make", workflow="never seen").longer_than(5.0) or said[0] < 0.02
    assert said[16] == pytest.approx(0.5, abs=0.06)  # sixteen of its own weigh as much as all the others
    assert model.of("bash", "make", workflow="w7").longer_than(5.0) < 0.2 < said[-1]
    assert model.of("bash", "make").longer_than(5.0) < 0.2
    assert model.of("bash", workflow="slow").longer_than(5.0) == model.of("bash").longer_than(5.0)


def test_workflows_do_not_displace_tools():
    model = DurationModel(max_keys=10)
    for _ in range(50):
        model.observe("compile", "all", 60.0)
    for index in range(500):
        model.observe("bash", "ls", 0.1, workflow=f"w{index}")
    assert len(model) == 4 + 10
    assert model.of("compile", "all").quantile_s(0.5) > 50


def test_an_overlong_workflow_name_counts_for_all():
    model = DurationModel()
    model.observe("t", None, 1.0, workflow="w" * 257)
    assert len(model) == 1
    assert model.of("t", workflow="w" * 257).weight == 1


def test_an_empty_verb_is_none():
    one, other = learned([1.0, 2.0], verb=""), learned([1.0, 2.0], verb=None)
    one.observe("t", "", 50.0, workflow="w")
    assert one.of("t", "", workflow="w").weight == one.of("t", None, workflow="w").weight == 1
    other.observe("t", None, 50.0, workflow="w")
    assert one.of("t", "").quantile_s(0.5) == other.of("t").quantile_s(0.5)
    assert len(one) == len(other) == 2


def test_tails_are_kept():
    known = learned(([0.2] * 19 + [100.0]) * 15).of("t")
    assert known.longer_than(50.0) == pytest.approx(0.055, abs=0.015)
    assert known.longer_than(50.0, elapsed_s=5.0) > 0.9
    assert known.residual_s(5.0) == pytest.approx(95.0, rel=0.2)
    assert known.residual_s(0.0) == pytest.approx(5.5, rel=0.3)


@pytest.mark.parametrize("elapsed_s", [8.0, 100.0, 5e3])
def test_beyond_all_observations_it_takes_as_long_again(elapsed_s):
    known = learned([0.2, 0.5, 6.0] * 20).of("t")
    assert known.residual_s(elapsed_s) == elapsed_s
    assert known.longer_than(2 * elapsed_s, elapsed_s=elapsed_s) == pytest.approx(0.25)
    assert known.quantile_s(0.75, elapsed_s=elapsed_s) == pytest.approx(2 * elapsed_s)


def test_drift_is_followed_and_a_view_does_not_change_afterwards():
    model = learned([0.1] * 2000)
    before = model.of("t")
    for _ in range(800):
        model.observe("t", None, 10.0)
    assert model.of("t").quantile_s(0.5) == pytest.approx(10.0, rel=_BIN - 1)
    assert before.quantile_s(0.5) == pytest.approx(0.1, rel=_BIN - 1)
    assert before.longer_than(1.0) < 0.02


def test_other_tools_do_not_wash_a_tool_out():
    model = learned([30.0] * 50, "compile")
    for _ in range(5000):
        model.observe("read", None, 0.01)
    assert model.of("compile").quantile_s(0.5) == pytest.approx(30.0, rel=_BIN - 1)


def test_a_view_is_made_anew_when_it_matters_only():
    model = learned([1.0] * 1000)
    first = model.of("t")
    assert model.of("t") is first
    model.observe("t", None, 50.0)
    assert model.of("t") is first  # one more of a few hundred
    for _ in range(30):
        model.observe("t", None, 50.0)
    assert model.of("t") is not first
    assert model.of("t").longer_than(25.0) == pytest.approx(31 / 370, abs=0.03)
    few = learned([1.0] * 3)
    known = few.of("t")
    few.observe("t", None, 50.0)
    assert few.of("t").longer_than(25.0) > known.longer_than(25.0) + 0.05


def test_counting_goes_on_for_ever():
    model = learned(0.1 if i % 10 else 10.0 for i in range(100_000))
    known = model.of("t")
    assert known.weight == pytest.approx(256 / math.log(2), rel=0.01)
    assert known.longer_than(1.0) == pytest.approx(0.1, abs=0.02)


def test_candidates_are_the_durations_seen():
    known = learned([0.1, 0.1, 2.0, 45.0]).of("t")
    for real, candidate in zip((0.1, 2.0, 45.0), known.candidates(), strict=True):
        assert real <= candidate <= real * _BIN * (1 + 1e-9)
    for seconds, probability in known.distribution():
        assert probability == pytest.approx(1 - known.longer_than(seconds))


def test_candidates_are_few(chance):
    known = learned(10 ** chance.uniform(-3, 5) for _ in range(3000)).of("t")
    candidates = known.candidates()
    assert 32 <= len(candidates) <= 64
    assert list(candidates) == sorted(set(candidates))
    assert candidates[-1] == EDGES_S[-1]
    gaps = [b - a for (_, a), (_, b) in pairwise(known.distribution())]
    assert max(gaps) < 0.05


def test_memory_is_bounded():
    model = DurationModel(max_keys=10)
    for index in range(1000):
        model.observe(f"tool{index}", "verb", 5.0)
        model.observe("often", "used", 0.1)
    assert len(model) == 10
    assert model.of("often", "used").weight > 300
    assert model.of("tool999", "verb").weight == 1
    assert model.of("tool0", "verb").weight == model.of("").weight  # forgotten: as any tool


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, -1e-9])
def test_durations_that_are_none_are_ignored(seconds):
    model = learned([1.0])
    model.observe("t", None, seconds)
    model.observe("t", "v", seconds)
    assert len(model) == 1
    assert model.of("t").weight == 1


@pytest.mark.parametrize(("tool", "verb"), [("", None), ("", "v"), ("t" * 129, None), ("t", "v" * 129)])
def test_names_that_are_none_are_ignored(tool, verb):
    model = DurationModel()
    model.observe(tool, verb, 1.0)
    assert len(model) == 0
    assert model.of(tool, verb).weight == 0


def test_extreme_durations_count_as_the_longest_and_the_shortest():
    known = learned([1e300, 1e9, 0.0, 1e-300]).of("t")
    assert known.longer_than(5e4) == pytest.approx(0.25, abs=0.15)
    assert known.longer_than(0.002) < 0.9
    for elapsed_s in (0.0, 1e-300, 99_999.999999, LONGEST_S, 1e300, math.inf):
        assert known.residual_s(elapsed_s) >= 0
        assert known.quantile_s(0.5, elapsed_s=elapsed_s) >= elapsed_s
        assert 0 <= known.longer_than(1e6, elapsed_s=elapsed_s) <= 1


def test_questions_that_make_no_sense():
    known = DurationModel().of("t")
    for ask in (
        lambda: known.longer_than(math.nan),
        lambda: known.longer_than(1.0, elapsed_s=math.nan),
        lambda: known.residual_s(math.nan),
        lambda: known.quantile_s(0.5, elapsed_s=math.nan),
        lambda: known.still_running([1.0], elapsed_s=math.nan),
        lambda: known.quantile_s(-0.1),
        lambda: known.quantile_s(1.1),
        lambda: known.quantile_s(math.nan),
    ):
        with pytest.raises(ValueError, match=r"not a number|between 0 and 1"):
            ask()
    assert known.longer_than(-1.0) == 1
    assert known.longer_than(0.5, elapsed_s=2.0) == 1
    assert known.residual_s(-5.0) == known.residual_s(0.0)
