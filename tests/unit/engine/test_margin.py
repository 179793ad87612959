"""How much of the device admission leaves out of its plans."""

from __future__ import annotations

import pytest

from kvflow.engine.margin import Margin


def test_it_grows_with_every_request_that_loses_its_memory_up_to_a_limit() -> None:
    margin = Margin()
    assert margin.share == 0.05
    assert margin.retracted(1.0)
    assert margin.share == pytest.approx(0.07)
    for number in range(100):
        margin.retracted(2.0 + number)
    assert margin.share == 0.4


def test_it_shrinks_with_answers_and_not_below_what_it_began_with() -> None:
    margin = Margin()
    for number in range(100):
        margin.retracted(float(number))
    for _ in range(500):
        margin.answered()
    assert margin.share == pytest.approx(0.4 * 0.999**500)
    for _ in range(4500):
        margin.answered()
    assert margin.share == pytest.approx(0.05)


@pytest.mark.parametrize(("share", "grows"), [(0.5, 0.0025), (1.0, 0.005), (20.0, 0.005), (0.0, 0.0)])
def test_a_context_that_is_gone_counts_by_what_bringing_it_back_takes(share: float, grows: float) -> None:
    margin = Margin()
    assert margin.missed(share, 1.0) is (grows > 0)
    assert margin.share == pytest.approx(0.05 + grows)


def test_of_what_happens_in_one_moment_what_says_most_counts() -> None:
    margin = Margin()
    assert margin.missed(1.0, 1.0)
    assert not margin.missed(0.5, 1.0)
    assert margin.share == pytest.approx(0.055)
    assert margin.retracted(1.0)
    assert not margin.retracted(1.0)
    assert not margin.missed(1.0, 1.0)
    assert margin.share == pytest.approx(0.07)
    assert margin.retracted(1.1)
    assert margin.share == pytest.approx(0.09)
