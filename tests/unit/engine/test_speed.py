"""What is learned of how fast batches are computed."""

from __future__ import annotations

import random

import pytest

from kvflow.engine.speed import Speed
from kvflow.policy import ServingCosts

SET = ServingCosts(prefill_token_s=1e-5, attention_token_s=0.0, prefill_step_s=1e-3, decode_step_s=1e-3)


def test_nothing_is_told_before_a_second_has_been_measured() -> None:
    speed = Speed(SET)
    speed.prefilled([(0, 1000)], 0.4)
    assert speed.prefill_factor is None
    speed.prefilled([(0, 1000)], 0.7)
    assert speed.prefill_factor == pytest.approx(50)
    assert speed.decode_factor is None


def test_the_factor_is_that_of_batches_of_all_lengths() -> None:
    speed, chance = Speed(SET), random.Random(0)
    for _ in range(500):
        start, new = chance.randrange(4000), chance.randrange(1, 4000)
        expected_s = SET.prefill_step_s + SET.compute_s(start, start + new)
        speed.prefilled([(start, start + new)], 3 * expected_s * chance.uniform(0.5, 1.5))
    for _ in range(5000):
        speed.decoded(8, 8000, SET.decode_s(1, 8, 8000) / 2)
    assert speed.prefill_factor == pytest.approx(3, rel=0.1)
    assert speed.decode_factor == pytest.approx(0.5)


def test_it_follows_a_machine_that_becomes_slower() -> None:
    speed = Speed(SET)
    for factor in (1.0, 4.0):
        for _ in range(20_000):
            speed.decoded(1, 0, factor * SET.decode_s(1, 1, 0))
    assert speed.decode_factor == pytest.approx(4, rel=0.3)


def test_one_batch_that_waited_for_something_else_hardly_counts() -> None:
    speed = Speed(SET)
    for _ in range(10_000):
        speed.decoded(1, 0, SET.decode_s(1, 1, 0))
    speed.decoded(1, 0, 30.0)
    assert speed.decode_factor == pytest.approx(1, rel=0.05)


def test_what_is_learned_does_not_teach_itself() -> None:
    costs = ServingCosts(decode_step_s=1e-3)
    speed = Speed(costs)
    for _ in range(2000):
        speed.decoded(1, 0, 2e-3)
        costs.learn({"decode_step_s": 1e-3 * (speed.decode_factor or 1.0)})
    assert speed.decode_factor == pytest.approx(2, rel=0.05)


def test_costs_that_hardly_change_stay() -> None:
    costs = ServingCosts()
    assert costs.learn({"prefill_token_s": 8.0e-5, "load_token_s": 2.6e-6})
    assert (costs.prefill_token_s, costs.load_token_s) == (8.0e-5, 2.6e-6)
    assert not costs.learn({"prefill_token_s": 8.1e-5})
    assert costs.prefill_token_s == 8.0e-5
