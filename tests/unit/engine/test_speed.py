"""What is learned of how fast batches are computed."""

from __future__ import annotations

import random

import pytest

from kvflow.engine.speed import Speed
from kvflow.policy import ServingCosts

SET = ServingCosts(prefill_token_s=1e-5, attention_token_s=1e-9, prefill_step_s=1e-3, decode_step_s=1e-3)


def decoded(speed: Speed, factor: float, times: int) -> None:
    for _ in range(times):
        speed.decoded(4, 4000, factor * SET.decode_s(1, 4, 4000))


def test_nothing_is_told_of_a_few_batches() -> None:
    speed = Speed(SET)
    decoded(speed, 50.0, 15)
    assert speed.decode_factor is None
    decoded(speed, 50.0, 1)
    assert speed.decode_factor == pytest.approx(50)
    assert speed.prefill_factor is None


def test_the_factor_is_that_of_batches_of_all_lengths() -> None:
    speed, chance = Speed(SET), random.Random(0)
    for _ in range(500):
        start, new = chance.randrange(4000), chance.randrange(1, 4000)
        expected_s = SET.prefill_step_s + SET.compute_s(start, start + new)
        speed.prefilled([(start, start + new)], 3 * expected_s * chance.uniform(0.5, 1.5))
    assert speed.prefill_factor == pytest.approx(3, rel=0.1)


def test_prefill_batches_that_are_mostly_what_any_batch_takes_say_nothing_of_tokens() -> None:
    speed = Speed(SET)
    for _ in range(100):
        speed.prefilled([(0, 20)], 1.0)
    assert speed.prefill_factor is None


def test_it_follows_a_machine_that_becomes_slower() -> None:
    speed = Speed(SET)
    decoded(speed, 1.0, 1000)
    decoded(speed, 4.0, 300)
    assert speed.decode_factor == pytest.approx(4)


@pytest.mark.parametrize("first", [True, False])
def test_batches_that_waited_for_something_else_hardly_count(first: bool) -> None:
    speed = Speed(SET)
    decoded(speed, 1.0, 0 if first else 100)
    for _ in range(5):  # kernels are compiled
        speed.decoded(1, 0, 30.0)
    decoded(speed, 1.0, 11)
    assert speed.decode_factor == pytest.approx(1)


def test_what_is_learned_does_not_teach_itself() -> None:
    costs = ServingCosts(decode_step_s=1e-3)
    speed = Speed(costs)
    for _ in range(100):
        speed.decoded(1, 0, 2e-3)
        costs.learn({"decode_step_s": 1e-3 * (speed.decode_factor or 1.0)})
    assert speed.decode_factor == pytest.approx(2, rel=0.05)


def test_costs_that_hardly_change_stay() -> None:
    costs = ServingCosts()
    assert costs.learn({"prefill_token_s": 8.0e-5, "load_token_s": 2.6e-6})
    assert (costs.prefill_token_s, costs.load_token_s) == (8.0e-5, 2.6e-6)
    assert not costs.learn({"prefill_token_s": 8.1e-5})
    assert costs.prefill_token_s == 8.0e-5
