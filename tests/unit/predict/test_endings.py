from __future__ import annotations

import random

import pytest

from kvflow.predict import Endings
from kvflow.predict.endings import MAX_KINDS
from kvflow.predict.trials.scores import reliability


def test_nothing_is_changed_before_anything_was_seen():
    assert Endings().again("t", "a", "bash", 0.7) == pytest.approx(0.7)


def test_an_answer_without_tools_is_the_last_one():
    endings = Endings()
    for _ in range(20):
        for _ in range(30):
            endings.observe("t", "a", "bash", last=False)
        endings.observe("t", "a", "", last=True)
    assert endings.again("t", "a", "", 0.97) < 0.2
    assert endings.again("t", "a", "bash", 0.97) > 0.99
    assert endings.again("t", "a", "never seen", 0.97) == pytest.approx(0.97)
    assert endings.again("t", "other agent", "", 0.97) == pytest.approx(0.97)


def test_kinds_that_tell_nothing_change_little():
    chance = random.Random(3)
    endings = Endings()
    for _ in range(5000):
        endings.observe("t", "a", chance.choice(["x", "y"]), last=chance.random() < 0.1)
    assert endings.again("t", "a", "x", 0.9) == pytest.approx(0.9, abs=0.03)
    assert endings.again("t", "a", "y", 0.5) == pytest.approx(0.5, abs=0.1)


def test_probabilities_mean_what_they_say():
    chance = random.Random(8)
    endings, said, came = Endings(), [], []
    lasts = {"search": 0.05, "": 0.7, "ask": 0.3}
    base = sum(lasts.values()) / 3
    for _ in range(6000):
        kind = chance.choice(list(lasts))
        last = chance.random() < lasts[kind]
        said.append(endings.again("t", "a", kind, 1 - base))
        came.append(not last)
        endings.observe("t", "a", kind, last=last)
    bins = [each for each in reliability(said, came) if each.count > 400]
    assert len(bins) >= 3
    for each in bins:
        assert each.observed == pytest.approx(each.predicted, abs=0.05)


def test_agents_of_one_kind_of_step_are_left_alone():
    endings = Endings()
    for _ in range(50):
        for last in (False, False, False, True):
            endings.observe("t", "a", "", last=last)
    assert endings.again("t", "a", "", 0.4) == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize("kinds", [("",), ("", "ls"), ("", "ls", "ls", "ls")])
def test_where_no_step_was_ever_the_last_one_no_kind_says_anything(kinds):
    endings = Endings()
    for _ in range(100):
        for kind in kinds:
            endings.observe("t", "a", kind, last=False)
    assert endings.again("t", "a", kinds[-1], 0.6) == pytest.approx(0.6)
    assert endings.again("t", "a", "unseen", 0.6) == pytest.approx(0.6)


def test_drift_is_followed():
    endings = Endings()
    for last, count in ((True, 5000), (False, 5000)):
        for _ in range(count):
            endings.observe("t", "a", "", last=last)
            endings.observe("t", "a", "bash", last=False)
    assert endings.again("t", "a", "", 0.5) > 0.3


def test_memory_is_bounded():
    endings = Endings(max_keys=10)
    for index in range(200):
        endings.observe("t", f"a{index}", "", last=True)
        endings.observe("t", "often", "", last=True)
        endings.observe("t", "often", f"tool{index}", last=False)
    assert len(endings) == 10
    kinds = endings._agents["t", "often"]._counts
    assert len(kinds) <= MAX_KINDS + 1
    assert "" in kinds


def test_counting_goes_on_for_ever():
    endings = Endings()
    for index in range(400_000):
        endings.observe("t", "a", "" if index % 4 == 0 else "bash", last=index % 4 == 0)
    assert endings.again("t", "a", "", 0.75) < 0.02


def test_names_that_are_none_are_ignored():
    endings = Endings()
    endings.observe("t", "a" * 129, "", last=True)
    endings.observe("t", "a", "k" * 129, last=True)
    endings.observe("t" * 129, "a", "", last=True)
    assert len(endings) == 0


@pytest.mark.parametrize("before", [-0.1, 1.1, float("nan")])
def test_probabilities_that_are_none(before):
    with pytest.raises(ValueError, match="before"):
        Endings().again("t", "a", "", before)


@pytest.mark.parametrize("before", [0.0, 1.0])
def test_it_is_never_certain(before):
    endings = Endings()
    endings.observe("t", "a", "", last=True)
    assert 0 < endings.again("t", "a", "", before) < 1
