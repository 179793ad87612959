"""Following SGLang's requests: what they found in the cache, beside what LRU would have had for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sglang.srt.mem_cache.unified_cache.components import ComponentType

from kvflow.engine import Tier, brought_tokens, digests, rest_tokens
from kvflow.engine.guard import MemoryView
from kvflow.patches import stall
from kvflow.patches.claim import claim_of, namespace_of
from kvflow.patches.guard import Guard

if TYPE_CHECKING:
    from kvflow.patches.tree import KvflowRadixCache

T = TypeVar("T")

_WHOLE_PROMPT = 1 << 30
"""Chunk size where prompts are not computed in chunks."""
_PUBLISH_S = 0.5
"""How often the series in /metrics are brought up to date while requests run."""


class Watch:
    """Counts hits, and shows the guard what happens.

    Args:
        cache: whose requests are followed.
        chunk_tokens: how much of a prompt is computed at a time; 0: all of it.
    """

    def __init__(self, cache: KvflowRadixCache, chunk_tokens: int) -> None:
        self._cache = cache
        self._chunk_tokens = chunk_tokens or _WHOLE_PROMPT
        self._in_use: Counter[int] = Counter()
        self._published_s = 0.0
        self._watching = Guard("guard")
        self._using = Guard("prefetch")  # what it tells decides what is loaded, on every rank alike
        self._counting = Guard("counters")  # apart: what it calls may fail on one rank alone

    def looked_up(self, req: Any) -> None:
        """A request that waits has been matched against the tree, or its prefix has been refreshed there."""
        if self._cache.trust.guarded:
            self._watched(self._look_up, req, default=None)

    def computed(self, req: Any) -> None:
        """Another chunk of a request has been computed."""
        used = self._using.run(self._newly_used, req, default=None)
        self._watched(self._compare, req, used or (), default=None)
        if used is not None and self._cache.prefetch is not None:
            self._using.run(self._cache.prefetch.used, used, default=None)
        self._counting.run(self._count, req, default=None)
        self.publish()

    def left(self, req: Any, checkpointed: bool) -> Sequence[int]:
        """A request gives its memory back: answered, aborted, or to start again later.

        Returns:
            Digests of what of it has been left in the cache; empty if that is nothing.
        """
        self._counting.run(self._let_go, req, default=None)
        found = self._watched(self._leave, req, checkpointed, default=())
        self.publish()
        return found

    def _watched(self, function: Callable[..., T], *arguments: Any, default: T) -> T:
        found = self._watching.run(function, *arguments, default=default)
        if not self._watching.failures_left:
            self._cache.trust.give_up()
        return found

    def _let_go(self, req: Any) -> None:
        """What a request has been counted to use, it uses no more."""
        for unit in req.__dict__.pop("_kvflow_in_use", ()):
            self._in_use[unit] -= 1
            if self._in_use[unit] <= 0:
                del self._in_use[unit]

    def publish(self) -> None:
        """Bring the series up to date if it is time, or nobody computes any more."""
        self._counting.run(self._publish, default=None)

    def memory(self) -> MemoryView:
        """What there is to cache in."""
        cache = self._cache
        device = cache.token_to_kv_pool_allocator.size_full
        in_tree = cache.full_evictable_size() + cache.full_protected_size()
        private = device - cache._component_available_size(ComponentType.FULL) - in_tree
        host = 0
        if cache.cache_controller is not None:
            pool = cache.cache_controller.mem_pool_host
            host = getattr(pool, "logical_size", pool.size)  # of all ranks that share a context (--dcp-size)
        return MemoryView(device, host, max(0, private), self._chunk_tokens)

    def digests(self, req: Any) -> list[int]:
        """Digests of what of a request's prompt can be cached, as far as that is known yet; computed once."""
        unit = self._cache.tree_core.unit_tokens
        if not hasattr(req, "_kvflow_digests"):
            req._kvflow_digests = digests(req.origin_input_ids, namespace_of(req), unit)
        found: list[int] = req._kvflow_digests
        return found[: self._cache.publishable(req, len(req.origin_input_ids)) // unit]

    def _look_up(self, req: Any) -> None:
        self._cache.trust.looked_up(req.rid, self.digests(req))

    def _compare(self, req: Any, used: Sequence[Any]) -> None:
        """Compare a request's hits with LRU's once its first chunk has been computed, and after every retraction.

        What was loaded while it waited in the queue was not on the device when it came.
        What it cannot go on from for want of a window or state no order of contexts has lost: that counts as found.
        """
        if getattr(req, "_kvflow_watched", None) == req.retraction_count:
            return
        req._kvflow_watched = req.retraction_count
        rest = self._rest_tokens(self._cache.publishable(req, len(req.origin_input_ids)))
        hits = _hits(req)
        brought = min(hits[Tier.DEVICE], brought_tokens(used))
        hits |= {Tier.DEVICE: hits[Tier.DEVICE] - brought, Tier.HOST: hits[Tier.HOST] + brought}
        unused = max(0, getattr(req, "_kvflow_full_tokens", 0) - sum(hits.values()))
        hits |= {Tier.DEVICE: hits[Tier.DEVICE] + unused}
        self._cache.trust.started(req.rid, self.digests(req), hits, self.memory(), rest)

    def _leave(self, req: Any, checkpointed: bool) -> list[int]:
        if not hasattr(req, "_kvflow_digests"):  # it was never looked up
            return []
        prompt = self.digests(req)
        whole: list[int] = []
        rest = 0
        if checkpointed:
            tokens = req.full_untruncated_fill_ids[: self._cache.publishable(req, req.owned_kv_len())]
            whole = digests(tokens, namespace_of(req), self._cache.tree_core.unit_tokens, known=prompt)
            self._cache.accounting.cached(whole[len(prompt) :])
            rest = self._rest_tokens(len(tokens))
        self._cache.trust.ended(req.rid, whole, self.memory(), rest)
        return whole

    def _newly_used(self, req: Any) -> list[Any] | None:
        """What a request computes behind, the first time and after every retraction; loads ahead of it are used now."""
        if self._cache.prefetch is None or req.lock is None:  # a turn of a session goes on from what the session holds
            return None
        if getattr(req, "_kvflow_used", None) == req.retraction_count:
            return None
        req._kvflow_used = req.retraction_count
        return [node for node, _ in self._cache.path_of(req)]

    def _count(self, req: Any) -> None:
        """Count a request's hits once its first chunk has been computed, and again after every retraction."""
        cache = self._cache
        counted = getattr(req, "_kvflow_counted", None)
        if counted == req.retraction_count:
            return
        req._kvflow_counted = req.retraction_count
        claim, stalled_s = claim_of(req), stall.of(req)
        if claim is not None and stalled_s > 0:
            cache.journal.stalled(claim.workflow_id, claim.agent, req.rid, stalled_s)
        if counted is not None:
            cache.accounting.retracted(len(req.full_untruncated_fill_ids) - req.num_matched_prefix_tokens)
            return
        units, hits = self.digests(req), _hits(req)
        missing = units[sum(hits.values()) // cache.tree_core.unit_tokens :]
        # what requests compute at the same time, none of them has lost
        recomputed = cache.accounting.known([unit for unit in missing if unit not in self._in_use], 0)
        cache.accounting.prompt(len(req.origin_input_ids), units, hits, recomputed)
        req._kvflow_in_use = units
        self._in_use.update(units)

    def _publish(self) -> None:
        now_s = time.monotonic()
        if not self._in_use or now_s - self._published_s >= _PUBLISH_S:
            self._published_s = now_s
            self._cache.publish()

    def _rest_tokens(self, tokens: int) -> int:
        """What of so many tokens lies behind the last full unit, in pages that can be cached."""
        return rest_tokens(tokens, self._cache.tree_core.unit_tokens, self._cache.page_size)


def refreshed(result: None, req: Any, tree_cache: Any) -> None:
    """Let the guard see what SGLang keeps for a request that waits (hook after ``touch_waiting_prefix``).

    SGLang goes through the queue every 32nd pass, and says whose prompts these are only here.
    """
    watch = getattr(tree_cache, "watch", None)
    if watch is not None:
        watch.looked_up(req)


def _hits(req: Any) -> dict[Tier, int]:
    """Tokens of a request's prompt that were found, by tier; the storage's share of a second try is not known."""
    if req.retraction_count:
        loaded = min(req.materialized_host_hit_len(), req.num_matched_prefix_tokens)
        return {Tier.DEVICE: req.num_matched_prefix_tokens - loaded, Tier.HOST: loaded, Tier.STORAGE: 0}
    return {
        Tier.DEVICE: req.cached_tokens_device,
        Tier.HOST: req.cached_tokens_host,
        Tier.STORAGE: req.cached_tokens_storage,
    }
