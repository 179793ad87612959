"""SGLang's Python tree core with claims on its nodes: the order in which they leave either tier.

Both tiers ask one strategy object for the order, so ranking nodes there governs eviction on device and host alike.
SGLang's configured strategy stays underneath and breaks ties, which makes an unhinted server behave as without kvflow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import DecLockRefResult
from sglang.srt.mem_cache.evict_policy import MRUStrategy, TLRUStrategy
from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore
from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import EvictDeviceNextNodeResult

from kvflow import config
from kvflow.engine import Accounting, Coordinator, Journal, Tier, unit_tokens
from kvflow.engine.leaves import Leaves, made_of
from kvflow.patches.copies import Freed, give_up_first
from kvflow.patches.guard import Guard, note
from kvflow.patches.keys import KeyView, NodeKey
from kvflow.patches.known import go_ahead
from kvflow.patches.orders import require_servable
from kvflow.patches.rank import ClaimOrder
from kvflow.patches.states import give_second_chance
from kvflow.patches.trust import Trust
from kvflow.patches.walks import Locks, inner, match, shorten
from kvflow.patches.watermark import Watermark
from kvflow.policy import EvictionClass, ServingCosts


class KvflowTreeCore(UnifiedTreeCore):
    """SGLang's Python tree core, whose nodes carry owners."""

    evictable_device_leaves: Any  # Leaves; sets, while SGLang's constructor runs
    evictable_host_leaves: Any

    def __init__(self, params: Any, components: Any) -> None:
        settings = config.load()
        require_servable(settings.eviction.policy)
        self.unit_tokens = unit_tokens(params.page_size)
        costs = ServingCosts(**settings.costs.model_dump(exclude={"learn_loads", "learn_compute"}))
        self.coordinator = Coordinator(settings.eviction.policy, costs, cached=self._has, unit_tokens=self.unit_tokens)
        self.accounting = Accounting(self.unit_tokens, settings.telemetry.ghost_pages)
        self.trust = Trust(settings.guard, self.coordinator, self.unit_tokens)
        self.journal = Journal(self.coordinator.claims.clock, settings.telemetry.journal_entries)
        self.watermark = Watermark(params.token_to_kv_pool_allocator.size_full, self.class_of)
        self._telling = Guard("journal")
        self._clearing = Guard("host copies")
        self._sparing = Guard("windows and states")
        self.exclusive = False
        self.kept: Any = None
        self.copied: Any = None
        self._short_tokens: float = inf
        self.on_left: Callable[[Any, Tier], None] = lambda node, tier: None
        self.known: tuple[Any, int] | None = None
        self._left: tuple[int, Any, tuple[Any, ...], dict[str, Any]] | None = None
        self._locks: Locks | None = None
        super().__init__(params, components)
        self._locks = shorten(self)
        # in these a leaf's value may fall: when it is used, or divided
        self._falls = isinstance(self.eviction_strategy, MRUStrategy | TLRUStrategy)
        self.eviction_strategy = order = ClaimOrder(self.coordinator, self.eviction_strategy)
        self.own_order: Any = order.own
        self.coordinator.claims.on_ended = self._ended
        self._order_leaves()

    def _new_node(self, priority: int = 0) -> Any:
        node: Any = super()._new_node(priority)
        node.owners = node.load = node.arriving = None
        node.fetched = False
        return node

    def find(self, node_id: int) -> Any:
        """The node with an id; None if it is not in the tree any more."""
        try:
            return self.node_by_id(node_id)
        except KeyError:
            return None

    def _has(self, node: Any) -> bool:
        """Whether a node is in the tree; one that was removed keeps its key."""
        return self.find(node.id) is node

    def _unregister_node(self, node: Any) -> None:
        super()._unregister_node(node)
        for data in node.component_data:  # a claim may remember the node, and need not keep these on the device
            data.value = None

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

    def match_prefix(self, params: Any) -> Any:
        if self._locks is None or self.is_eagle or params.key.is_bigram:
            return super().match_prefix(params)
        return match(self, params)

    @contextlib.contextmanager
    def going_on(self, node: Any, tokens: int) -> Iterator[None]:
        """Enter what a request has computed behind a node: insertions begin there, and its lock moves on from there.

        Args:
            node: where the path ends that the request holds.
            tokens: length of that path.
        """
        self.known = node, tokens
        try:
            yield
        finally:
            self.known = None
            self._let_go()

    def dec_lock_ref(self, node_id: int, params: Any, *args: Any, **kwargs: Any) -> Any:
        if self.known is None or self._locks is None or self._left is not None or node_id != self.known[0].id:
            return super().dec_lock_ref(node_id, params, *args, **kwargs)
        self._left = node_id, params, args, kwargs  # the next lock takes over what it can
        return DecLockRefResult()

    def inc_lock_ref(self, node_id: int, *args: Any, **kwargs: Any) -> Any:
        if self._left is None or self._locks is None:
            return super().inc_lock_ref(node_id, *args, **kwargs)
        self._locks.known, self._locks.met = self.node_by_id(self._left[0]), False
        try:
            result = super().inc_lock_ref(node_id, *args, **kwargs)
        finally:
            self._locks.known = None
        if self._locks.met:
            self._left = None
        self._let_go()
        return result

    def _let_go(self) -> None:
        """Let go of what no other lock has taken over."""
        if self._left is not None:
            (node_id, params, args, kwargs), self._left = self._left, None
            super().dec_lock_ref(node_id, params, *args, **kwargs)

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
        if component_type is BASE_COMPONENT_TYPE:
            self._asked_tokens = request_cnt
            self._open_round(
                Tier.DEVICE, self.evictable_device_leaves, spared_tokens=min(request_cnt, self._short_tokens)
            )
        else:
            self._spare(component_type, Tier.DEVICE)
        return super().evict_device_start(component_type, request_cnt)

    def _spare(self, component_type: Any, tier: Tier) -> None:
        """Let claims have a say in which windows and states leave."""
        if not self.enable_session_radix_cache:
            self._sparing.run(give_second_chance, self, component_type, tier, default=None)

    def evict_device_next_node(self, component_type: Any, tracker: Any) -> Any:
        if component_type is not BASE_COMPONENT_TYPE:
            return super().evict_device_next_node(component_type, tracker)
        component: Any = self.components_by_type[component_type]
        if self.watermark.reached(component._evict_device_heap):
            return EvictDeviceNextNodeResult()
        result = super().evict_device_next_node(component_type, tracker)
        while not self._enough(result, tracker[component_type]) and self.evictable_device_leaves.widen():
            super().evict_device_end(component_type)
            super().evict_device_start(component_type, self._asked_tokens)
            result = super().evict_device_next_node(component_type, tracker)
        return result

    def _enough(self, result: Any, evicted_tokens: int) -> bool:
        return result.made_progress or evicted_tokens >= self._asked_tokens

    def evict_device_end(self, component_type: Any) -> Any:
        if component_type is BASE_COMPONENT_TYPE:
            self._close_round(self.evictable_device_leaves)
        return super().evict_device_end(component_type)

    def drive_host_eviction(self, component_type: Any, num_tokens: int) -> Any:
        with self.coordinator.round_within():
            if component_type is not BASE_COMPONENT_TYPE:
                if component_type in self.components_by_type:
                    self._spare(component_type, Tier.HOST)
                return super().drive_host_eviction(component_type, num_tokens)
            self._open_round(Tier.HOST, self.evictable_host_leaves, tokens=num_tokens, spared_tokens=num_tokens)
            try:
                freed = Freed()
                if self._is_exclusive():
                    self._clearing.run(give_up_first, self, num_tokens, freed, default=None)
                result: Any = super().drive_host_eviction(component_type, max(0, num_tokens - freed.tokens))
                freed.add_to(result)
                return result
            finally:
                self._close_round(self.evictable_host_leaves)

    @contextlib.contextmanager
    def short_of(self, tokens: float) -> Iterator[None]:
        """Evict for so many tokens: a round that goes on until there is room is asked for all there is."""
        self._short_tokens = tokens
        try:
            yield
        finally:
            self._short_tokens = inf

    @contextlib.contextmanager
    def keeping_copy(self, node_id: int) -> Iterator[None]:
        """Let the copy of what is above a node be, while the node itself is copied."""
        self.kept = self.node_by_id(node_id).parent
        try:
            yield
        finally:
            self.kept = None

    @contextlib.contextmanager
    def making_way_for(self, node: Any) -> Iterator[None]:
        """Drop copies only of what stays on the device for longer than a node, which is copied because it does not."""
        self.copied = node
        try:
            yield
        finally:
            self.copied = None

    @property
    def drops_copies(self) -> bool:
        """Whether the host tier may drop copies of what the device holds.

        Not with storage: SGLang asks that only for what follows a copy on the host.
        """
        return self.exclusive and not self.enable_storage

    def _is_exclusive(self) -> bool:
        """Whether it drops them now; without trust in predictions the tier is SGLang's."""
        return self.drops_copies and self.coordinator.uses_claims and not self.trust.choice(Tier.HOST).none

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

    def drop_subtree_no_host(self, node_id: int) -> Any:
        node: Any = self.node_by_id(node_id)
        lost = [(each, self.class_of(each), len(each.key)) for each in _from_the_bottom(node)]
        result: Any = super().drop_subtree_no_host(node_id)
        if result.is_dropped:
            for each, cls, tokens in lost:
                self._leaves(each, Tier.DEVICE if each is node else Tier.HOST, cls, tokens)
        return result

    def candidates(self) -> list[Any]:
        """What could leave the device, ready to be ranked: all of it, or the part that a round would look at."""
        leaves = self.evictable_device_leaves
        self._open_round(Tier.DEVICE, leaves)
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

    def _ranks_all(self) -> bool:
        """Whether SGLang's own order is one that a part of the leaves does not tell."""
        return self._falls or self.enable_session_radix_cache  # that order has more ranks than ours

    def _open_round(self, tier: Tier, leaves: Leaves, tokens: int = 0, spared_tokens: float = 0) -> None:
        """Settle who the candidates are. Should that ever fail, the order is SGLang's from then on."""
        try:
            choice = self.trust.choice(tier)
            if self.coordinator.by_parts and not self._ranks_all():
                claims = self.coordinator.uses_claims and not choice.none
                now_s = self.coordinator.claims.clock.now_s
                leaves.open_round(claims=claims, tokens=tokens, spared_tokens=spared_tokens, choice=choice, now_s=now_s)
            self.coordinator.open_round(leaves, choice, leaves.ages)
        except Exception:
            note("eviction order")
            self.coordinator.set_policy("lru")
            leaves.look_at_all()

    def _close_round(self, leaves: Leaves) -> None:
        try:
            leaves.close_round(self.coordinator.priority)
        except Exception:
            note("eviction order")
            leaves.look_at_all()


def _from_the_bottom(node: Any) -> list[Any]:
    """A node and all below it, children before parents."""
    found = [node]
    for each in found:
        found += each.children.values()
    return found[::-1]
