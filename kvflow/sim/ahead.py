"""Loads and fetches ahead of use in the simulated server: the second body of the engine's planners."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import ProcessGenerator

from kvflow.config import Prefetch as PrefetchSettings
from kvflow.engine import Accounting, BatchLoads, Coordinator, DeviceView, Fetch, Fetcher, Load, Prefetcher, Room, Tier
from kvflow.policy import PrefetchPace
from kvflow.sim.memory import Memory
from kvflow.sim.node import Node
from kvflow.sim.request import Request

_TICK_S = 0.25
_SETTINGS = PrefetchSettings()
_LEAST_FETCH_TOKENS = 256
"""SGLang fetches no less from storage (``prefetch_threshold``)."""


class Ahead:
    """Begins loads and fetches ahead, one of each at a time, loads behind requests' own.

    Args:
        refresh: brings predictions up to date.

    Attributes:
        on_arrived: called when a load has ended.
    """

    def __init__(
        self,
        env: simpy.Environment,
        memory: Memory,
        coordinator: Coordinator,
        accounting: Accounting,
        refresh: Callable[[], None],
    ) -> None:
        self._env = env
        self._memory = memory
        self._coordinator = coordinator
        self._accounting = accounting
        self._refresh = refresh
        self._planner = Prefetcher(
            coordinator,
            PrefetchPace(coordinator.costs, _SETTINGS.link_share, memory.device_pages * memory.page_tokens),
            lambda: accounting.counters,
            max_tokens=_SETTINGS.max_tokens,
            least_tokens=memory.page_tokens,
        )
        self._fetcher = Fetcher(
            coordinator,
            PrefetchPace(
                coordinator.costs.of_storage(), _SETTINGS.link_share, memory.device_pages * memory.page_tokens
            ),
            lambda: accounting.counters,
            least_tokens=lambda: _LEAST_FETCH_TOKENS,
        )
        self._batch = BatchLoads(coordinator.costs)
        self.on_arrived: Callable[[], None] = lambda: None
        self._load: Load | None = None
        self._fetch: Fetch | None = None
        self._until_s = 0.0
        self._running = 0
        memory.on_left = self._left
        env.process(self._keep_time())

    def begin(self, running: int) -> None:
        """Begin the next load, if there is one and the link is free, while so many requests run."""
        self._running = running
        self._batch.formed()
        self._begin()

    def _begin(self) -> None:
        if self._load is not None or self._memory.link_free_s > self._env.now:
            return
        self._refresh()
        load = self._planner.next(self._room(), self._device)
        if load is not None and not self._start(load):
            self._planner.refused()

    def _start(self, load: Load) -> bool:
        memory, tree = self._memory, self._memory.tree
        anchor: Node = load.anchor
        tree.lock(anchor)
        if not memory.make_room(load.tokens // memory.page_tokens):
            tree.unlock(anchor)
            return False
        self._load = load
        self._planner.begun(load)
        self._until_s = memory.load_back(anchor, load.nodes[0].parent)
        self._env.process(self._end(load))
        return True

    def passes_over(self, request: Request, pages: int, *, busy: bool) -> bool:
        """Whether a request is left in the queue for now: what it needs is on its way, or would queue behind that.

        Args:
            pages: what of its prompt may be found in the cache.
            busy: there is other work meanwhile.
        """
        if self._load is None and not busy:
            return False
        node = self._memory.tree.match(request.whole, request.near, pages).cached
        load, path = self._load, node.path()
        tokens = sum(len(one.key) for one in path if not one.on_device)
        if load is None:
            waits = tokens > 0 and not self._batch.join(tokens) and self._bring(request, node)
        else:
            awaits = any(one.arriving is load for one in path)
            load.late |= awaits
            waits = busy and (awaits or tokens > 0) and not self._batch.join(tokens, behind_tokens=load.tokens)
        if not waits:
            return False
        self._accounting.counters.passed_over += 1
        return True

    def _bring(self, request: Request, node: Node) -> bool:
        """Load what a request waits for in the background; tells whether that has begun, or still may."""
        if self._memory.link_free_s > self._env.now:
            return True
        room = self._room()
        if not request.retry.due(room.available_tokens):
            return False
        load = self._planner.asked([(request.retry, node)], room, self._device)
        return request.retry.due(room.available_tokens) if load is None else self._start(load)

    def ready_s(self, node: Node) -> float:
        """A request starts behind a node: when all above it has arrived."""
        path = node.path()
        awaits = self._load is not None and any(one.arriving is self._load for one in path)
        self._planner.used(path)
        self._fetcher.used(path)
        return self._until_s if awaits else 0.0

    def _end(self, load: Load) -> ProcessGenerator:
        yield self._env.timeout(max(0.0, self._until_s - self._env.now))
        self._memory.tree.unlock(load.anchor)
        self._load = None
        self._planner.ended(load)
        self._begin()
        self.on_arrived()

    def _keep_time(self) -> ProcessGenerator:
        while True:
            yield self._env.timeout(_TICK_S)
            self._begin()
            if self._memory.storage_pages and self._fetch is None:
                self._refresh()
                self._fetch = self._fetcher.next()
                if self._fetch is not None:
                    self._env.process(self._run_fetch(self._fetch))

    def _run_fetch(self, fetch: Fetch) -> ProcessGenerator:
        self._fetcher.begun(fetch)
        last: Node = fetch.last
        before = {node for node in last.path() if node.on_host}
        yield from self._memory.fetch(last)
        ends = last.path_with_ends(self._memory.page_tokens)
        path = [(node, end) for node, end in ends if node.on_host or node.on_device]
        self._fetcher.ended(fetch, path, sum(len(node.key) for node, _ in path if node not in before and node.on_host))
        self._fetch = None

    def _left(self, node: Node, tier: Tier) -> None:
        if tier is Tier.DEVICE:
            self._planner.left(node)
        elif tier is Tier.HOST:
            self._fetcher.left(node)

    def _room(self) -> Room:
        memory = self._memory
        return Room(
            free_tokens=memory.free_pages * memory.page_tokens,
            evictable_tokens=memory.tree.evictable_pages * memory.page_tokens,
            running=self._running,
            page_tokens=memory.page_tokens,
        )

    def _device(self) -> DeviceView:
        leaves = self._memory.tree.candidates()
        return DeviceView(leaves=leaves, locked=lambda node: node.locks, own_order=lambda node: node.last_access_time)
