"""Claims in SGLang's real radix cache where some layers are state-space layers, with a state at the end of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.engine.test_tree import announce, tag
from tests.engine.test_windows import CAPACITY_TOKENS, WindowTree, text

pytestmark = [pytest.mark.engine, pytest.mark.beside]

GRID_TOKENS = 64


class StateTree(WindowTree):
    """A radix cache for a model of one state-space layer and one of full attention, in pages of a token."""

    def __init__(self) -> None:
        import torch
        from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
        from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool
        from sglang.srt.mem_cache.unified_cache.components import ComponentType

        from kvflow.patches.tree import KvflowRadixCache

        size, dtype = CAPACITY_TOKENS, torch.float32
        shape = Mamba2StateShape.create(
            tp_world_size=1, intermediate_size=16, n_groups=1, num_heads=1, head_dim=16, state_size=16, conv_kernel=4
        )
        requests = HybridReqToTokenPool(
            size=4,
            mamba_size=64,
            mamba_spec_state_size=4,
            max_context_len=size,
            device="cpu",
            enable_memory_saver=False,
            cache_params=Mamba2CacheParams(shape=shape, layers=[0]),
            mamba_layer_ids=[0],
            enable_mamba_extra_buffer=False,
            speculative_num_draft_tokens=3,
        )
        pool = HybridLinearKVPool(
            size=size,
            dtype=dtype,
            page_size=1,
            head_num=1,
            head_dim=4,
            full_attention_layer_ids=[1],
            device="cpu",
            enable_memory_saver=False,
            mamba_pool=requests.mamba_pool,
        )
        self.allocator: Any = TokenToKVPoolAllocator(size, dtype, "cpu", pool, need_sort=False)
        self.window, self._states = ComponentType.MAMBA, requests.mamba_allocator
        self.cache: Any = KvflowRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=requests,
                token_to_kv_pool_allocator=self.allocator,
                page_size=1,
                tree_components=(ComponentType.FULL, ComponentType.MAMBA),
                tree_core_backend="kvflow",
            )
        )

    def insert(self, tokens: Sequence[int]) -> None:
        """Cache a prompt with the state at its end; there is room for it."""
        import torch
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        known = self.match(tokens)
        value = torch.cat([torch.zeros(known, dtype=torch.int64), self.allocator.alloc(len(tokens) - known)])
        state = self._states.alloc(1)
        self.cache.insert(InsertParams(key=self.key(tokens), value=value, prev_prefix_len=known, mamba_value=state))

    def evict_states(self, count: int) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self.cache.evict(EvictParams(num_tokens=0, mamba_num=count))


@pytest.fixture
def tree(publish: Callable[[float], Any], monkeypatch: pytest.MonkeyPatch) -> StateTree:
    from sglang.srt.runtime_context import get_server_args

    publish(0)
    monkeypatch.setattr(get_server_args(), "_mamba_cache_chunk_size", GRID_TOKENS, raising=False)
    return StateTree()


@pytest.mark.parametrize(("fixed_tokens", "kept"), [(0, [300]), (200 + GRID_TOKENS - 1, [200, 300])])
def test_of_a_claimed_context_the_states_at_its_ends_are_kept(
    tree: StateTree, fixed_tokens: int, kept: list[int]
) -> None:
    context, strangers = text(1, 300), [text(10 + number, 10) for number in range(3)]
    for end in (100, 200, 300):
        tree.insert(context[:end])
    announce(tree, "w", agent=1)
    tag(tree, "w", "agent", context, fixed_tokens)
    for stranger in strangers:
        tree.insert(stranger)
    tree.evict_states(3 - len(kept))
    assert tree.windows(context) == kept
    tree.evict_states(2)
    assert tree.windows(context) == kept
    assert [tree.windows(stranger) for stranger in strangers] == [[], [], [10]]
