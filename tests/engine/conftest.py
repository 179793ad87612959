"""SGLang's real radix cache on CPU tensors, without a model or server around it."""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

os.environ.setdefault("KVFLOW_CPU_ENGINE", "1")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations
    import sglang.srt.managers.scheduler  # noqa: F401

PAGE_TOKENS = 4


class Tree:
    """One radix cache with its pools, driven by token sequences.

    Args:
        backend: tree core.
        policy: eviction order of kvflow's.
        beneath: SGLang's.
    """

    def __init__(self, backend: str, *, capacity_tokens: int = 256, policy: str = "cost", beneath: str = "lru") -> None:
        import torch
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
        from sglang.srt.mem_cache.unified_cache.components import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        pool = MHATokenToKVPool(capacity_tokens, PAGE_TOKENS, torch.float32, 1, 4, 1, "cpu", False)
        self.allocator = PagedTokenToKVPoolAllocator(
            capacity_tokens, PAGE_TOKENS, torch.float32, "cpu", pool, need_sort=False
        )
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(4, capacity_tokens, "cpu", False),
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE_TOKENS,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=backend,
            eviction_policy=beneath,
            eviction_policy_config={"threshold": 4, "next_prompt_estimate": 0} if beneath == "tlru" else None,
        )
        if backend == "kvflow":
            from kvflow.patches.tree import KvflowRadixCache

            self.cache: Any = KvflowRadixCache(params)
            self.cache.coordinator.set_policy(policy)
            self.cache.trust.restart()
        else:
            self.cache = UnifiedRadixCache(params)

    def insert(self, tokens: Sequence[int]) -> None:
        """Cache a prompt, evicting as a request's allocation would."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams

        tokens = tokens[: len(tokens) - len(tokens) % PAGE_TOKENS]
        known = self.match(tokens)
        missing = len(tokens) - known
        if missing > self.allocator.available_size():
            self.cache.evict_for_alloc(EvictParams(num_tokens=missing - self.allocator.available_size()))
            known = self.match(tokens)  # eviction may have taken part of the prefix
        import torch

        slots = self.allocator.alloc(len(tokens) - known)
        assert slots is not None
        value = torch.cat([torch.zeros(known, dtype=torch.int64), slots])
        self.cache.insert(InsertParams(key=self.key(tokens), value=value, prev_prefix_len=known))

    def match(self, tokens: Sequence[int]) -> int:
        """Tokens of a prompt that are on the device; refreshes their recency, as a request does."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        return int(self.cache.match_prefix(MatchPrefixParams(key=self.key(tokens))).device_prefix_len)

    def evict(self, tokens: int) -> None:
        """Free at least so many tokens."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self.cache.evict(EvictParams(num_tokens=tokens))

    def resident(self, tokens: Sequence[int]) -> int:
        """As :meth:`match`, but without touching anything (Python tree cores only)."""
        node, done = self.cache.tree_core.root_node, 0
        while done < len(tokens):
            child = node.children.get(self.key(tokens[done:]).child_key(PAGE_TOKENS))
            if child is None or child.evicted:
                break
            done += child.key.match(self.key(tokens[done:]), page_size=PAGE_TOKENS)
            node = child
        return done

    def path(self, tokens: Sequence[int]) -> list[tuple[Any, int]]:
        """Nodes of a cached prompt with the position where each ends."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        core = self.cache.tree_core
        result = self.cache.match_prefix(MatchPrefixParams(key=self.key(tokens)))
        node, end, nodes = core.node_by_id(result.last_device_node), int(result.device_prefix_len), []
        while node is not core.root_node:
            nodes.append((node, end))
            end -= len(node.key)
            node = node.parent
        return nodes

    @staticmethod
    def key(tokens: Sequence[int]) -> Any:
        from sglang.srt.mem_cache.radix_cache import RadixKey

        return RadixKey(array("q", tokens), None)


@pytest.fixture(scope="session", autouse=True)
def _registered() -> None:
    from kvflow.patches import tree

    tree.register()


@pytest.fixture
def make_tree() -> Callable[..., Tree]:
    return Tree


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Any]]:
    """Publish server arguments with a host tier, whose copies are those of the CPU engine."""
    from sglang.srt.managers import cache_controller
    from sglang.srt.mem_cache import l2_transfer
    from sglang.srt.mem_cache.pool_host import base, mha
    from sglang.srt.runtime_context import get_context

    from kvflow.patches.cpu import hicache, streams
    from kvflow.patches.cpu.transfer import transfer_kv_direct

    monkeypatch.setenv("KVFLOW_GUARD__ENABLED", "false")
    monkeypatch.setattr(l2_transfer, "device_module", streams)
    monkeypatch.setattr(cache_controller, "device_module", streams)
    monkeypatch.setattr(mha, "transfer_kv_direct", transfer_kv_direct, raising=False)  # SGLang has none on a CPU
    monkeypatch.setattr(base, "HICACHE_HOST_MEMORY_RESERVE_BYTES", hicache.HOST_RESERVE_BYTES)
    without_pinning, original = hicache._without_pinning(base.HostKVCache), base.HostKVCache.__init__

    def initialise(*arguments: Any, **options: Any) -> None:
        arguments, options = without_pinning(*arguments, **options)
        original(*arguments, **options)

    monkeypatch.setattr(base.HostKVCache, "__init__", initialise)
    installed: list[Any] = []

    def with_host(ratio: float) -> Any:
        fields: dict[str, Any] = {}
        if ratio:
            fields = {
                "enable_hierarchical_cache": True,
                "hicache_ratio": ratio,
                "hicache_write_policy": "write_through",
                "hicache_io_backend": "direct",
                "hicache_mem_layout": "layer_first",
            }
        override = get_context().override_server_args(**fields)
        installed.append(override)
        return override.install()

    yield with_host
    for override in reversed(installed):
        override.restore()


@pytest.fixture
async def front() -> AsyncIterator[Any]:
    """The HTTP process's side of kvflow, beside a tokenizer manager that only sends."""
    from kvflow.patches.front import Front
    from tests.engine.test_front import Manager

    front = Front.of(Manager())
    yield front
    for timer in front._timers:
        timer.cancel()
