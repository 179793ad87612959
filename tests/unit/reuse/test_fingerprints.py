"""Fingerprints: what two texts share is found, whatever surrounds it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow.reuse.fingerprints import GRAM_TOKENS, SHARED_TOKENS, WINDOW, common_run, fingerprints

Tokens = list[int]


def marks(tokens: Tokens) -> list[tuple[int, int]]:
    return fingerprints(torch.tensor(tokens, dtype=torch.int64))


def noise(seed: int, length: int, vocabulary: int = 150_000) -> Tokens:
    return random.Random(seed).choices(range(vocabulary), k=length)


@st.composite
def texts(draw: st.DrawFn, least: int, most: int) -> Tokens:
    """Of two words, of a few, or of many."""
    highest = draw(st.sampled_from([1, 5, 150_000]))
    return draw(st.lists(st.integers(0, highest), min_size=least, max_size=most))


shared = texts(SHARED_TOKENS, SHARED_TOKENS)
surroundings = texts(0, 40)


@settings(max_examples=60, deadline=None)
@given(shared, surroundings, surroundings, surroundings, surroundings)
def test_texts_that_share_a_run_share_a_fingerprint(
    run: Tokens, before: Tokens, after: Tokens, other_before: Tokens, other_after: Tokens
) -> None:
    left, right = marks(before + run + after), marks(other_before + run + other_after)
    assert {mark for _, mark in left} & {mark for _, mark in right}


def test_texts_that_share_nothing_share_no_fingerprint() -> None:
    hashes = [{mark for _, mark in marks(noise(seed, 2000))} for seed in range(4)]
    assert len(set().union(*hashes)) == sum(map(len, hashes))


@pytest.mark.parametrize("token", [0, 1, 2])
def test_repetitions_of_different_tokens_differ(token: int) -> None:
    (hashed,) = {mark for _, mark in marks([token] * 100)}
    assert hashed not in {mark for _, mark in marks([token + 1] * 100)}


def test_the_same_tokens_in_another_order_are_another_text() -> None:
    tokens = noise(1, 300)
    assert not {mark for _, mark in marks(tokens)} & {mark for _, mark in marks(tokens[::-1])}


def test_one_gram_in_eight_or_so_is_kept() -> None:
    tokens = noise(2, 50_000)
    assert len(marks(tokens)) / len(tokens) == pytest.approx(2 / (WINDOW + 1), rel=0.03)


@given(texts(SHARED_TOKENS, 120))
@settings(max_examples=40, deadline=None)
def test_every_window_has_a_gram_that_is_kept_and_they_are_in_order(tokens: Tokens) -> None:
    kept = [at for at, _ in marks(tokens)]
    assert kept == sorted(set(kept))
    assert 0 <= kept[0] <= kept[-1] <= len(tokens) - GRAM_TOKENS
    for window in range(len(tokens) - SHARED_TOKENS + 1):
        assert any(window <= at < window + WINDOW for at in kept)


@pytest.mark.parametrize("length", [0, 1, GRAM_TOKENS, SHARED_TOKENS - 1])
def test_too_short_a_text_has_none(length: int) -> None:
    assert marks(noise(3, length)) == []
    assert marks(noise(3, SHARED_TOKENS)) != []


@st.composite
def shared_positions(draw: st.DrawFn) -> tuple[Tokens, Tokens, int, int, int, int]:
    """Two texts with a run in common, a position in it, and a range of the left one around that."""
    words = st.lists(st.integers(0, 2), max_size=12)
    run = draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))
    before, other = draw(words), draw(words)
    left, right = before + run + draw(words), other + run + draw(words)
    place = draw(st.integers(0, len(run) - 1))
    at = len(before) + place
    return left, right, at, len(other) + place, draw(st.integers(0, at)), draw(st.integers(at + 1, len(left)))


@settings(max_examples=200, deadline=None)
@given(shared_positions())
def test_a_position_is_widened_to_the_longest_run_within_its_range(
    case: tuple[Tokens, Tokens, int, int, int, int],
) -> None:
    left, right, at, other, floor, ceiling = case
    start = end = at
    while start > floor and start - at + other > 0 and left[start - 1] == right[start - 1 - at + other]:
        start -= 1
    while end < ceiling and end - at + other < len(right) and left[end] == right[end - at + other]:
        end += 1
    found = common_run(torch.tensor(left), torch.tensor(right), at, other, floor=floor, ceiling=ceiling)
    assert found == (start, end)


def compared_as_a_whole(left: torch.Tensor, right: torch.Tensor, at: int, other: int) -> tuple[int, int]:
    """What :func:`common_run` finds in the whole of two texts, the slow way."""
    back, ahead = min(at, other), min(len(left) - at, len(right) - other)
    before = (left[at - back : at] == right[other - back : other]).flip(0)
    after = left[at : at + ahead] == right[other : other + ahead]
    return at - int(before.long().cumprod(0).sum()), at + int(after.long().cumprod(0).sum())


@pytest.mark.parametrize("period", [1, 7, 300, 100_000])
@pytest.mark.parametrize("seed", range(6))
def test_long_runs_are_the_same_as_if_texts_were_compared_as_a_whole(seed: int, period: int) -> None:
    drawn, length = random.Random(seed), 6000
    words = noise(seed, min(period, length), 4)
    left = (words * (length // len(words) + 1))[:length]
    right = left[drawn.randrange(500) :] if seed % 2 else list(left)
    for _ in range(seed):
        right[drawn.randrange(len(right))] = -1
    one, two = torch.tensor(left), torch.tensor(right)
    for _ in range(40):
        at, other = drawn.randrange(len(left)), drawn.randrange(len(right))
        if drawn.random() < 0.5:
            other = min(at, len(right) - 1)
        found = common_run(one, two, at, other, floor=0, ceiling=len(left))
        assert found == compared_as_a_whole(one, two, at, other)


def test_texts_that_differ_soon_are_not_compared_to_their_ends() -> None:
    read: list[int] = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.__eq__:
                read.append(len(args[0]))
            return super().__torch_function__(func, types, args, kwargs or {})

    left, right = torch.arange(100_000).as_subclass(Watched), torch.arange(100_000).as_subclass(Watched)
    left[49_000], left[51_000] = -1, -1
    assert common_run(left, right, 50_000, 50_000, floor=0, ceiling=100_000) == (49_001, 51_000)
    assert sum(read) < 10_000


def test_a_run_ends_where_either_text_does() -> None:
    left, right = torch.tensor([1, 2, 3]), torch.tensor([9, 1, 2, 3, 4])
    assert common_run(left, right, 1, 2, floor=0, ceiling=3) == (0, 3)
    assert common_run(right, left, 2, 1, floor=0, ceiling=5) == (1, 4)
