"""Fetches from SGLang's storage tier that no request asked for."""

from __future__ import annotations

from array import array
from itertools import count
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.radix_cache import RadixKey

from kvflow.engine import Fetch, Fetcher
from kvflow.patches.guard import Guard
from kvflow.policy import PrefetchPace

if TYPE_CHECKING:
    from kvflow.config import Prefetch as PrefetchSettings
    from kvflow.patches.tree import KvflowRadixCache


class StorageFetch:
    """Brings contexts from storage to the host, one at a time, by the way SGLang does for a request that waits.

    Nodes that have left the host are no longer in the tree, but keep their tokens as long as a claim refers to them.
    Every rank asks for the same in the same step, and SGLang tells all of them in the same step that it has come.
    Should it fail, nothing is fetched ahead any more.

    Args:
        cache: whose contexts are fetched.
        settings: how much.
    """

    def __init__(self, cache: KvflowRadixCache, settings: PrefetchSettings) -> None:
        coordinator = cache.coordinator
        self.planner = Fetcher(
            coordinator,
            PrefetchPace(
                coordinator.costs.of_storage(), settings.link_share, cache.token_to_kv_pool_allocator.size_full
            ),
            lambda: cache.accounting.counters,
            least_tokens=lambda: cache.prefetch_threshold,  # configured once the cache has been made
        )
        self._cache = cache
        self._numbers = count()
        self._under_way: tuple[CacheRequestHandle, Fetch] | None = None
        self._guard = Guard("fetch")

    def begin(self) -> None:
        """Begin the next fetch, if there is one."""
        if self._under_way is None and self._cache.enable_storage and not self._cache.tree_core.is_eagle:
            self._guard.run(self._begin, default=None)

    def reap(self) -> None:
        """Take note of a fetch that has ended."""
        if self._under_way is not None and self._under_way[0] not in self._cache.ongoing_prefetch:
            handle, fetch = self._under_way
            self._under_way = None
            self._guard.run(self._end, handle, fetch, default=None)

    def give_up(self) -> None:
        """Do without what is under way."""
        if self._under_way is not None:
            (handle, fetch), self._under_way = self._under_way, None
            self._cache.release_aborted_request(handle)
            self.planner.given_up(fetch)

    def forget(self) -> None:
        """The cache has been reset."""
        self._under_way = None
        self.planner.flushed()

    def _begin(self) -> None:
        cache = self._cache
        fetch = self.planner.next()
        if fetch is None:
            return
        anchor: Any = fetch.nodes[0].parent
        key = fetch.nodes[0].key
        handle = CacheRequestHandle(f"kvflow-{next(self._numbers)}", 0)
        if anchor.parent is None or anchor.backuped:
            cache.prefetch_from_storage(
                handle,
                anchor.id,
                _tokens(fetch.nodes),
                cache.get_last_hash_value(anchor.id),
                cache.get_prefix_hash_values(anchor.id) if cache.hicache_storage_pass_prefix_keys else None,
                matched_prefix_tokens=_tokens(_path_to(anchor)),
                extra_key=key.extra_key,
                cache_salt=key.cache_salt,
            )
        if handle not in cache.ongoing_prefetch:
            cache.release_aborted_request(handle)
            self.planner.refused(fetch)
            return
        self._under_way = handle, fetch
        self.planner.begun(fetch)

    def _end(self, handle: CacheRequestHandle, fetch: Fetch) -> None:
        cache = self._cache
        found_tokens, _ = cache.pop_prefetch_loaded_span(handle)
        cache.release_aborted_request(handle)  # what SGLang keeps per request
        last = fetch.last
        tokens = _tokens(_path_to(last))
        key = RadixKey(tokens, extra_key=last.key.extra_key, cache_salt=last.key.cache_salt)
        fixed_tokens = fetch.claim.fixed_prompt.tokens
        if 0 < fixed_tokens < len(tokens):
            cache.touch_prefix(key[:fixed_tokens])
        self.planner.ended(fetch, self._path(key), found_tokens)

    def _path(self, key: RadixKey) -> list[tuple[Any, int]]:
        """Nodes of a context with the position where each ends, deepest first."""
        page_tokens = self._cache.page_size
        node: Any = self._cache.tree_core.root_node
        path: list[tuple[Any, int]] = []
        end = 0
        while end < len(key):
            rest = key[end:]
            node = node.children.get(rest.child_key(page_tokens))
            if node is None or node.key.match(rest, page_size=page_tokens) < len(node.key):
                break
            end += len(node.key)
            path.append((node, end))
        return path[::-1]


def _path_to(node: Any) -> list[Any]:
    """Nodes from the top down to one."""
    path = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path[::-1]


def _tokens(nodes: Any) -> Any:
    tokens = array("q")
    for node in nodes:
        tokens.extend(node.key.raw_token_ids())
    return tokens
