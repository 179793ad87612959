from __future__ import annotations

import math
import random

import pytest

from kvflow.predict import DurationModel, Durations, StepsAhead, Wait, next_use, still_alive
from kvflow.predict.trials.scores import reliability


def durations(seconds) -> Durations:
    model = DurationModel()
    for each in seconds:
        model.observe("t", None, each)
    return model.of("t")


@pytest.fixture
def chance() -> random.Random:
    return random.Random(6)


def test_one_tool(chance):
    known = durations(chance.lognormvariate(0, 1) for _ in range(500))
    forecast = next_use(again=0.8, tools=[Wait(durations=known, elapsed_s=2.0)])
    assert forecast.mean_s == known.residual_s(2.0)
    assert forecast.quantiles_s[1] == pytest.approx(known.quantile_s(0.5, elapsed_s=2.0) - 2.0)
    assert list(forecast.quantiles_s) == sorted(forecast.quantiles_s)
    assert forecast.rate_hz == pytest.approx(forecast.probability / forecast.mean_s)


def test_one_tool_is_as_one_of_several(chance):
    known = durations(chance.lognormvariate(0, 1) for _ in range(500))
    at_once = Wait(durations=durations([0.001] * 400))
    one = next_use(again=0.8, tools=[Wait(durations=known)])
    two = next_use(again=0.8, tools=[Wait(durations=known), at_once])
    assert two.mean_s == pytest.approx(one.mean_s, rel=0.15)
    assert two.quantiles_s[1] == pytest.approx(one.quantiles_s[1], rel=0.15)
    assert two.quantiles_s[2] == pytest.approx(one.quantiles_s[2], rel=0.15)


@pytest.mark.parametrize("elapsed_s", [(0.0, 0.0), (0.0, 3.0), (1.0, 2.0)])
def test_parallel_tools_end_with_the_last_one(chance, elapsed_s):
    first = [chance.lognormvariate(0, 0.8) for _ in range(3000)]
    second = [chance.lognormvariate(0.7, 0.5) for _ in range(3000)]
    waits = [
        Wait(durations=durations(calls), elapsed_s=elapsed)
        for calls, elapsed in zip((first, second), elapsed_s, strict=True)
    ]
    forecast = next_use(again=0.9, tools=waits)
    left = [
        [call - elapsed for call in calls if call > elapsed]
        for calls, elapsed in zip((first, second), elapsed_s, strict=True)
    ]
    real = sorted(max(chance.choice(left[0]), chance.choice(left[1])) for _ in range(4000))
    assert forecast.mean_s == pytest.approx(sum(real) / len(real), rel=0.25)
    for q, said in zip((0.1, 0.5, 0.9), forecast.quantiles_s, strict=True):
        assert said == pytest.approx(real[int(q * len(real))], rel=0.3, abs=0.1)


def test_a_claim_fades_when_its_agent_does_not_turn_up():
    steady = durations([5.0] * 100)
    wide = durations([0.5, 5.0, 50.0, 500.0] * 25)
    said = {
        elapsed_s: [
            next_use(again=0.9, pause=Wait(durations=known, elapsed_s=elapsed_s)).probability
            for known in (steady, wide)
        ]
        for elapsed_s in (0.0, 4.0, 20.0, 100.0)
    }
    assert said[0.0] == pytest.approx([0.9, 0.9])
    assert said[4.0][0] == pytest.approx(0.9, abs=0.01)
    assert said[20.0][0] < 0.4
    assert said[20.0][1] > 0.7
    assert said[100.0][1] > said[100.0][0]


def test_silence_is_weighed_by_bayes_rule(chance):
    """Half of the contexts die; the others come back after an exponential time of 10 s."""
    known = durations(chance.expovariate(0.1) for _ in range(4000))
    said, came = [], []
    for _ in range(4000):
        back_s = chance.expovariate(0.1) if chance.random() < 0.5 else math.inf
        elapsed_s = chance.uniform(0, 30)
        if back_s > elapsed_s:
            said.append(next_use(again=0.5, pause=Wait(durations=known, elapsed_s=elapsed_s)).probability)
            came.append(back_s < math.inf)
    for each in reliability(said, came):
        if each.count > 150:
            assert each.observed == pytest.approx(each.predicted, abs=0.07)


def test_silence_of_parallel_tools_adds_up():
    known = durations([1.0, 10.0] * 200)
    one = next_use(again=0.5, tools=[Wait(durations=known, elapsed_s=4.0)]).probability
    two = next_use(again=0.5, tools=[Wait(durations=known, elapsed_s=4.0)] * 2).probability
    fresh = next_use(again=0.5, tools=[Wait(durations=known, elapsed_s=4.0), Wait(durations=known)]).probability
    assert one == fresh == pytest.approx(1 / 3, abs=0.03)
    assert two == pytest.approx(1 / 5, abs=0.03)


@pytest.mark.parametrize(
    ("again", "silence", "expected"),
    [(0.5, 1.0, 0.5), (0.5, 0.0, 0.0), (1.0, 1e-9, 1.0), (0.0, 0.5, 0.0), (0.5, 0.25, 0.2)],
)
def test_still_alive(again, silence, expected):
    assert still_alive(again, silence) == pytest.approx(expected)


def test_steps_ahead(chance):
    ahead = StepsAhead(steps=4, left_s=2.0, step_s=5.0, spread_s=2.0, between_s=1.0)
    forecast = next_use(again=0.7, ahead=ahead)
    assert forecast.probability == 0.7
    assert forecast.mean_s == pytest.approx(2 + 3 * 6)
    real = sorted(
        chance.expovariate(0.5) + 3 * 1.0 + sum(max(0, chance.gauss(5, 2)) for _ in range(3)) for _ in range(5000)
    )
    for q, said in zip((0.1, 0.5, 0.9), forecast.quantiles_s, strict=True):
        assert said == pytest.approx(real[int(q * len(real))], rel=0.1)


def test_the_step_under_way_may_end_at_any_time():
    low_s, median_s, high_s = next_use(
        again=1.0, ahead=StepsAhead(steps=1, left_s=10.0, step_s=1.0, spread_s=1.0)
    ).quantiles_s
    assert low_s < 3 < median_s < 10 < high_s < 30


def test_a_declared_graph_has_the_last_word():
    ahead = StepsAhead(steps=2, left_s=1.0, step_s=1.0, spread_s=0.0, probability=0.25)
    assert next_use(again=0.9, ahead=ahead).probability == 0.25


@pytest.mark.parametrize("steps", [0.0, 0.5, 1.0])
def test_the_next_step_waits_for_the_one_under_way(steps):
    forecast = next_use(again=1.0, ahead=StepsAhead(steps=steps, left_s=3.0, step_s=9.0, spread_s=1.0))
    assert forecast.mean_s == 3.0


def test_a_step_due_now_is_no_division_by_zero():
    forecast = next_use(again=1.0, ahead=StepsAhead(steps=1, left_s=0.0, step_s=0.0, spread_s=0.0))
    assert 0 < forecast.rate_hz <= 1000
    assert all(0 < each <= 0.001 for each in forecast.quantiles_s)


def test_steps_say_when_and_earlier_pauses_how_surely():
    """An agent that is asked again at once, or after a round of all the others."""
    pause = Wait(durations=durations([1.0, 100.0] * 50))
    ahead = StepsAhead(steps=3, left_s=10.0, step_s=20.0, spread_s=1.0)
    forecast = next_use(again=0.9, ahead=ahead, pause=pause)
    assert (forecast.mean_s, forecast.probability) == (50.0, 0.9)
    assert forecast.quantiles_s == next_use(again=0.9, pause=pause).quantiles_s
    assert forecast.quantiles_s[0] < 2
    assert forecast.quantiles_s[2] > 80


def test_tools_come_first_then_steps_then_pauses():
    tools, pause = [Wait(durations=durations([1.0] * 50))], Wait(durations=durations([100.0] * 50))
    ahead = StepsAhead(steps=1, left_s=10.0, step_s=1.0, spread_s=0.0)
    assert next_use(again=0.5, tools=tools, ahead=ahead, pause=pause).mean_s < 2
    assert next_use(again=0.5, ahead=ahead, pause=pause).mean_s == 10
    assert next_use(again=0.5, pause=pause).mean_s > 80
    with pytest.raises(ValueError, match="is needed"):
        next_use(again=0.5)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_numbers_that_make_no_sense(value):
    wait = Wait(durations=durations([1.0]))
    for ask in (
        lambda: next_use(again=value, pause=wait),
        lambda: next_use(again=0.5, pause=Wait(durations=wait.durations, elapsed_s=value)),
        lambda: next_use(again=0.5, tools=[wait, Wait(durations=wait.durations, elapsed_s=value)]),
        lambda: next_use(again=0.5, ahead=StepsAhead(steps=value, left_s=1.0, step_s=1.0, spread_s=0.0)),
        lambda: next_use(again=0.5, ahead=StepsAhead(steps=1, left_s=value, step_s=1.0, spread_s=0.0)),
        lambda: next_use(again=0.5, ahead=StepsAhead(steps=1, left_s=1, step_s=1, spread_s=0.0, probability=value)),
    ):
        with pytest.raises(ValueError, match="must be"):
            ask()
