"""Who is among the oldest, of more leaves than are looked at."""

from __future__ import annotations

import random

import pytest

from kvflow.engine import Choice, Coordinator
from kvflow.engine.ages import Ages, cutoff_of
from kvflow.engine.leaves import EXACT, made_of
from tests.unit.engine.test_leaves import Leaf, order, own

MANY = 5_000


def leaves(count: int = MANY, tokens: int = 300, seed: int = 1) -> list[Leaf]:
    """Claimed leaves, the oldest first."""
    draw = random.Random(seed)
    return [Leaf(n, float(n), draw.random(), tokens) for n in range(count)]


@pytest.mark.parametrize(
    ("choice", "youngest"),
    [
        (Choice(window_tokens=20_000), 65),
        (Choice(window_tokens=40_000), 132),
        (Choice(window_tokens=60_000), 199),
        (Choice(window_tokens=900_000), 2_999),
        (Choice(window_tokens=300), 0),
        (Choice(share=0.5), 2_499),
        (Choice(share=0.5, window_tokens=20_000), 65),
    ],
)
def test_of_many_leaves_prediction_chooses_among_the_oldest_of_all(choice: Choice, youngest: int) -> None:
    coordinator, nodes = Coordinator("cost"), leaves()
    for node in nodes:
        node.value = None  # the policy takes them as they are
    several = made_of(random.Random(2).sample(nodes, MANY), own)
    for _ in range(3):
        several.open_round(claims=True, choice=choice)
        assert len(list(several)) < 3 * EXACT
        coordinator.open_round(several, choice, several.ages)
        assert coordinator._cutoff == youngest
        several.close_round(order)


def test_ages_are_not_followed_before_they_are_asked_for() -> None:
    several = made_of(leaves(), own)
    several.open_round(claims=True)
    assert several.ages is None


def test_as_many_of_a_window_as_may_be_are_looked_at() -> None:
    several = made_of(leaves(), own)
    several.open_round(claims=True, choice=Choice(window_tokens=20_000))
    assert {node.id for node in several} >= set(range(64))


def test_no_more_than_the_window_is_at_risk_whatever_becomes_of_leaves() -> None:
    draw, nodes, ages, now = random.Random(3), leaves(2_000), Ages(), 1e6
    for node in draw.sample(nodes, len(nodes)):
        ages.put(node)
    for step in range(600):
        for node in draw.sample(nodes, 20):
            now += 1
            node.last_access_time = now  # and nobody says so
        if step % 2:
            node = draw.choice(nodes)
            node.tokens = max(1, node.tokens // 2)
        for node in draw.sample(nodes, 3):
            nodes.remove(node)
            ages.discard(node)
        now += 1
        fresh = Leaf(10_000 + step, draw.choice((now, now - draw.randrange(1_000_000))), tokens=draw.randrange(1, 600))
        nodes.append(fresh)
        ages.put(fresh)
        choice = Choice(window_tokens=draw.choice((0, 500, 20_000, 100_000, 10**9)))
        cutoff, right = ages.cutoff(choice), cutoff_of(nodes, choice)
        oldest = [node for node in nodes if node.last_access_time <= cutoff]
        assert sum(node.tokens for node in oldest) <= choice.window_tokens
        assert len(oldest) >= 0.7 * sum(node.last_access_time <= right for node in nodes) - 10


def test_what_is_gone_leaves_nothing_behind() -> None:
    nodes, ages = leaves(3_000), Ages()
    for node in nodes:
        ages.put(node)
    assert ages.cutoff(Choice(window_tokens=3_000)) == 9
    for node in nodes[:-10]:
        ages.discard(node)
        ages.discard(node)
    assert len(ages._spans) < 4
    assert sum(ages._tokens) == 3_000
    assert ages.cutoff(Choice(window_tokens=600)) == 2_991


def test_of_leaves_of_one_time_all_or_none_are_among_the_oldest() -> None:
    nodes, ages = [Leaf(n, float(n // 4), tokens=10) for n in range(1_000)], Ages()
    for node in nodes:
        ages.put(node)
    for choice in (Choice(window_tokens=110), Choice(window_tokens=80)):
        assert ages.cutoff(choice) == cutoff_of(nodes, choice) == 1.0
    alike, at_once = [Leaf(n, 7.0, tokens=10) for n in range(1_000)], Ages()
    for node in alike:
        at_once.put(node)
    assert at_once.cutoff(Choice(window_tokens=9_999)) < 7.0 <= at_once.cutoff(Choice(window_tokens=10_000))


def test_leaves_that_are_used_without_a_word_leave_no_spans_behind() -> None:
    draw, nodes, now = random.Random(4), leaves(1_000), 1e6
    ages = Ages(nodes)
    spans = len(ages._spans)
    for _ in range(3_000):
        for node in draw.sample(nodes, 5):
            now += 1
            node.last_access_time = now
        ages.cutoff(Choice(window_tokens=20_000))
    assert len(ages._spans) < 4 * spans
