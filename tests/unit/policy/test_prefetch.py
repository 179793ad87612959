"""When a load ahead begins, and how much of the link it may take."""

from __future__ import annotations

import pytest

from kvflow.policy import PrefetchPace, ServingCosts

COSTS = ServingCosts(load_token_s=1e-3)


@pytest.fixture
def pace() -> PrefetchPace:
    pace = PrefetchPace(COSTS, link_share=0.5, device_tokens=16_000)
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
            pace.used(200)
            loaded_s += 0.2
    assert loaded_s == pytest.approx(50, rel=0.03)


def test_time_does_not_run_backwards(pace: PrefetchPace) -> None:
    pace.loaded(1000)
    pace.tick(-5.0)
    assert not pace.may_load


def play(pace: PrefetchPace, seconds: float, used: bool) -> int:
    """Load whenever allowed, as much as the link takes; returns how many tokens were."""
    loaded = 0
    for _ in range(int(seconds * 10)):
        now_s = (pace._now_s or 0.0) + 0.1
        pace.tick(now_s)
        while pace.may_load:
            pace.loaded(10)
            (pace.used if used else pace.wasted)(10)
            loaded += 10
    return loaded


def test_what_nobody_uses_is_a_thousandth_of_the_link_and_one_load(pace: PrefetchPace) -> None:
    link_tokens = 1000 / COSTS.load_token_s
    assert play(pace, 1000, used=False) == pytest.approx(1000 + link_tokens / 1000, abs=50)
    assert pace.wasted_share > 0.4


def test_right_predictions_are_believed_again(pace: PrefetchPace) -> None:
    play(pace, 100, used=False)
    assert play(pace, 200, used=True) == pytest.approx(0.5 * 200 / COSTS.load_token_s, rel=0.1)


def test_one_in_ten_may_be_wrong(pace: PrefetchPace) -> None:
    loaded = 0
    for second in range(1, 1000):
        pace.tick(float(second))
        while pace.may_load:
            loaded += 1
            pace.loaded(100)
            (pace.wasted if loaded % 11 == 0 else pace.used)(100)
    assert loaded * 100 == pytest.approx(0.5 * 1000 / COSTS.load_token_s, rel=0.05)


def test_what_is_not_used_yet_counts_as_far_as_such_loads_have_been_wasted(pace: PrefetchPace) -> None:
    for second in range(1, 1000):
        pace.tick(float(second))
        if pace.may_load:
            pace.loaded(1000)
    assert 4_000 <= pace._open_tokens <= 5_000


def test_after_a_wave_of_wrong_loads_no_more_is_owed_than_the_allowance(pace: PrefetchPace) -> None:
    pace.tick(0.0)
    for _ in range(100):
        pace.loaded(1000)
        pace.wasted(1000)
    link_tokens = 0.001 / COSTS.load_token_s
    pace.tick(1.0 + 1000 / link_tokens)
    assert pace.may_load
