"""Claims, pins and the guard in SGLang's real radix cache where some layers have a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kvflow.engine import KvCommand
from kvflow.engine.owners import Owners, Pin
from kvflow.patches.claim import attach
from tests.engine.conftest import Tree
from tests.engine.test_tree import announce, predict, tag

pytestmark = [pytest.mark.engine, pytest.mark.beside]

WINDOW_TOKENS = 8
CAPACITY_TOKENS = 4096


class WindowTree(Tree):
    """A radix cache for a model of one layer with a window and one without, in pages of a token."""

    def __init__(self) -> None:
        import torch
        from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
        from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
        from sglang.srt.mem_cache.unified_cache.components import ComponentType

        from kvflow.patches.tree import KvflowRadixCache

        size, dtype = CAPACITY_TOKENS, torch.float32
        pool = SWAKVPool(size, size, 1, dtype, 1, 4, [0], [1], "cpu")
        self.allocator: Any = SWATokenToKVPoolAllocator(size, size, 1, dtype, "cpu", kvcache=pool, need_sort=False)
        self.window = ComponentType.SWA
        self.cache: Any = KvflowRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=ReqToTokenPool(4, size, "cpu", False),
                token_to_kv_pool_allocator=self.allocator,
                page_size=1,
                sliding_window_size=WINDOW_TOKENS,
                tree_components=(ComponentType.FULL, ComponentType.SWA),
                tree_core_backend="kvflow",
            )
        )

    def insert(self, tokens: Sequence[int]) -> None:
        """Cache a prompt; there is room for it."""
        import torch
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        known = self.match(tokens)
        value = torch.cat([torch.zeros(known, dtype=torch.int64), self.allocator.alloc(len(tokens) - known)])
        self.cache.insert(InsertParams(key=self.key(tokens), value=value, prev_prefix_len=known))

    def evict_windows(self, tokens: int) -> None:
        """Free so many tokens of the windows' pool."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self.cache.evict(EvictParams(num_tokens=0, swa_num_tokens=tokens))

    def nodes(self, tokens: Sequence[int]) -> list[tuple[Any, int]]:
        """As :meth:`path`, but from the top, on any tier, and without touching anything."""
        node, done, found = self.cache.tree_core.root_node, 0, []
        while done < len(tokens) and (child := node.children.get(self.key(tokens[done:]).child_key(1))) is not None:
            node, done = child, done + len(child.key)
            found.append((node, done))
        return found

    def windows(self, tokens: Sequence[int]) -> list[int]:
        """Where nodes of a prompt end that have their part of its windows on the device."""
        return [end for node, end in self.nodes(tokens) if node.component_data[self.window].value is not None]

    def to_host(self, tokens: Sequence[int]) -> None:
        """Have all of a prompt on the host alone."""
        import torch

        for node, _ in reversed(self.nodes(tokens)):
            for kind in self.cache.tree_components:
                node.component_data[kind].host_value = torch.zeros(len(node.key), dtype=torch.int64)
            self.cache._demote(node.id, dict.fromkeys(self.cache.tree_components, 0))

    def evict_host_windows(self, tokens: int) -> None:
        """Free so many tokens of the windows' pool on the host."""
        result = self.cache.tree_core.drive_host_eviction(self.window, tokens)
        result.host_frees.clear()  # there is no such pool here

    def pin(self, tokens: Sequence[int]) -> None:
        for node, end in self.nodes(tokens):
            node.owners = node.owners or Owners(end)
            node.owners.pins["t", "device"] = Pin(until_s=1000.0, priority=50, on_device=True)


@pytest.fixture
def tree() -> WindowTree:
    made = WindowTree()
    made.cache.coordinator.tick(100.0)
    return made


def text(name: int, tokens: int) -> list[int]:
    return [1000 * name + place for place in range(tokens)]


def grown(tree: WindowTree, context: list[int]) -> list[int]:
    """A context that is cached in three steps, so that its nodes end at 24, 32, 56, 64, 88, and 96."""
    for end in (32, 64, 96):
        tree.insert(context[:end])
    assert tree.windows(context) == [24, 32, 56, 64, 88, 96]
    return context


def test_of_a_claimed_context_the_window_at_its_end_is_kept(tree: WindowTree) -> None:
    context = grown(tree, text(1, 96))
    announce(tree, "w", agent=1)
    tag(tree, "w", "agent", context, 0)
    strangers = [text(10 + number, WINDOW_TOKENS) for number in range(4)]
    for stranger in strangers:
        tree.insert(stranger)
    tree.evict_windows(64)
    assert tree.windows(context) == [88, 96]
    assert all(tree.windows(stranger) for stranger in strangers)
    tree.evict_windows(8)
    assert tree.windows(context) == [88, 96]
    assert [bool(tree.windows(stranger)) for stranger in strangers] == [False, True, True, True]


def test_so_is_that_of_a_fixed_prompt_which_workflows_share(tree: WindowTree) -> None:
    first = grown(tree, text(1, 96))
    second = first[:64] + text(2, 32)
    tree.insert(second)
    for workflow, context in (("w1", first), ("w2", second)):
        announce(tree, workflow, agent=1)
        tag(tree, workflow, "agent", context, 64)
    for number in range(4):
        tree.insert(text(10 + number, WINDOW_TOKENS))
    tree.evict_windows(32)
    assert tree.windows(first) == [56, 64, 88, 96]


def test_what_is_left_of_a_claimed_context_ends_where_the_rest_was_lost(tree: WindowTree) -> None:
    context = grown(tree, text(1, 96))
    announce(tree, "w", agent=1)
    tag(tree, "w", "agent", context, 0)
    tree.evict(32)
    assert tree.windows(context)[-1] == 64
    stranger = text(9, WINDOW_TOKENS)
    tree.insert(stranger)
    tree.evict_windows(64)
    assert (tree.windows(context), tree.windows(stranger)) == ([64], [])


def test_where_all_of_the_oldest_are_claimed_the_least_valuable_of_them_leave(tree: WindowTree) -> None:
    contexts = [text(number, WINDOW_TOKENS) for number in range(1, 101)]
    for number, context in enumerate(contexts):
        tree.insert(context)
        predict(tree, f"a{number}", context, due_s=105.0 if number % 4 else 1000.0)
    tree.evict_windows(WINDOW_TOKENS * 16)
    gone = [number for number, context in enumerate(contexts) if not tree.windows(context)]
    assert gone == list(range(0, 64, 4))


def test_behind_many_pinned_contexts_those_that_are_not_are_found(tree: WindowTree) -> None:
    contexts = [text(number, WINDOW_TOKENS) for number in range(1, 81)]
    for number, context in enumerate(contexts):
        tree.insert(context)
        if number < 70:
            tree.pin(context)
    tree.evict_windows(WINDOW_TOKENS * 10)
    assert [number for number, context in enumerate(contexts) if not tree.windows(context)] == list(range(70, 80))


@pytest.mark.parametrize("kept_by", ["pin", "claim"])
def test_windows_leave_the_host_in_the_order_of_what_they_belong_to(
    monkeypatch: pytest.MonkeyPatch, kept_by: str
) -> None:
    monkeypatch.setenv(
        "KVFLOW_GUARD__ENABLED", str(kept_by == "pin")
    )  # claims are predictions, and on the host bounded
    tree = WindowTree()
    kept, stranger = text(1, WINDOW_TOKENS), text(2, WINDOW_TOKENS)
    for context in (kept, stranger):
        tree.insert(context)
        if context is kept and kept_by == "pin":
            tree.pin(kept)
        elif context is kept:
            announce(tree, "w", agent=1)
            tag(tree, "w", "agent", kept, 0)
        tree.to_host(context)
    tree.evict_host_windows(WINDOW_TOKENS)
    assert (len(tree.nodes(kept)), len(tree.nodes(stranger))) == (1, 0)
    tree.evict_host_windows(WINDOW_TOKENS)
    assert not tree.nodes(kept), "when it has to"


def request(name: str, tokens: Sequence[int], **more: Any) -> Any:
    fields = {"extra_key": None, "cache_salt": None, "session": None, "retraction_count": 0, "kv_hints": None}
    hits = {f"cached_tokens_{tier}": 0 for tier in ("device", "host", "storage")}
    sampling = SimpleNamespace(max_new_tokens=1, n=1)
    return SimpleNamespace(
        **{**fields, **hits, "rid": name, "origin_input_ids": [*tokens], "sampling_params": sampling, **more}
    )


def test_what_cannot_be_used_for_want_of_a_window_is_nothing_that_predictions_have_lost(tree: WindowTree) -> None:
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

    cache, head = tree.cache, text(1, 64)
    tree.insert(head)
    tree.insert(head + text(2, WINDOW_TOKENS))
    tree.evict_windows(64)
    assert tree.windows(head + text(2, WINDOW_TOKENS)) == [72]
    for name in ("first", "second"):
        req = request(name, head)
        found = cache.match_prefix(MatchPrefixParams(key=tree.key(head + text(3, 1)), req=req))
        assert (found.device_prefix_len, found.full_kv_hit_length) == (0, 64)
        cache.watch._compare(req, ())
        cache.trust.ended(name, (), cache.watch.memory())
    assert cache.tree_core.unit_tokens == 64
    assert cache.trust.regret.lost_tokens == 0


def test_a_prompt_is_pinned_when_it_has_been_computed_and_all_of_it_once_it_is_there(tree: WindowTree) -> None:
    cache, prompt = tree.cache, text(1, 64)
    actions = attach({"actions": []}, None, [KvCommand(verb="kv.pin", tenant="t", ttl_s=60.0)], key="k")["actions"]
    hints = SimpleNamespace(actions=[SimpleNamespace(**action) for action in actions])
    req = request("r", prompt, kv_hints=hints, lock=object(), extend_end=32, kv=SimpleNamespace(holds_kv=True))
    told: list[Any] = []
    cache.commands.tell = lambda message, req: told.append(message)

    def entered(tokens: int) -> list[bool]:
        tree.insert(prompt[:tokens])
        path = tree.nodes(prompt[:tokens])
        req.last_node, req.kv.cache_protected_len = path[-1][0].id, tokens
        cache.commands.prompt(req)
        return [bool(node.owners is not None and node.owners.pins) for node, _ in path]

    assert not any(entered(32)), "a chunk"
    req.extend_end = 64
    assert all(entered(32)), "SGLang enters the rest later"
    assert not told
    assert all(entered(64))
    cache.commands.over(req)
    (answer,) = told[0].answers
    assert (answer["status"], answer["tokens"]) == ("accepted", 64)
    assert cache.commands.outcomes == {"accepted": 1}
