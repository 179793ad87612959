"""Taking chunks of a prompt apart."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow.reuse import KV, Chunk, Graft, cut
from kvflow.reuse.anchors import Anchor
from kvflow.reuse.repair import without_first
from kvflow.reuse.segments import Origin, Segment

NOTHING = KV(torch.zeros(1, 0, 1, 2), torch.zeros(1, 0, 1, 2))
SEGMENT = Segment(
    tokens=torch.zeros(0, dtype=torch.int64),
    kv=NOTHING,
    position=0,
    origin=Origin(workflow_type="review", agent="planner"),
    exact=True,
    value_sketch=torch.zeros(0, 4),
)
ANCHORS = ((Anchor(start=0, tokens=(), value_sketch=torch.zeros(0, 4), offset=NOTHING), 1.0),)


def graft(start: int, end: int, offset: int = 100, place: int = 1000) -> Graft:
    return Graft(start=start, end=end, segment=SEGMENT, offset=offset, anchors=ANCHORS, place=place)


@st.composite
def spliced(draw: st.DrawFn) -> tuple[list[Graft], int]:
    """Grafts of a prompt, next to each other or apart, and its length."""
    grafts: list[Graft] = []
    at = 0
    for tokens, is_graft in draw(st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=8)):
        if is_graft:
            grafts.append(graft(at, at + tokens, draw(st.integers(0, 50)), draw(st.integers(0, 50))))
        at += tokens
    return grafts, at


def owner(grafts: list[Graft], token: int) -> tuple[int, int] | None:
    """Where a token comes from, in its segment and in the anchors; None if it is computed."""
    for one in grafts:
        if one.start <= token < one.end:
            return one.offset + token - one.start, one.place + token - one.start
    return None


@settings(max_examples=200, deadline=None)
@given(spliced(), st.data())
def test_every_token_of_a_chunk_is_put_in_or_computed_once(case: tuple[list[Graft], int], data: st.DataObject) -> None:
    grafts, length = case
    start = data.draw(st.integers(0, length - 1))
    end = data.draw(st.integers(start + 1, length))
    chunk = cut(grafts, start, end)
    put_in = {t: owner([part], t) for part in chunk.grafts for t in range(part.start, part.end)}
    computed = [token for run in (*chunk.runs, (chunk.rest, end)) for token in range(*run)]
    assert len(put_in) == sum(part.end - part.start for part in chunk.grafts)
    assert sorted([*put_in, *computed]) == list(range(start, end))
    assert computed == sorted(computed)
    expected = {token: where for token in range(start, end - 1) if (where := owner(grafts, token)) is not None}
    assert put_in == expected
    assert all(first < last for first, last in chunk.runs)
    assert chunk.rest < end, "the next token is drawn from the last one"


@settings(max_examples=50, deadline=None)
@given(spliced(), st.sets(st.integers(1, 40)))
def test_chunk_by_chunk_no_token_is_left_out(case: tuple[list[Graft], int], borders: set[int]) -> None:
    grafts, length = case
    ends = sorted({border for border in borders if border < length} | {length})
    at, tokens = 0, list[int]()
    for end in ends:
        chunk = cut(grafts, at, end)
        parts = [(part.start, part.end) for part in chunk.grafts]
        tokens += sorted(t for run in (*parts, *chunk.runs, (chunk.rest, end)) for t in range(*run))
        at = end
    assert tokens == list(range(length))


def test_a_prompt_without_grafts_is_computed_in_one() -> None:
    assert cut([], 3, 9) == Chunk(grafts=(), runs=(), rest=3)
    assert cut([graft(0, 3), graft(9, 12)], 3, 9) == Chunk(grafts=(), runs=(), rest=3)


def test_a_graft_between_computed_tokens() -> None:
    assert cut([graft(4, 8)], 0, 10) == Chunk(grafts=(graft(4, 8),), runs=((0, 4),), rest=8)


def test_a_graft_up_to_the_end_leaves_the_last_token() -> None:
    assert cut([graft(0, 10)], 0, 10) == Chunk(grafts=(graft(0, 9),), runs=(), rest=9)


def test_grafts_side_by_side_have_no_run_between_them() -> None:
    chunk = cut([graft(2, 5), graft(5, 7)], 0, 9)
    assert chunk == Chunk(grafts=(graft(2, 5), graft(5, 7)), runs=((0, 2),), rest=7)


def test_what_is_left_of_a_clipped_graft_comes_from_where_it_came_from() -> None:
    assert graft(10, 20).within(13, 18) == graft(13, 18, offset=103, place=1003)
    assert graft(10, 20).within(0, 15) == graft(10, 15)
    assert graft(10, 20).within(0, 100) == graft(10, 20)


@pytest.mark.parametrize("span", [(0, 10), (20, 30), (15, 15), (18, 12)])
def test_a_graft_that_is_not_there_at_all_is_none(span: tuple[int, int]) -> None:
    assert graft(10, 20).within(*span) is None


@pytest.mark.parametrize(
    ("tokens", "left"), [(0, graft(10, 20)), (4, graft(14, 20, offset=104, place=1004)), (10, None), (99, None)]
)
def test_the_first_tokens_of_a_graft_are_computed_for_repair(tokens: int, left: Graft | None) -> None:
    assert without_first(graft(10, 20), tokens) == left


def test_what_stands_before_the_first_graft_can_be_computed_ahead() -> None:
    chunk = cut([graft(10, 20), graft(30, 40)], 0, 50)
    lead, others = chunk.led()
    assert lead == ((0, 10),)
    assert (others.runs, others.grafts, others.rest) == (((20, 30),), chunk.grafts, 40)
    assert others.led() == ((), others)
