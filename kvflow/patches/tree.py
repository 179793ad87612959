"""SGLang's radix cache, which knows whose prompts it holds: the body the coordinator runs in."""

from __future__ import annotations

import contextlib
import logging
from math import inf
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.registry import (
    create_unified_radix_cache,
    default_radix_cache_factory,
    register_radix_cache_backend,
)
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.tree_core_registry import register_tree_core_backend
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_parallel

from kvflow import config
from kvflow.engine import digest_of_head, is_exclusive
from kvflow.patches import stall, switch
from kvflow.patches.admission import Gate
from kvflow.patches.claim import claim_of, is_forerunner, refused
from kvflow.patches.commands import CacheCommands
from kvflow.patches.core import KvflowTreeCore
from kvflow.patches.guard import Guard
from kvflow.patches.metrics import Exporter
from kvflow.patches.prefetch import Prefetch
from kvflow.patches.residency import Residency
from kvflow.patches.seams import Feature, Role
from kvflow.patches.splicer import Splicer
from kvflow.patches.timing import Timing
from kvflow.patches.watch import Watch

logger = logging.getLogger(__name__)


def register() -> None:
    """Register the cache backend and the tree core with SGLang."""
    register_tree_core_backend(switch.BACKEND, KvflowTreeCore)
    register_radix_cache_backend(switch.BACKEND, build)


def build(context: Any) -> Any:
    """Build the cache of one scheduler rank (factory of the ``kvflow`` backend).

    Raises:
        SeamMissingError: a seam does not hold and ``KVFLOW_STRICT`` is set.
    """
    settings = config.load()
    book = switch.books[Role.SCHEDULER]
    book.require(strict=settings.strict)
    if not book.holds(Feature.EVICTION):
        return default_radix_cache_factory(context)
    if context.disable_radix_cache or (context.is_hybrid_swa and context.full_tokens_per_layer == 0):
        logger.warning("kvflow: SGLang keeps no radix tree for this model and these options, so nothing is managed")
        return default_radix_cache_factory(context)
    context.params.tree_core_backend = switch.BACKEND
    cache: Any = create_unified_radix_cache(context, cache_class=KvflowRadixCache)
    logger.info("kvflow evicts by %s on top of %s", cache.coordinator.policy, context.params.eviction_policy)
    if not cache.plain and cache.cache_controller is not None and _may_prefetch(settings):
        logger.info("kvflow: nothing is loaded or copied ahead for a model with sliding windows or state-space layers")
    return cache


class KvflowRadixCache(UnifiedRadixCache):
    """SGLang's radix cache, which enters a request's claim on the nodes of its prompt."""

    tree_core: KvflowTreeCore

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.coordinator = self.tree_core.coordinator
        self.accounting = self.tree_core.accounting
        self.trust = self.tree_core.trust
        self.journal = self.tree_core.journal
        collector = self.metrics_collector
        self._exporter = Exporter(_labels(collector.labels)) if collector is not None else None
        self._stall_base_s = 0.0
        self.watch = Watch(self, max(params.chunked_prefill_size or 0, 0))
        self.splicer: Splicer | None = None
        settings = config.load()
        self.tree_core.exclusive = self.plain and is_exclusive(
            settings.eviction.exclusive, self.token_to_kv_pool_allocator.size_full, params.chunked_prefill_size or 0
        )
        self.gate = Gate(self) if settings.admission.mode == "workflow" and _holds(Feature.ADMISSION) else None
        self.prefetch = Prefetch(self, settings.prefetch) if self.plain and _may_prefetch(settings) else None
        if self.prefetch is not None:
            self.tree_core.on_left = self.prefetch.left
        self.commands = CacheCommands(self, settings)
        self.residency = Residency(self)
        self.timing = Timing(self.coordinator.costs) if settings.costs.learn_compute else None
        self._tagging = Guard("claims")
        self._counting = Guard("counters")  # apart: what it calls may fail on one rank alone

    @property
    def plain(self) -> bool:
        """Whether there are no windows or states, which a part of a context may lack."""
        return len(self.tree_components) == 1

    def reset(self) -> None:
        super().reset()
        if hasattr(self, "accounting"):  # the first reset is part of construction
            self.accounting.forget_pages()
            self.coordinator.flushed()
            self.trust.clear()
            self.commands.flushed()
            self.residency.forget()
            if self.prefetch is not None:
                self.prefetch.forget()
            if self.splicer is not None:
                self.splicer.clear()

    def match_prefix(self, params: Any) -> Any:
        result = super().match_prefix(params)
        if params.req is not None:
            if not self.plain:
                params.req._kvflow_full_tokens = result.full_kv_hit_length
            self.watch.looked_up(params.req)
            # with admission its arrival has been told already, but without it by nobody
            if self.coordinator.claims.replicated and (claim := claim_of(params.req)) is not None:
                self._tagging.run(self.coordinator.asked, claim, default=None)
        return result

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        if self.splicer is not None:
            self.splicer.computed(req, up_to)
        with self._from_where_it_ends(req):
            super().checkpoint(req, up_to=self.publishable(req, up_to), **kwargs)
        if self.prefetch is not None and not req.finished():
            self.prefetch.entered(req)
        if not self.disable and not refused(req):
            self._tagging.run(self._tag, req, default=None)
            self._tagging.run(self.commands.prompt, req, default=None)
            self.watch.computed(req)

    def _from_where_it_ends(self, req: Any) -> contextlib.AbstractContextManager[None]:
        """Let what a request enters go on from the path that it holds."""
        if req.lock is None:
            return contextlib.nullcontext()
        return self.tree_core.going_on(self.tree_core.node_by_id(req.lock.node), req.kv.cache_protected_len)

    @property
    def follows(self) -> bool:
        """Whether it is still told apart whose contexts are where."""
        return self._tagging.failures_left > 0

    def publishable(self, req: Any, up_to: int) -> int:
        """How many of a request's first tokens other requests may see."""
        return self.splicer.publishable(req, up_to) if self.splicer is not None else up_to

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        super().on_release(req, checkpointed=checkpointed)
        self._left(req, checkpointed)

    def claim_kv_row(self, req: Any) -> bool:
        claimed = super().claim_kv_row(req)
        if claimed:  # a streaming session keeps what the request had, so that it is not released
            self._left(req, False)
        return claimed

    def _left(self, req: Any, checkpointed: bool) -> None:
        digests = self.watch.left(req, checkpointed)
        if self.gate is not None:
            self.gate.left(req, digests)
        self._tagging.run(self._answered, req, default=None)

    def evict_for_alloc(self, params: Any, **others: Any) -> Any:
        mark = self.tree_core.watermark
        alone = not (others or params.swa_num_tokens or params.mamba_num)
        with self.tree_core.short_of(params.num_tokens or inf):
            if not (alone and 0 < params.num_tokens < mark.high_tokens and len(self.coordinator.claims)):
                return super().evict_for_alloc(params, **others)
            wanted = self._component_available_size(ComponentType.FULL) + params.num_tokens
            with mark.raised(lambda: self._component_available_size(ComponentType.FULL) >= wanted):
                return super().evict_for_alloc(EvictParams(num_tokens=mark.high_tokens))

    def _execute_and_commit_kv_backup(self, action: Any, write_back: bool = False) -> int:
        if write_back or not self.tree_core.drops_copies:
            return super()._execute_and_commit_kv_backup(action, write_back)
        # What was above a copy when the action was made may have lost its own to the copy before this one.
        action = self.tree_core.build_backup_kv_action(action.node_ids[-1])
        with self.tree_core.keeping_copy(action.node_ids[0]):
            return super()._execute_and_commit_kv_backup(action)

    def load_back(self, node_id: int, mem_quota: int | None = None, req: Any = None) -> bool:
        before_tokens = self.accounting.counters.load_back_tokens
        loaded = super().load_back(node_id, mem_quota, req=req)
        claim = claim_of(req) if loaded and req is not None else None
        if claim is not None:
            tokens = self.accounting.counters.load_back_tokens - before_tokens
            self._counting.run(self.journal.loaded, claim.workflow_id, claim.agent, tokens, default=None)
        return loaded

    def publish(self) -> None:
        """Bring the counters and their series up to date."""
        self.accounting.counters.stall_s = stall.total_s() - self._stall_base_s
        if self._exporter is not None:
            programs = self.gate.programs if self.gate is not None else None
            self._exporter.publish(self.accounting.counters, self.trust, programs)

    def restart_counters(self) -> None:
        """Set the counters to zero; the series in /metrics go on."""
        self.publish()
        self.accounting.reset()
        self.trust.reset_regret()
        self._stall_base_s = stall.total_s()
        if self._exporter is not None:
            self._exporter.restart()

    def loading_check(self, finish_count: int | None = None) -> None:
        controller = self.cache_controller
        pending = list(controller.ack_load_queue) if controller is not None else []
        super().loading_check(finish_count)
        if controller is not None and pending:
            done = pending[: len(pending) - len(controller.ack_load_queue)]
            self._counting.run(self._count_loads, done, default=None)

    def _count_loads(self, acks: list[Any]) -> None:
        for ack in acks:
            if ack.timing_enabled:
                self.accounting.counters.load_back_s += ack.start_event.elapsed_time(ack.finish_event) / 1000

    def _tag(self, req: Any) -> None:
        """Enter a request's claim on its path, split where its fixed prompt ends."""
        claim = claim_of(req)
        if claim is None or req.lock is None or is_forerunner(req):
            return
        fixed_tokens = getattr(req, "_kvflow_fixed_tokens", None)
        first = fixed_tokens is None
        if first:
            fixed_tokens = self.in_pages(self.coordinator.fixed_tokens(claim, req.origin_input_ids))
            req._kvflow_fixed_tokens = fixed_tokens
        path = self.path_of(req)
        if not path:
            return
        if 0 < fixed_tokens < path[0][1] and all(end != fixed_tokens for _, end in path):
            self.touch_prefix(
                RadixKey(
                    req.origin_input_ids[: fixed_tokens + self._boundary_tokens],
                    req.extra_key,
                    is_bigram=self.tree_core.is_eagle,
                    cache_salt=req.cache_salt,
                )
            )
            path = self.path_of(req)
        digests = self.watch.digests(req)
        declared = digest_of_head(digests, claim.fixed_tokens or 0, self.tree_core.unit_tokens)
        again, req._kvflow_retracted = getattr(req, "_kvflow_retracted", False), False
        self.coordinator.tag(
            claim, path, fixed_tokens, first=first, again=again, fixed_digest=declared, digests=digests
        )

    def _answered(self, req: Any) -> None:
        """Let the claim of a request know that it is over, or was retracted and starts again later."""
        if is_forerunner(req):
            return
        claim = claim_of(req)
        if claim is not None:
            req._kvflow_retracted = not req.finished()
            tell = self.coordinator.retracted if req._kvflow_retracted else self.coordinator.answered
            tell(claim)
        if req.finished():
            self.commands.over(req)

    @property
    def _boundary_tokens(self) -> int:
        """By how much a path is shorter than its tokens: keys are of pairs where tokens are guessed ahead (EAGLE)."""
        return int(self.tree_core.is_eagle)

    def in_pages(self, tokens: int) -> int:
        """How long a path of so many tokens is, in whole pages."""
        length = max(0, tokens - self._boundary_tokens)
        return length - length % self.page_size

    def path_of(self, req: Any) -> list[tuple[Any, int]]:
        """Nodes of a request's path with the position where each ends, deepest first."""
        path = []
        node: Any = self.tree_core.node_by_id(req.last_node)
        end = req.kv.cache_protected_len
        while node is not self.tree_core.root_node:
            path.append((node, end))
            end -= len(node.key)
            node = node.parent
        return path


def _may_prefetch(settings: config.Settings) -> bool:
    return settings.prefetch.enabled and _holds(Feature.PREFETCH) and _holds(Feature.ADMISSION)


def _labels(labels: dict[str, Any]) -> dict[str, Any]:
    """SGLang's own labels with the replica: without attention data parallelism SGLang calls every one 0."""
    replica = get_parallel().dp_rank
    return labels if replica is None else {**labels, "dp_rank": replica}


def _holds(feature: Feature) -> bool:
    book = switch.books.get(Role.SCHEDULER)  # there is none where the cache is built without a scheduler
    return book is not None and book.holds(feature)
