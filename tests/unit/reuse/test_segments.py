"""Texts found again by their tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow.reuse import KV, HostMemory
from kvflow.reuse.fingerprints import fingerprints
from kvflow.reuse.segments import SHARED_TOKENS, Match, Origin, Segment, SegmentStore

TEXTS = [random.Random(seed).choices(range(1000), k=200) for seed in range(4)]
TEXT = TEXTS[0]
ELSEWHERE = 1000
"""Tokens from here on are in no text."""


def segment(tokens: Sequence[int], *, exact: bool = True) -> Segment:
    count = len(tokens)
    return Segment(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        kv=KV(torch.zeros(1, count, 1, 2), torch.zeros(1, count, 1, 2)),
        position=0,
        origin=Origin(workflow_type="review", agent="planner"),
        exact=exact,
        value_sketch=torch.zeros(count, 4),
    )


def store(*texts: Sequence[int], max_bytes: int = 10**9) -> SegmentStore:
    made = SegmentStore(HostMemory(max_bytes))
    for text in texts:
        assert made.put("", segment(text))
    return made


def noise(length: int) -> list[int]:
    return list(range(ELSEWHERE, ELSEWHERE + length))


def find(
    texts: SegmentStore, prompt: Sequence[int], namespace: str = "", min_tokens: int = SHARED_TOKENS
) -> list[Match]:
    return texts.find(namespace, torch.tensor(prompt, dtype=torch.int64), 0, len(prompt), min_tokens)


def test_a_text_is_found_behind_another_beginning() -> None:
    texts = store(*TEXTS)
    (match,) = find(texts, noise(37) + TEXTS[2] + noise(5))
    assert (match.start, match.end, match.offset) == (37, 237, 0)
    assert match.segment.tokens.tolist() == TEXTS[2]


@pytest.mark.parametrize(("lead", "tail"), [(0, 3), (3, 0), (1, 4), (4, 2)])
def test_a_text_is_found_though_its_borders_are_tokenised_otherwise(lead: int, tail: int) -> None:
    middle = TEXT[lead : len(TEXT) - tail]
    (match,) = find(store(TEXT), noise(50) + middle + noise(8))
    assert (match.start, match.end, match.offset) == (50, 50 + len(middle), lead)


def test_only_the_range_that_is_asked_for_is_looked_at() -> None:
    prompt = torch.tensor(TEXT + TEXT)
    (match,) = store(TEXT).find("", prompt, 230, 300, SHARED_TOKENS)
    assert (match.start, match.end, match.offset) == (230, 300, 30)


@st.composite
def quotations(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int, int, int]]]:
    """A prompt that quotes parts of texts, and where each one is: text, start, end, offset."""
    prompt: list[int] = []
    quoted: list[tuple[int, int, int, int]] = []
    for _ in range(draw(st.integers(0, 5))):
        prompt += noise(draw(st.integers(1, 20)))
        text = draw(st.integers(0, len(TEXTS) - 1))
        offset = draw(st.integers(0, 200 - SHARED_TOKENS))
        length = draw(st.integers(SHARED_TOKENS, 200 - offset))
        quoted.append((text, len(prompt), len(prompt) + length, offset))
        prompt += TEXTS[text][offset : offset + length]
    return prompt + noise(draw(st.integers(0, 20))), quoted


@settings(max_examples=50, deadline=None)
@given(quotations())
def test_every_quotation_is_found_once_whole_and_in_order(
    case: tuple[list[int], list[tuple[int, int, int, int]]],
) -> None:
    prompt, quoted = case
    found = [(TEXTS.index(m.segment.tokens.tolist()), m.start, m.end, m.offset) for m in find(store(*TEXTS), prompt)]
    assert found == quoted


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=150), st.lists(st.integers(0, 1), min_size=31, max_size=150))
def test_whatever_is_found_is_there_and_nothing_twice(prompt: list[int], text: list[int]) -> None:
    at = 0
    for match in find(store(text, text[::-1], text[20:] * 3), prompt, min_tokens=10):
        assert at <= match.start
        assert match.end - match.start >= 10
        assert match.end <= len(prompt)
        stored = match.segment.tokens[match.offset : match.offset + match.end - match.start]
        assert prompt[match.start : match.end] == stored.tolist()
        at = match.end


def test_the_longest_run_is_taken() -> None:
    texts = store(TEXT[:150], TEXT, TEXT[20:90])
    (match,) = find(texts, TEXT[10:])
    assert match.segment.tokens.tolist() == TEXT
    assert (match.start, match.end, match.offset) == (0, 190, 10)


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_of_equal_runs_the_exact_one_is_taken(order: tuple[bool, bool]) -> None:
    texts = store()
    for exact in order:
        texts.put("", segment(TEXT, exact=exact))
    (match,) = find(texts, noise(3) + TEXT)
    assert match.segment.exact


def test_a_longer_run_is_taken_though_it_is_not_exact() -> None:
    texts = store(TEXT[:199])
    texts.put("", segment(TEXT, exact=False))
    texts.put("", segment(TEXT[1:]))
    (match,) = find(texts, TEXT)
    assert not match.segment.exact


def test_nothing_is_found_across_namespaces() -> None:
    texts = store()
    texts.put("a", segment(TEXT))
    texts.put("b", segment(TEXTS[1]))
    assert find(texts, TEXT, "b") == find(texts, TEXT, "") == []
    assert len(find(texts, TEXT + TEXTS[1], "a")) == len(find(texts, TEXT + TEXTS[1], "b")) == 1


@pytest.mark.parametrize(("min_tokens", "found"), [(0, 1), (59, 1), (60, 1), (61, 0)])
def test_runs_shorter_than_wanted_are_not_found(min_tokens: int, found: int) -> None:
    prompt = noise(10) + TEXT[50:110] + noise(10)
    assert len(find(store(TEXT), prompt, min_tokens=min_tokens)) == found


def test_what_could_not_be_found_again_is_not_held() -> None:
    memory = HostMemory(10**6)
    texts = SegmentStore(memory)
    assert not texts.put("", segment(TEXT[: SHARED_TOKENS - 1]))
    assert (len(texts), len(memory), memory.used_bytes) == (0, 0, 0)
    assert texts.put("", segment(TEXT[:SHARED_TOKENS]))
    assert len(find(texts, noise(5) + TEXT)) == 1


def test_what_is_larger_than_the_bound_is_not_held() -> None:
    texts = SegmentStore(HostMemory(segment(TEXT).nbytes - 1))
    assert not texts.put("", segment(TEXT))
    assert find(texts, TEXT) == []
    assert not texts._index


def test_texts_that_are_found_outlive_those_that_are_not() -> None:
    texts = store(TEXTS[0], TEXTS[1], max_bytes=2 * segment(TEXT).nbytes)
    find(texts, TEXTS[0])
    texts.put("", segment(TEXTS[2]))
    assert [len(find(texts, text)) for text in TEXTS] == [1, 0, 1, 0]


def test_a_stream_of_texts_is_kept_within_the_bound_and_leaves_nothing_behind() -> None:
    memory = HostMemory(10 * segment(TEXT).nbytes)
    texts = SegmentStore(memory)
    drawn = random.Random(5)
    phrase = drawn.choices(range(1000), k=60)  # in all of them
    stream = [phrase + drawn.choices(range(1000), k=drawn.randint(0, 300)) for _ in range(300)]
    for text in stream:
        assert texts.put("", segment(text))
        assert memory.used_bytes <= memory.max_bytes
        assert len(find(texts, text)) == 1
    assert memory.dropped == 300 - len(texts) > 250
    assert sum(one.nbytes for one in texts._segments) == memory.used_bytes
    for (_, mark), entries in texts._index.items():
        assert entries, "keys of what is forgotten are forgotten"
        for one, at in entries:
            assert one in texts._segments
            assert (at, mark) in fingerprints(one.tokens)


def test_what_everybody_says_is_found_in_few_places() -> None:
    phrase = TEXT[:100]
    texts = store(*(phrase + noise(k) for k in range(50)))
    assert max(map(len, texts._index.values())) <= 4
    assert len(find(texts, phrase)) == 1


@pytest.mark.parametrize("period", [1, 3])
def test_repetition_fills_neither_the_index_nor_the_answer(period: int) -> None:
    memory = HostMemory(2 * segment(TEXT * 15).nbytes)
    texts = SegmentStore(memory)
    text = TEXT[:period] * (3000 // period)
    assert texts.put("", segment(text))
    assert sum(map(len, texts._index.values())) <= 4 * period
    at, found = 0, list(find(texts, text, min_tokens=64))
    assert found
    for match in found:
        assert match.start >= at
        assert match.end - match.start >= 64
        at = match.end
    for seed in range(2):
        texts.put("", segment(random.Random(seed).choices(range(1000), k=3000)))
    assert find(texts, text) == []
    assert all(entry[0].tokens.tolist() != text for entries in texts._index.values() for entry in entries)


def test_a_cleared_store_finds_nothing() -> None:
    texts = store(*TEXTS)
    texts.clear()
    assert len(texts) == 0
    assert find(texts, TEXT) == []
