"""Loads in the background of SGLang, and the requests that must not read what is still on its way.

SGLang publishes a node as being on the device when its load is queued. Its own loads are safe, because the batch that
asked for one waits for it layer by layer. A load nobody asked for needs two more things: requests whose context is
still coming are passed over while others can run, and a batch that takes one nevertheless waits for the load.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.allocation_sizing import get_alloc_len_per_decode, get_alloc_reserve_per_decode
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.session.streaming_session import is_virtual_node

from kvflow.engine import BatchLoads, DeviceView, Load, LoadRetry, Prefetcher, Room, Tier
from kvflow.patches.backup import Backups, locked
from kvflow.patches.claim import claim_of
from kvflow.patches.guard import Guard
from kvflow.patches.storage import StorageFetch
from kvflow.policy import PrefetchPace

if TYPE_CHECKING:
    from kvflow.config import Prefetch as PrefetchSettings
    from kvflow.patches.tree import KvflowRadixCache

_QUEUES_COPIES = hasattr(UnifiedRadixCache, "flush_pending_backups")  # since SGLang 0.5.23
_LEAST_TOKENS = 16
_PATIENCE = 512
"""Passes over the queue a request is passed over in, at most; there is one a decode step."""
_STORAGE_ROUNDS, _STORAGE_ROUND_S = 200, 0.01
"""For how long storage may take to write what has been copied, before SGLang is told that it is not idle."""


class Prefetch:
    """Begins loads ahead of use, one at a time, and keeps requests from reading what is on its way.

    Decides by what every rank sees alike: claims, the time of the ordered messages, and which loads all ranks have
    finished. Should it fail, nothing is loaded ahead any more.

    Args:
        cache: whose nodes are loaded.
        settings: how much.
    """

    def __init__(self, cache: KvflowRadixCache, settings: PrefetchSettings) -> None:
        coordinator = cache.coordinator
        self.planner = Prefetcher(
            coordinator,
            PrefetchPace(coordinator.costs, settings.link_share, cache.token_to_kv_pool_allocator.size_full),
            lambda: cache.accounting.counters,
            max_tokens=settings.max_tokens,
            least_tokens=max(_LEAST_TOKENS, cache.page_size),
        )
        self._batch = BatchLoads(coordinator.costs)
        self._storage = StorageFetch(cache, settings)
        self.backups = Backups(cache)
        self._cache = cache
        self._load: Load | None = None
        self._asking: list[Any] = []
        self._guard = Guard("prefetch")
        self._flush: Any = None
        self._flush_until_s = 0.0

    def reap(self) -> None:
        """Take note of what has arrived."""
        self._storage.reap()
        load = self._load
        if load is not None and load.anchor.id not in self._cache.ongoing_load_back:
            self._load = None
            self.planner.ended(load)

    def begin(self, running: int, chunked: Any, *, flush: Any = None) -> None:
        """Begin the next load, if there is one: after requests' own loads, each of which has the link to itself.

        Args:
            running: requests that run, those of a new batch among them.
            chunked: the request whose prompt is being computed in chunks, if there is one.
            flush: SGLang's message by which the cache is to be flushed as soon as nothing is under way.
        """
        look = partial(self._room, running, chunked)
        self._batch.formed()
        self._note_flush(flush)
        if not self._is_to_be_flushed:
            self._storage.begin()
            self.backups.begin(look)
            if self._load is None and not self._link_is_taken():
                self._guard.run(self._begin, look, default=None)
        self._asking.clear()

    def passes_over(self, req: Any, *, busy: bool) -> bool:
        """Whether a request is to be left in the queue for this pass: what it needs is on its way, or should be first.

        A batch with a request that needs a load waits for the link in its first layer, and everything else with it. So
        while there is other work, its context is loaded in the background, unless the batch may wait for it. With
        nothing else to do it waits in a batch as well as in the queue, and computes each layer as soon as it is there.

        Args:
            req: a request whose prefix has just been matched.
            busy: there is other work for the device meanwhile.
        """
        load = self._load
        if load is not None and load.under_way:
            awaits = self._guard.run(self._awaits, req, default=False)
            load.late |= awaits
            waits = busy and (awaits or req.needs_host_load_back())
            waits = waits and not self._batch.join(req.host_hit_length, behind_tokens=load.tokens)
        else:
            waits = busy and self._guard.run(self._asks, req, default=False)
        passes = getattr(req, "_kvflow_passes", 0)
        if not waits or passes >= _PATIENCE:
            return False
        req._kvflow_passes = passes + 1
        self._cache.accounting.counters.passed_over += 1
        return True

    def join(self, batch: Any) -> None:
        """Let a new prefill batch wait for the load under way if one of its requests computes behind it.

        In doubt it waits: a batch that does not could read what has not arrived.
        """
        controller: Any = self._cache.cache_controller
        if batch is None or controller is None or not controller.ack_load_queue:
            return
        if batch.hicache_consumer_index >= 0:
            return  # its own load was queued behind ours, so waiting for that is enough
        if self._load is None or self._guard.run(self._any_awaits, batch.reqs, default=True):
            batch.hicache_consumer_index = controller.layer_done_counter.producer_index

    def entered(self, req: Any) -> None:
        """Wait for the load under way if a request that goes on has just been moved onto what it brings.

        Where a request has computed what the load is bringing, SGLang gives its own pages back and lets it go on with
        those of the tree, which decoding reads without waiting.
        """
        load = self._load
        if load is not None and load.under_way and self._guard.run(self._awaits, req, default=True):
            controller: Any = self._cache.cache_controller
            _wait_for(controller.ack_load_queue)

    def settle(self) -> None:
        """Wait for what is under way, and give up what comes from storage: SGLang is to find itself idle."""
        self._guard.run(self._settle, default=None)

    def forget(self) -> None:
        """The cache has been reset."""
        self._load = None
        self._flush_until_s = 0.0
        self.planner.flushed()
        self._storage.forget()
        self.backups.planner.flushed()

    def used(self, path: list[Any]) -> None:
        """A request computes behind these nodes."""
        self.planner.used(path)
        self._storage.planner.used(path)

    def left(self, node: Any, tier: Tier) -> None:
        """A node leaves a tier."""
        if tier is Tier.DEVICE:
            self.planner.left(node)
        if tier is Tier.HOST or not node.backuped:  # its copy may have been dropped before
            self._storage.planner.left(node)

    def _settle(self) -> None:
        cache: Any = self._cache
        controller = cache.cache_controller
        if controller is None:
            return
        self._storage.give_up()
        if _QUEUES_COPIES:
            cache.flush_pending_backups()
        for acks, check in (
            (controller.ack_write_queue, cache.writing_check),
            (controller.ack_load_queue, cache.loading_check),
        ):
            _wait_for(acks)
            check(finish_count=len(acks))
        for _ in range(_STORAGE_ROUNDS):  # alike on every rank, as what they have left to write is
            if not (cache.enable_storage and cache.ongoing_backup):
                break
            time.sleep(_STORAGE_ROUND_S)
            cache.check_hicache_events()
        self.reap()

    def _note_flush(self, flush: Any) -> None:
        if flush is not None and flush is not self._flush:
            self._flush, self._flush_until_s = flush, self._cache.coordinator.claims.clock.now_s + flush.timeout_s

    @property
    def _is_to_be_flushed(self) -> bool:
        """Whether that is still waited for. SGLang's ranks give it up each by its own clock, at different steps."""
        return bool(self._cache.coordinator.claims.clock.now_s < self._flush_until_s)

    def _any_awaits(self, reqs: list[Any]) -> bool:
        return any(self._awaits(req) for req in reqs)

    def _awaits(self, req: Any) -> bool:
        """Whether the load under way brings part of a request's prefix."""
        load = self._load
        core = self._cache.tree_core
        last_node = self._last_node(req)
        node: Any = core.node_by_id(last_node) if last_node is not None else core.root_node
        while node is not None and node is not core.root_node:
            if node.arriving is load:
                return True
            node = node.parent
        return False

    def _last_node(self, req: Any) -> Any:
        """Where a request's prefix in the tree ends: a session's turn goes on from what its session has locked there.

        SGLang hands a first turn's lock to its session as soon as it has memory, before its batch is formed.
        """
        if not is_virtual_node(req.last_node):
            return req.last_node
        slot = self._cache.session.borrowed_slot(req)
        return slot.lock.node if slot is not None and slot.lock is not None else None

    def _asks(self, req: Any) -> bool:
        """Whether the link is taken, or a load may begin after this pass: the request's, or one's before it.

        None begins while a flush is waited for, which would wait for the request in turn.
        """
        if self._is_to_be_flushed or not req.needs_host_load_back() or claim_of(req) is None:
            return False
        if self._batch.join(req.host_hit_length):
            return False
        if self._link_is_taken():
            return True
        if not _retry(req).due(self._room(running=0, chunked=None).available_tokens):
            return False
        self._asking.append(req)
        return True

    def _link_is_taken(self) -> bool:
        controller: Any = self._cache.cache_controller
        return controller is None or bool(controller.load_queue or controller.ack_load_queue)

    def _room(self, running: int, chunked: Any) -> Room:
        cache, promised_tokens = self._cache, 0
        if chunked is not None:  # SGLang has looked for room once, when it began
            promised_tokens = max(0, len(chunked.full_untruncated_fill_ids) - chunked.extend_end)
        return Room(
            free_tokens=cache._component_available_size(ComponentType.FULL),
            evictable_tokens=cache.full_evictable_size(),
            running=running,
            step_tokens=(step_tokens := get_alloc_len_per_decode()),
            reserved_tokens=get_alloc_reserve_per_decode() if step_tokens > 1 else 0,
            promised_tokens=promised_tokens,
            page_tokens=cache.page_size,
        )

    def _choose(self, look: Callable[[], Room]) -> Load | None:
        core = self._cache.tree_core
        nothing_to_load = not core.evictable_host_leaves
        if not self._asking and (nothing_to_load or self.planner.settled):  # to ask for the room takes longer
            return None
        room = look()
        found = ((_retry(req), core.find(req.best_match_node)) for req in self._asking)
        asking = ((retry, node) for retry, node in found if node is not None)  # else it has made room for others since
        return self.planner.asked(asking, room, self._device) or self.planner.next(room, self._device)

    def _begin(self, look: Callable[[], Room]) -> None:
        cache = self._cache
        chosen = self._choose(look)
        if chosen is None:
            return
        if not cache.load_back(chosen.anchor.id):
            self.planner.refused()
            return
        self._load = chosen
        try:
            self.planner.begun(chosen)
        finally:  # its nodes are on the device by now, and have to be filled whatever else fails
            cache.ready_to_load_host_cache()
        if not chosen.asked:
            cache.journal.ahead(chosen.anchor, chosen.tokens)

    def _device(self) -> DeviceView:
        core = self._cache.tree_core
        return DeviceView(leaves=core.candidates(), locked=locked, own_order=core.own_order)


def _wait_for(acks: list[Any]) -> None:
    for ack in acks:
        ack.finish_event.synchronize()


def _retry(req: Any) -> LoadRetry:
    """A request's, from when it is asked about first."""
    if not hasattr(req, "_kvflow_retry"):
        req._kvflow_retry = LoadRetry()
    return req._kvflow_retry
