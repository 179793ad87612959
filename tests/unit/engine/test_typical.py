"""What steps are like, learned."""

from __future__ import annotations

import pytest

from kvflow.engine.typical import TypicalWork
from kvflow.policy import Step


def test_nothing_is_known_at_first() -> None:
    assert TypicalWork().step == Step()


def test_the_first_step_is_believed_and_later_ones_move_the_average() -> None:
    typical = TypicalWork()
    typical.asked(1000, 200)
    typical.answered(50)
    assert typical.step == Step(prompt_tokens=1000, new_tokens=200, generated_tokens=50)
    for _ in range(300):
        typical.asked(3000, 100)
        typical.answered(10)
    assert 2900 < typical.step.prompt_tokens < 3000
    assert 100 < typical.step.new_tokens < 110
    assert 10 < typical.step.generated_tokens < 12


def test_pauses_begin_at_none() -> None:
    typical = TypicalWork()
    typical.paused(10.0)
    assert 0 < typical.step.pause_s < 1
    for _ in range(300):
        typical.paused(10.0)
    assert 9 < typical.step.pause_s < 10


def test_few_long_programs_do_not_make_a_typical_one() -> None:
    typical = TypicalWork()
    assert typical.program_s == 0
    typical.ended(10.0)
    assert typical.program_s == pytest.approx(10.0)
    for number in range(300):
        typical.ended(1000.0 if number % 10 == 0 else 10.0)
    assert 10 < typical.program_s < 20


def test_programs_that_take_no_time_are_taken_for_very_short_ones() -> None:
    typical = TypicalWork()
    typical.ended(0.0)
    assert 0 < typical.program_s < 1
