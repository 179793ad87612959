"""Our keys say what SGLang's say, whatever is asked."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.mem_cache.radix_cache import RadixKey

from kvflow.patches.keys import KeyView, NodeKey
from tests.engine.conftest import Tree

pytestmark = [pytest.mark.engine, pytest.mark.beside]

tokens = st.lists(st.integers(0, 2), max_size=24)
namespaces = st.sampled_from([None, "lora"])
pages = st.sampled_from([1, 2, 4])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Tokens that often have a beginning in common."""
    common = draw(tokens)
    return common + draw(tokens), common + draw(tokens)


@given(pairs(), st.integers(0, 6), pages, namespaces, st.booleans(), st.none() | st.integers(0, 24))
def test_a_nodes_key_matches_as_sglangs(
    pair: tuple[list[int], list[int]], offset: int, page: int, extra: str | None, viewed: bool, limit: int | None
) -> None:
    own, other = RadixKey(array("q", pair[0]), extra), RadixKey(array("q", pair[1][:offset] + pair[1]), extra)
    own.limit = limit
    offset = min(offset, len(other))
    asked = KeyView.of(other) if viewed else other
    assert len(NodeKey.of(own)) == len(own)
    assert NodeKey.of(own).match_at(asked, offset, page) == own.match_at(other, offset, page)
    if not offset:
        assert NodeKey.of(own).match(asked, page) == own.match(other, page)


def test_keys_of_two_namespaces_are_refused_as_by_sglang() -> None:
    own, other = NodeKey(array("q", [1, 2]), "a"), RadixKey(array("q", [1, 2]), "b")
    with pytest.raises(ValueError, match="matching extra_key"):
        own.match(other)


@pytest.mark.parametrize("bigram", [False, True])
def test_bigrams_are_counted_as_by_sglang(bigram: bool) -> None:
    own, other = (RadixKey(array("q", ids), None, bigram) for ids in ([1, 2, 3, 4], [1, 2, 3, 5]))
    assert NodeKey.of(own).match(other) == own.match(other)
    assert len(NodeKey.of(own)) == len(own)


@given(tokens, st.slices(24), st.slices(24), pages, namespaces)
def test_a_view_is_cut_as_sglangs_key(
    ids: list[int], first: slice, second: slice, page: int, extra: str | None
) -> None:
    first, second = slice(first.start, first.stop), slice(second.start, second.stop)
    key = RadixKey(array("q", ids), extra, cache_salt="salt")
    view, cut = KeyView.of(key)[first][second], key[first][second]
    assert isinstance(view, KeyView)
    assert (len(view), view.token_ids, list(view)) == (len(cut), cut.token_ids, list(cut))
    assert (view.extra_key, view.cache_salt) == (cut.extra_key, cut.cache_salt)
    assert view.page_aligned(page).token_ids == cut.page_aligned(page).token_ids
    for offset in range(len(cut) - page + 1):
        assert view.child_key_at(offset, page) == cut.child_key_at(offset, page)
    for index in range(len(cut)):
        assert view[index].token_ids == cut[index].token_ids


def test_a_view_of_a_capped_key_ends_where_that_does() -> None:
    view = KeyView.of(RadixKey(array("q", range(9)), limit=5))
    assert list(view[2:]) == [2, 3, 4]


def test_a_session_that_grows_leaves_our_keys_in_the_tree() -> None:
    tree, ids = Tree("kvflow"), list(range(40))
    for turn in range(5):
        ids += range(100 * turn, 100 * turn + 12)
        tree.insert(ids)
        tree.insert([*ids[:20], *range(900 + 8 * turn, 908 + 8 * turn)])  # and divides nodes
    assert tree.match(ids) == len(ids)
    nodes = [node for node, _ in tree.path(ids)]
    assert len(nodes) > 5
    assert {type(node.key) for node in nodes} == {NodeKey}
    assert [token for node in reversed(nodes) for token in node.key] == ids
