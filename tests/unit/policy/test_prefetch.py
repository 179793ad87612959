"""When a load ahead begins, and how much of the link it may take."""

from __future__ import annotations

import pytest

from kvflow.policy import PrefetchPace, ServingCosts

COSTS = ServingCosts(load_token_s=1e-3)


@pytest.fixture
def pace() -> PrefetchPace:
    pace = PrefetchPace(COSTS, link_share=0.5)
    pace.tick(0.0)
    return pace


def test_a_use_is_near_when_loading_takes_about_as_long(pace: PrefetchPace) -> None:
    assert pace.near(1.9, None, 1000)
    assert not pace.near(2.1, None, 1000)
    assert pace.near(0.4, None, 10), "the clock of the schedulers is not finer"
    assert not pace.near(0.6, None, 10)


def test_the_next_step_is_near_but_not_if_it_is_known_to_take_long(pace: PrefetchPace) -> None:
    assert pace.near(5.0, 1, 10)
    assert not pace.near(60.0, 1, 10)
    assert not pace.near(5.0, 2, 10)
    assert not pace.near(5.0, 0, 10), "its step is under way: its tool says when"


def test_loads_take_their_share_of_the_link_and_no_more(pace: PrefetchPace) -> None:
    loaded_s = now_s = 0.0
    while now_s < 100:
        now_s += 0.1
        pace.tick(now_s)
        while pace.may_load:
            pace.loaded(200)
            loaded_s += 0.2
    assert loaded_s == pytest.approx(50, rel=0.03)


def test_time_does_not_run_backwards(pace: PrefetchPace) -> None:
    pace.loaded(1000)
    pace.tick(-5.0)
    assert not pace.may_load


def test_what_nobody_uses_soon_loads_next_to_nothing_and_what_is_used_is_believed_again(pace: PrefetchPace) -> None:
    pace.settle(used=0.0)
    assert pace.trust == 1.0, "one mistake may happen"
    for _ in range(10):
        pace.settle(used=0.0)
    assert pace.trust == pytest.approx(1 / 64)
    for _ in range(20):
        pace.settle(used=1.0)
    assert pace.trust == 1.0


def test_an_occasional_waste_costs_no_trust(pace: PrefetchPace) -> None:
    for number in range(200):
        pace.settle(used=0.0 if number % 20 == 19 else 1.0)
        assert pace.trust == 1.0
