"""Texts found in prompts that tokenise their borders otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow.engine import Located

Tokens = list[int]

RAGGED = 4
ELSEWHERE = 10_000
"""Tokens from here on are in no text."""

surroundings = st.lists(st.integers(ELSEWHERE, ELSEWHERE + 3), max_size=20)
borders = st.integers(0, RAGGED)


@st.composite
def long_texts(draw: st.DrawFn) -> Tokens:
    """Without repetitions, so that there is one place for each of its parts."""
    return draw(st.permutations(range(draw(st.integers(4 * RAGGED, 40)))))


@settings(max_examples=80, deadline=None)
@given(long_texts(), surroundings, surroundings, borders, borders)
def test_a_text_is_found_but_for_the_borders_its_neighbours_changed(
    text: Tokens, before: Tokens, after: Tokens, lead: int, tail: int
) -> None:
    kept = text[lead : len(text) - tail]
    altered = [ELSEWHERE + 5] * lead + kept + [ELSEWHERE + 6] * tail
    start = len(before) + lead
    assert Located(before + altered + after).find(text) == (start, start + len(kept))


@settings(max_examples=50, deadline=None)
@given(long_texts(), surroundings, surroundings, borders, borders)
def test_a_border_may_be_another_number_of_tokens_there(
    text: Tokens, before: Tokens, after: Tokens, lead: int, tail: int
) -> None:
    kept = text[lead : len(text) - tail]
    assert Located(before + kept + after).find(text) == (len(before), len(before) + len(kept))


@settings(max_examples=50, deadline=None)
@given(long_texts(), surroundings, surroundings)
def test_a_text_that_differs_in_the_middle_is_not_found(text: Tokens, before: Tokens, after: Tokens) -> None:
    altered = [*text]
    altered[len(text) // 2] = ELSEWHERE
    assert Located(before + altered + after).find(text) is None


awkward = st.sampled_from([0, 1, 255, 256, 65_536, 2**32, 2**40 + 1])
"""Tokens whose bytes look like others' a byte further on."""


def by_token(prompt: Tokens, text: Tokens, after: int) -> tuple[int, int] | None:
    """Where the inner part of a text stands first, and as much around it as is the text's."""
    if len(text) < 4 * RAGGED:
        return None
    ragged = RAGGED
    inner = text[ragged : len(text) - ragged]
    for at in range(after, len(prompt) - len(inner) + 1):
        if prompt[at : at + len(inner)] == inner:
            shift = at - ragged
            equal = {
                i for i in range(after, len(prompt)) if 0 <= i - shift < len(text) and prompt[i] == text[i - shift]
            }
            start, end = at, at + len(inner)
            while start - 1 in equal:
                start -= 1
            while end in equal:
                end += 1
            return start, end
    return None


@settings(max_examples=200, deadline=None)
@given(st.lists(awkward, max_size=40), st.data())
def test_it_finds_what_a_search_token_by_token_finds(prompt: Tokens, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(prompt)))
    text = data.draw(st.lists(awkward, max_size=20) | st.just(prompt[first : first + 18]))
    after = data.draw(st.integers(0, len(prompt) + 1))
    assert Located(prompt).find(text, after) == by_token(prompt, text, after)


def test_bytes_that_begin_within_a_token_are_no_tokens() -> None:
    text = list(range(1, 17))
    shifted = [token << 8 for token in text]
    assert Located([*shifted, 0]).find(text) is None
    assert Located([*shifted, 0, *text]).find(text) == (17, 33)


def test_it_looks_no_further_back_than_told() -> None:
    text = list(range(20))
    prompt = Located([99, *text, 98, *text])
    assert prompt.find(text) == prompt.find(text, 1) == (1, 21)
    assert prompt.find(text, 2) == (2, 21), "without what lies before"
    assert prompt.find(text, 21) == prompt.find(text, 22) == (22, 42)
    assert prompt.find(text, 30) is None
    assert prompt.find(text, 1000) is None


def test_texts_one_after_the_other_are_found_each_in_its_place() -> None:
    line = list(range(30, 50))
    prompt = Located(line * 3)
    at, found = 0, []
    for _ in range(3):
        run = prompt.find(line, at)
        assert run is not None
        found.append(run)
        at = run[1]
    assert found == [(0, 20), (20, 40), (40, 60)]
    assert prompt.find(line, at) is None


@pytest.mark.parametrize("length", [1, 4, 15])
def test_short_texts_are_not_looked_for(length: int) -> None:
    text = list(range(100, 100 + length))
    assert Located([1, 2, *text, 3]).find(text) is None


def test_nothing_is_nowhere() -> None:
    assert Located([1, 2]).find([]) is None
    assert Located([]).find([1]) is None
    assert Located([]).find([]) is None


def test_repeated_tokens_are_searched_once_not_once_for_each() -> None:
    prompt = Located([1] * 200_000 + [256] * 100_000)
    assert prompt.find([256] * 100_000) == (200_000, 299_996), "the first place that its inner part has"
    assert prompt.find([256] * 100_000 + [2] * 10) is None


def test_ids_beyond_characters_are_told_apart() -> None:
    text = [2**20 + number for number in range(20)]
    assert Located([7, *text, 7]).find(text) == (1, 21)
    assert Located([*range(20)]).find(text) is None
