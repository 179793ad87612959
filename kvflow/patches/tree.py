"""SGLang's radix cache with claims on its nodes: the body the coordinator runs in.

Both tiers ask one strategy object for the order, so ranking nodes there governs eviction on device and host alike.
SGLang's configured strategy stays underneath and breaks ties, which makes an unhinted server behave as without kvflow.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.registry import create_unified_radix_cache, register_radix_cache_backend
from sglang.srt.mem_cache.unified_cache.tree_core_registry import register_tree_core_backend
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from kvflow import config
from kvflow.engine import Accounting, Coordinator, Journal, Tier, unit_tokens
from kvflow.engine.leaves import Leaves, made_of
from kvflow.patches import stall, switch
from kvflow.patches.admission import Gate
from kvflow.patches.claim import claim_of
from kvflow.patches.commands import CacheCommands
from kvflow.patches.guard import Guard, note
from kvflow.patches.keys import KeyView, NodeKey
from kvflow.patches.known import count_values_fast, go_ahead, inner
from kvflow.patches.metrics import Exporter
from kvflow.patches.orders import require_servable
from kvflow.patches.prefetch import Prefetch
from kvflow.patches.rank import ClaimOrder
from kvflow.patches.seams import Feature, Role
from kvflow.patches.splicer import Splicer
from kvflow.patches.trust import Trust
from kvflow.patches.watch import Watch
from kvflow.policy import EvictionClass, ServingCosts

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
        return create_unified_radix_cache(context)
    context.params.tree_core_backend = switch.BACKEND
    cache: Any = create_unified_radix_cache(context, cache_class=KvflowRadixCache)
    logger.info("kvflow evicts by %s on top of %s", cache.coordinator.policy, context.params.eviction_policy)
    return cache


class KvflowTreeCore(UnifiedTreeCore):
    """SGLang's Python tree core, whose nodes carry owners."""

    evictable_device_leaves: Any  # Leaves; sets, while SGLang's constructor runs
    evictable_host_leaves: Any

    def __init__(self, params: Any, components: Any) -> None:
        settings = config.load()
        require_servable(settings.eviction.policy)
        self.unit_tokens = unit_tokens(params.page_size)
        costs = ServingCosts(**settings.costs.model_dump(exclude={"learn_loads"}))
        self.coordinator = Coordinator(settings.eviction.policy, costs, cached=self._has)
        self.accounting = Accounting(self.unit_tokens, settings.telemetry.ghost_pages)
        self.trust = Trust(settings.guard, self.coordinator, self.unit_tokens)
        self.journal = Journal(self.coordinator.claims.clock, settings.telemetry.journal_entries)
        self._telling = Guard("journal")
        self.on_left: Callable[[Any, Tier], None] = lambda node, tier: None
        self.known: tuple[Any, int] | None = None
        super().__init__(params, components)
        count_values_fast(self.components)
        self.eviction_strategy = order = ClaimOrder(self.coordinator, self.eviction_strategy)
        self.own_order: Any = order.own
        self.coordinator.claims.on_ended = self._ended
        self._order_leaves()

    def _new_node(self, priority: int = 0) -> Any:
        node: Any = super()._new_node(priority)
        node.owners = node.load = None
        node.fetched = False
        return node

    def _has(self, node: Any) -> bool:
        """Whether a node is in the tree; one that was removed keeps its values."""
        try:
            return self.node_by_id(node.id) is node
        except KeyError:
            return False

    def _split_node(self, key: Any, child: Any, split_len: int) -> Any:
        result: Any = super()._split_node(key, child, split_len)
        self.coordinator.split(result[0], child)
        for node in (result[0], child):
            node.key = NodeKey.of(node.key)
        return result

    def begin_insert(self, params: Any) -> Any:
        if not (self.is_eagle or params.key.is_bigram):
            params.key = KeyView.of(params.key)
        return super().begin_insert(params)

    def _update_evictable_leaf_sets(self, node: Any) -> None:
        if inner(node):
            self.evictable_device_leaves.discard(node)
            self.evictable_host_leaves.discard(node)
        else:
            super()._update_evictable_leaf_sets(node)

    def _advance_insert(self) -> Any:
        walk: Any = self._ongoing_insert_walk_state
        if self.known is not None and walk.node is self.root_node:
            go_ahead(self, walk, *self.known)
        return super()._advance_insert()

    def _add_new_node(self, *args: Any, **kwargs: Any) -> Any:
        node: Any = super()._add_new_node(*args, **kwargs)
        node.key = NodeKey.of(node.key)
        return node

    def reset(self) -> None:
        super().reset()
        if hasattr(self, "own_order"):  # else it is the one in SGLang's constructor
            self._order_leaves()

    def evict_device_start(self, component_type: Any, request_cnt: int) -> Any:
        self._asked_tokens = request_cnt
        self._open_round(self.evictable_device_leaves)
        return super().evict_device_start(component_type, request_cnt)

    def evict_device_next_node(self, component_type: Any, tracker: Any) -> Any:
        result = super().evict_device_next_node(component_type, tracker)
        enough = result.made_progress or tracker[component_type] >= self._asked_tokens
        if enough or not self.evictable_device_leaves.widen():
            return result
        super().evict_device_end(component_type)
        super().evict_device_start(component_type, self._asked_tokens)
        return super().evict_device_next_node(component_type, tracker)

    def evict_device_end(self, component_type: Any) -> Any:
        self._close_round(self.evictable_device_leaves)
        return super().evict_device_end(component_type)

    def drive_host_eviction(self, component_type: Any, num_tokens: int) -> Any:
        self._open_round(self.evictable_host_leaves, tokens=num_tokens)
        try:
            return super().drive_host_eviction(component_type, num_tokens)
        finally:
            self._close_round(self.evictable_host_leaves)

    def evict_device_leaf(self, node_id: int, is_write_back: bool) -> Any:
        node: Any = self.node_by_id(node_id)
        cls, tokens = self.class_of(node), len(node.key)
        result = super().evict_device_leaf(node_id, is_write_back)
        if result.backup_kv is None:  # else the node stays until demote()
            self._leaves(node, Tier.DEVICE, cls, tokens)
        return result

    def demote(self, node_id: int) -> Any:
        node: Any = self.node_by_id(node_id)
        self._leaves(node, Tier.DEVICE, self.class_of(node), len(node.key))
        return super().demote(node_id)

    def candidates(self) -> list[Any]:
        """What could leave the device, ready to be ranked: all of it, or the part that a round would look at."""
        leaves = self.evictable_device_leaves
        self._open_round(leaves)
        found = list(leaves)
        self._close_round(leaves)
        return found

    def _evict_host_leaf(self, node: Any, *args: Any, **kwargs: Any) -> None:
        self._leaves(node, Tier.HOST, self.class_of(node), len(node.key))
        super()._evict_host_leaf(node, *args, **kwargs)

    def _leaves(self, node: Any, tier: Tier, cls: EvictionClass, tokens: int) -> None:
        """Account for a node that leaves a tier."""
        self.accounting.evicted(tier, cls, tokens)
        self.on_left(node, tier)
        self._telling.run(self.journal.evicted, node, tier, cls, tokens, default=None)

    def commit_load_back(self, node_id: int, device_indices: Any, *args: Any, **kwargs: Any) -> Any:
        self.accounting.loaded_back(len(device_indices))
        return super().commit_load_back(node_id, device_indices, *args, **kwargs)

    def class_of(self, node: Any) -> EvictionClass:
        """Order class a node is in now."""
        try:
            return self.coordinator.class_of(node)
        except Exception:
            note("eviction order")
            node.owners = None
            return EvictionClass.UNCLAIMED

    def _order_leaves(self) -> None:
        """Let rounds look at a part of the leaves, where there are many."""
        self.evictable_device_leaves = made_of(self.evictable_device_leaves, self.own_order)
        self.evictable_host_leaves = made_of(self.evictable_host_leaves, self.own_order)

    def _ended(self, node: Any) -> None:
        self.evictable_device_leaves.ended(node)
        self.evictable_host_leaves.ended(node)

    def _open_round(self, leaves: Leaves, tokens: int = 0) -> None:
        """Settle who the candidates are. Should that ever fail, the order is SGLang's from then on."""
        try:
            share = self.trust.share
            if self.coordinator.by_parts:
                leaves.open_round(claims=self.coordinator.uses_claims and share > 0, tokens=tokens)
            self.coordinator.open_round(leaves, share)
        except Exception:
            note("eviction order")
            self.coordinator.set_policy("lru")
            leaves.widen()

    def _close_round(self, leaves: Leaves) -> None:
        try:
            leaves.close_round(self.coordinator.priority)
        except Exception:
            note("eviction order")
            leaves.widen()


class KvflowRadixCache(UnifiedRadixCache):
    """SGLang's radix cache, which enters a request's claim on the nodes of its prompt."""

    tree_core: KvflowTreeCore

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.coordinator = self.tree_core.coordinator
        self.accounting = self.tree_core.accounting
        self.trust = self.tree_core.trust
        self.journal = self.tree_core.journal
        self._exporter = Exporter(self.metrics_collector.labels) if self.metrics_collector is not None else None
        self._stall_base_s = 0.0
        self.watch = Watch(self, max(params.chunked_prefill_size or 0, 0))
        self.splicer: Splicer | None = None
        settings = config.load()
        self.gate = Gate(self) if settings.admission.mode == "workflow" else None
        self.prefetch = Prefetch(self, settings.prefetch) if _may_prefetch(settings) else None
        if self.prefetch is not None:
            self.tree_core.on_left = self.prefetch.left
        self.commands = CacheCommands(self, settings)
        self._tagging = Guard("claims")
        self._counting = Guard("counters")  # apart: what it calls may fail on one rank alone

    def reset(self) -> None:
        super().reset()
        if hasattr(self, "accounting"):  # the first reset is part of construction
            self.accounting.forget_pages()
            self.coordinator.flushed()
            self.trust.clear()
            self.commands.flushed()
            if self.prefetch is not None:
                self.prefetch.forget()
            if self.splicer is not None:
                self.splicer.reuse.clear()

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        if self.splicer is not None:
            self.splicer.computed(req, up_to)
        with self._path_known(req):
            super().checkpoint(req, up_to=self.publishable(req, up_to), **kwargs)
        if not self.disable:
            self._tagging.run(self._tag, req, default=None)
            self._tagging.run(self.commands.prompt, req, default=None)
            self.watch.computed(req)

    @contextlib.contextmanager
    def _path_known(self, req: Any) -> Iterator[None]:
        """Let what is inserted begin where the path ends that a request holds."""
        if req.lock is not None:
            self.tree_core.known = self.tree_core.node_by_id(req.last_node), req.kv.cache_protected_len
        try:
            yield
        finally:
            self.tree_core.known = None

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
        if self.gate is not None:
            self.gate.left(req)
        self._tagging.run(self._answered, req, default=None)
        self.watch.left(req, checkpointed)

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
            self._exporter.publish(self.accounting.counters, self.trust)

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
        if claim is None or req.lock is None:
            return
        fixed_tokens = getattr(req, "_kvflow_fixed_tokens", None)
        first = fixed_tokens is None
        if first:
            fixed_tokens = self.coordinator.fixed_tokens(claim, req.origin_input_ids)
            fixed_tokens -= fixed_tokens % self.page_size
            req._kvflow_fixed_tokens = fixed_tokens
        path = self.path_of(req)
        if not path:
            return
        if 0 < fixed_tokens < path[0][1] and all(end != fixed_tokens for _, end in path):
            self.touch_prefix(
                RadixKey(
                    req.origin_input_ids[:fixed_tokens],
                    req.extra_key,
                    is_bigram=self.tree_core.is_eagle,
                    cache_salt=req.cache_salt,
                )
            )
            path = self.path_of(req)
        self.coordinator.tag(claim, path, fixed_tokens, first=first)

    def _answered(self, req: Any) -> None:
        """Let the claim of a request know that it is over, or was retracted and starts again later."""
        claim = claim_of(req)
        if claim is not None:
            tell = self.coordinator.answered if req.finished() else self.coordinator.retracted
            tell(claim)
        if req.finished():
            self.commands.over(req)

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
    book = switch.books.get(Role.SCHEDULER)  # there is none where the cache is built without a scheduler
    holds = book is not None and book.holds(Feature.PREFETCH) and book.holds(Feature.ADMISSION)
    return settings.prefetch.enabled and holds
