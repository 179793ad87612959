"""Evictions from trees of so many leaves that a round looks at a part of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kvflow.engine import Choice
from kvflow.engine.leaves import EXACT
from kvflow.engine.pins import Pin
from kvflow.predict import WorkflowUpdate
from tests.engine.test_tree import announce, tag

pytestmark = [pytest.mark.engine, pytest.mark.beside]

MANY = 1024
"""Leaves of which a round looks at a part."""


def many(
    make_tree: Callable[..., Any], backend: str, seed: int = 6, beneath: str = "lru"
) -> tuple[Any, list[list[int]]]:
    """A full tree of many prompts that share nothing, some of them used again since."""
    tree, draw = make_tree(backend, capacity_tokens=8 * MANY, beneath=beneath), random.Random(seed)
    prompts = [[draw.randrange(10**6) for _ in range(8)] for _ in range(MANY)]
    for tokens in prompts:
        tree.insert(tokens)
    for tokens in draw.sample(prompts, MANY // 4):
        tree.match(tokens)
    return tree, prompts


@pytest.mark.parametrize("at_once", [8, 64, 8 * EXACT])
def test_without_hints_the_order_of_many_leaves_is_sglangs_own(make_tree: Callable[..., Any], at_once: int) -> None:
    (ours, prompts), (theirs, _) = many(make_tree, "kvflow"), many(make_tree, "python")
    for _ in range(min(40, 8 * MANY // at_once - 1)):
        ours.evict(at_once)
        theirs.evict(at_once)
        assert [ours.resident(tokens) for tokens in prompts] == [theirs.resident(tokens) for tokens in prompts]


@pytest.mark.parametrize("beneath", ["mru", "filo", "fifo", "slru", "tlru"])
def test_so_it_is_with_each_of_them(make_tree: Callable[..., Any], beneath: str) -> None:
    (ours, prompts), (theirs, _) = (
        many(make_tree, "kvflow", beneath=beneath),
        many(make_tree, "python", beneath=beneath),
    )
    draw = random.Random(9)
    for _ in range(60):
        used = [tokens[: draw.choice([4, 8])] for tokens in draw.sample(prompts, 20)]
        for tree in (ours, theirs):
            tree.evict(8)
            for tokens in used:
                tree.match(tokens)
        assert [ours.resident(tokens) for tokens in prompts] == [theirs.resident(tokens) for tokens in prompts]


def test_of_many_claimed_leaves_the_retired_ones_leave_first(make_tree: Callable[..., Any]) -> None:
    tree, prompts = many(make_tree, "kvflow")
    for number, tokens in enumerate(prompts):
        announce(tree, f"w{number}", a=1)
        tag(tree, f"w{number}", "a", tokens, 0)
    tree.evict(8)  # what is new has been sorted
    ended = [number for number in range(0, MANY, 50) if tree.resident(prompts[number])]
    for number in ended:
        tree.cache.coordinator.apply(WorkflowUpdate(workflow_id=f"w{number}", workflow_type="t", retired=True))
    tree.evict(8 * len(ended))
    assert not any(tree.resident(prompts[number]) for number in ended)
    assert sum(tree.resident(tokens) > 0 for tokens in prompts) == MANY - len(ended) - 1


def test_not_many_more_leaves_are_ranked_than_leave(make_tree: Callable[..., Any]) -> None:
    tree, _ = many(make_tree, "kvflow")
    order = tree.cache.tree_core.eviction_strategy
    ranked: list[Any] = []
    order._priority = lambda node, rank=order._priority: ranked.append(node) or rank(node)
    tree.evict(8 * 200)
    assert 200 <= len(ranked) < MANY / 2


def test_what_is_pinned_does_not_make_a_round_look_at_all_leaves(make_tree: Callable[..., Any]) -> None:
    """SGLang has a round go on until there is room, and asks it for all there is."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    tree, prompts = many(make_tree, "kvflow")
    announce(tree, "w", a=1)
    for tokens in prompts[-8:]:
        tag(tree, "w", "a", tokens, 0)
        node = tree.path(tokens)[0][0]
        node.owners.pins["t", "device"] = Pin(until_s=100.0, priority=50, on_device=True)
    order = tree.cache.tree_core.eviction_strategy
    ranked: list[Any] = []
    order._priority = lambda node, rank=order._priority: ranked.append(node) or rank(node)
    assert tree.cache.evict_for_alloc(EvictParams(num_tokens=8)).num_tokens_evicted >= 8
    assert 0 < len(ranked) < MANY / 2
    assert all(tree.resident(tokens) for tokens in prompts[-8:])


def test_all_of_many_leaves_can_be_evicted_at_once(make_tree: Callable[..., Any]) -> None:
    tree, prompts = many(make_tree, "kvflow")
    for number, tokens in enumerate(prompts):
        announce(tree, f"w{number}", a=1)
        tag(tree, f"w{number}", "a", tokens, 0)
    tree.evict(8 * MANY)
    assert not any(tree.resident(tokens) for tokens in prompts)
    assert tree.allocator.available_size() == 8 * MANY


@pytest.mark.parametrize(("choice", "oldest"), [(Choice(window_tokens=8 * 200), 200), (Choice(share=0.5), MANY // 2)])
def test_of_many_leaves_prediction_chooses_among_the_oldest_of_all(
    make_tree: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, choice: Choice, oldest: int
) -> None:
    tree, prompts = many(make_tree, "kvflow")
    for number, tokens in enumerate(prompts):
        announce(tree, f"w{number}", a=1)
        tag(tree, f"w{number}", "a", tokens, 0)
    core = tree.cache.tree_core
    monkeypatch.setattr(core.trust, "choice", lambda tier: choice)
    for _ in range(3):
        core.candidates()
        assert sum(node.last_access_time <= core.coordinator._cutoff for node in core.evictable_device_leaves) == oldest


def test_a_round_that_makes_room_for_states_spares_what_is_pinned(
    make_tree: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang may have contexts leave for a state, and then asks for no tokens of them."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    tree, prompts = many(make_tree, "kvflow")
    announce(tree, "w", a=1)
    free = prompts[500:516]
    for tokens in prompts:
        tag(tree, "w", "a", tokens, 8)
        if tokens not in free:
            tree.path(tokens)[0][0].owners.pins["t", "device"] = Pin(until_s=100.0, priority=50, on_device=True)
    monkeypatch.setattr(
        UnifiedRadixCache, "evict_for_alloc", lambda self, params: self.evict(EvictParams(num_tokens=8))
    )
    tree.cache.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
    assert sum(not tree.resident(tokens) for tokens in prompts) == 1
    assert sum(not tree.resident(tokens) for tokens in free) == 1
