from __future__ import annotations

import math
import random

import pytest

from kvflow.predict import Survival
from kvflow.predict.trials.scores import brier, reliability


def geometric(chance: random.Random, stop: float) -> int:
    turns = 1
    while chance.random() >= stop:
        turns += 1
    return turns


def learned(lengths, agent="a") -> Survival:
    survival = Survival()
    for turns in lengths:
        survival.observe("t", agent, turns, ended=True)
    return survival


def test_before_anything_was_seen():
    assert Survival().again("t", "a", 1) == pytest.approx(0.9)
    assert Survival().eta("t") == 1.0


@pytest.mark.parametrize("turns", [1, 3, 8, 20, 40])
def test_contexts_that_may_end_after_every_use(turns):
    chance = random.Random(5)
    survival = learned(geometric(chance, 0.08) for _ in range(3000))
    assert survival.again("t", "a", turns) == pytest.approx(0.92, abs=0.05)


def test_contexts_of_one_length():
    survival = learned([6] * 60)
    assert all(survival.again("t", "a", turns) > 0.98 for turns in range(1, 6))
    assert survival.again("t", "a", 6) < 0.1


def test_it_gets_likelier_to_end_when_it_does():
    chance = random.Random(5)
    survival = learned(round(chance.gauss(40, 5)) for _ in range(400))
    said = [survival.again("t", "a", turns) for turns in (5, 30, 40, 46)]
    assert said[0] > 0.99
    assert said == sorted(said, reverse=True)
    assert said[-1] < 0.85


def test_probabilities_mean_what_they_say():
    """Asked after every use, learning only when the workflow ends; three agents that live for different times."""
    chance = random.Random(11)
    survival, said, came = Survival(), [], []
    for _ in range(1500):
        agent, stop = chance.choice([("planner", 0.6), ("coder", 0.05), ("critic", 0.3)])
        turns = geometric(chance, stop)
        for turn in range(1, turns + 1):
            said.append(survival.again("t", agent, turn))
            came.append(turn < turns)
        survival.observe("t", agent, turns, ended=True)
    for each in reliability(said, came):
        if each.count > 300:
            assert each.observed == pytest.approx(each.predicted, abs=0.06)
    base = sum(came) / len(came)
    measured = brier(said, came)
    assert measured is not None
    assert measured < 0.93 * base * (1 - base)


def test_an_agent_never_seen_is_taken_for_one_of_its_type():
    survival = learned([3] * 50, agent="a")
    assert survival.again("t", "b", 3) == pytest.approx(survival.again("t", "a", 3), abs=0.1)
    assert survival.again("t", "b", 1) > 0.95
    assert survival.again("other type", "b", 3) == pytest.approx(0.9)


def test_agents_of_a_type_differ():
    survival = Survival()
    for _ in range(60):
        survival.observe("t", "once", 1, ended=True)
        survival.observe("t", "often", 30, ended=True)
    assert survival.again("t", "once", 1) < 0.1
    assert survival.again("t", "often", 1) > 0.95


def test_drift_is_followed():
    survival = learned([3] * 1000 + [12] * 500)
    assert survival.again("t", "a", 3) > 0.9
    assert survival.again("t", "a", 12) < 0.15


def test_contexts_lost_sight_of_have_lived_that_long():
    survival = Survival()
    for _ in range(200):
        survival.observe("t", "a", 5, ended=False)
    assert survival.again("t", "a", 5) > 0.98
    assert survival.again("t", "a", 3) > 0.98
    for _ in range(100):
        survival.observe("t", "a", 8, ended=True)
    assert survival.again("t", "a", 5) > 0.97
    assert survival.again("t", "a", 8) < 0.2


def test_what_was_lost_sight_of_says_nothing_of_what_came_then():
    survival = learned([5] * 40)
    before = survival.again("t", "a", 5)
    for _ in range(40):
        survival.observe("t", "a", 5, ended=False)
    assert survival.again("t", "a", 5) == pytest.approx(before, abs=0.1)


def test_eta_is_one_for_programs_of_equal_length():
    assert learned([9] * 30).eta("t") == pytest.approx(1.0)
    assert learned([1] * 30).eta("t") == 1.0
    assert learned([7]).eta("t") == 1.0


def test_eta_is_zero_for_memoryless_programs():
    chance = random.Random(2)
    survival = Survival()
    said = []
    for index in range(4000):
        survival.observe("t", "a", geometric(chance, 0.1), ended=True)
        if index > 500 and index % 20 == 0:
            said.append(survival.eta("t"))
    assert sum(said) / len(said) == pytest.approx(0.0, abs=0.1)


def test_eta_is_negative_for_long_tails():
    chance = random.Random(2)
    assert learned(min(3000, int(2 * chance.paretovariate(0.8))) for _ in range(600)).eta("t") < -0.1


def test_eta_is_minus_the_correlation():
    lengths = [3, 5, 5, 8, 2, 13]
    pairs = [(k, n - k) for n in lengths for k in range(1, n + 1)]
    mean_k, mean_left = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    both = sum((k - mean_k) * (left - mean_left) for k, left in pairs)
    spread = math.sqrt(sum((k - mean_k) ** 2 for k, _ in pairs) * sum((left - mean_left) ** 2 for _, left in pairs))
    expected = (6 * -both / spread + 4) / 10  # shrunk towards 1 by the weight of four
    assert learned(lengths).eta("t") == pytest.approx(expected, abs=0.02)  # a little fading


def test_the_first_programs_do_not_turn_eta_over():
    assert learned([1, 60]).eta("t") > 0.5


def test_counting_goes_on_for_ever():
    survival = learned([4] * 50_000)
    assert survival.again("t", "a", 4) < 0.05
    assert survival.again("t", "a", 2) > 0.98
    assert survival.eta("t") == pytest.approx(1.0)


@pytest.mark.parametrize("turns", [16, 17, 19, 20, 4096, 4097, 10**6, 10**18])
def test_any_number_of_turns_has_a_place(turns):
    survival = Survival()
    survival.observe("t", "a", turns, ended=True)
    survival.observe("t", "a", turns, ended=False)
    assert 0 < survival.again("t", "a", turns) < 1
    assert math.isfinite(survival.eta("t"))


def test_memory_is_bounded():
    survival = Survival(max_keys=20)
    for index in range(500):
        survival.observe("t", f"agent{index}", 2, ended=True)
        survival.observe("t", "often", 9, ended=True)
    assert len(survival) == 20
    assert survival.again("t", "often", 9) < 0.1


@pytest.mark.parametrize(
    ("workflow_type", "agent", "turns"),
    [("t", "a", 0), ("t", "a", -3), ("", "a", 2), ("t", "", 2), ("t" * 129, "a", 2), ("t", "a" * 129, 2)],
)
def test_what_makes_no_sense_is_ignored(workflow_type, agent, turns):
    survival = Survival()
    survival.observe(workflow_type, agent, turns, ended=True)
    assert len(survival) == 0
    assert survival.again(workflow_type, agent, turns) == pytest.approx(0.9)


def test_a_context_not_used_yet_is_like_one_used_once():
    survival = learned([1, 4, 4])
    assert survival.again("t", "a", 0) == survival.again("t", "a", 1)


def test_contexts_used_once_and_lost_sight_of_push_nothing_out_that_is_known():
    survival = learned([5] * 200)
    before = survival.again("t", "a", 5)
    for number in range(3000):
        survival.observe(f"type {number}", "a", 1, ended=False)
    assert len(survival) == 2
    assert survival.again("t", "a", 5) == before < 0.1
