"""Pages without tokens: identities and digests must say of pages what their tokens would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvflow.sim.context import Context, Pager, Run, runs_between
from kvflow.trace import Piece

CONTENTS = ("a", "b", "c")
pieces = st.builds(Piece, st.sampled_from(CONTENTS), st.integers(1, 13), st.integers(0, 9))
prompts = st.lists(pieces, min_size=0, max_size=5)
steps = st.tuples(st.integers(0, 3), st.integers(0, 40), prompts)
"""(which earlier context to go on from, tokens to keep of it, pieces to add)"""


def spell(parts: list[Piece]) -> list[tuple[str, int]]:
    """Every token of some pieces, by content and place in it."""
    return [(piece.content, piece.offset + index) for piece in parts for index in range(piece.tokens)]


def grow(pager: Pager, history: list[tuple[int, int, list[Piece]]]) -> list[tuple[Context, list[tuple[str, int]]]]:
    """Build contexts from one another, with their tokens beside them."""
    built: list[tuple[Context, list[tuple[str, int]]]] = [(pager.empty(), [])]
    for base, keep, added in history:
        context, tokens = built[base % len(built)]
        built.append((pager.extend(context, keep, added), tokens[:keep] + spell(added)))
    return built


def pages_of(runs: list[Run]) -> list[tuple[int, int]]:
    return [(identity, first + index) for identity, first, count in runs for index in range(count)]


@given(st.integers(1, 5), st.integers(1, 3), st.lists(steps, min_size=1, max_size=8))
def test_pages_are_the_same_exactly_when_their_tokens_are(
    page_tokens: int, unit_pages: int, history: list[tuple[int, int, list[Piece]]]
) -> None:
    pager = Pager(page_tokens, unit_pages)
    spelled: dict[tuple[int, int], tuple[tuple[str, int], ...]] = {}
    known: dict[tuple[tuple[str, int], ...], tuple[int, int]] = {}
    for context, tokens in grow(pager, history):
        pages = pages_of(context.runs)
        assert context.tokens == len(tokens)
        assert context.pages == len(pages) == len(tokens) // page_tokens
        for index, page in enumerate(pages):
            content = tuple(tokens[index * page_tokens : (index + 1) * page_tokens])
            assert spelled.setdefault(page, content) == content
            assert known.setdefault(content, page) == page


@given(st.integers(1, 4), st.integers(1, 3), st.lists(steps, min_size=1, max_size=8))
def test_digests_are_the_same_exactly_when_everything_up_to_them_is(
    page_tokens: int, unit_pages: int, history: list[tuple[int, int, list[Piece]]]
) -> None:
    pager = Pager(page_tokens, unit_pages)
    unit = pager.unit_tokens
    prefixes: dict[int, list[tuple[str, int]]] = {}
    digests: dict[tuple[tuple[str, int], ...], int] = {}
    for context, tokens in grow(pager, history):
        assert len(context.digests) == len(tokens) // unit
        for index, digest in enumerate(context.digests):
            prefix = tokens[: (index + 1) * unit]
            assert prefixes.setdefault(digest, prefix) == prefix
            assert digests.setdefault(tuple(prefix), digest) == digest


@given(prompts, prompts)
def test_a_prompt_extended_in_two_steps_is_the_prompt_at_once(one: list[Piece], two: list[Piece]) -> None:
    pager = Pager(4, 2)
    at_once = pager.extend(pager.empty(), 0, [*one, *two])
    first = pager.extend(pager.empty(), 0, one)
    stepwise = pager.extend(first, first.tokens, two)
    assert (stepwise.runs, stepwise.run_ends, stepwise.digests) == (at_once.runs, at_once.run_ends, at_once.digests)
    assert spell(stepwise.pieces) == spell(at_once.pieces)
    assert pages_of(first.runs) == pages_of(at_once.runs)[: first.pages]


@given(prompts, st.data())
def test_a_stretch_of_pages_is_cut_out_of_the_runs(parts: list[Piece], data: st.DataObject) -> None:
    pager = Pager(3, 2)
    context = pager.extend(pager.empty(), 0, parts)
    start = data.draw(st.integers(0, context.pages))
    end = data.draw(st.integers(start, context.pages))
    assert pages_of(runs_between(context, start, end)) == pages_of(context.runs)[start:end]


def test_the_context_a_prompt_goes_on_from_stays_as_it_was() -> None:
    pager = Pager(4, 2)
    base = pager.extend(pager.empty(), 0, [Piece("a", 10)])
    before = (list(base.pieces), list(base.runs), list(base.digests))
    pager.extend(base, 10, [Piece("a", 6, 10)])
    pager.extend(base, 3, [Piece("b", 9)])
    assert (base.pieces, base.runs, base.digests) == before


def test_more_tokens_than_there_are_keeps_what_there_is() -> None:
    pager = Pager(4, 2)
    base = pager.extend(pager.empty(), 0, [Piece("a", 6)])
    assert pager.extend(base, 100, [Piece("b", 2)]).pieces == [Piece("a", 6), Piece("b", 2)]
