"""Device and host memory of the simulated server: what is free, and making room."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

import simpy
from simpy.events import ProcessGenerator

from kvflow.engine import FREE_CHOICE, Accounting, Coordinator, Guard, Tier
from kvflow.engine.guard import MemoryView
from kvflow.policy import AdmissionMemory, EvictionClass
from kvflow.sim.node import Node
from kvflow.sim.profile import Profile
from kvflow.sim.tree import RadixTree


class Memory:
    """The radix tree with its pools and the links between them.

    Args:
        device_tokens, host_tokens, storage_tokens: capacity per tier; 0 for none.
        guard: tells how far prediction is trusted; None trusts it fully.
        exclusive: whether a full host drops copies of what the device holds before it loses anything.

    Attributes:
        link_free_s: when everything queued for the way to the device has arrived.
        storage_free_s: when everything asked of storage has.
        on_left: told of every node that leaves a tier.
    """

    def __init__(
        self,
        env: simpy.Environment,
        profile: Profile,
        coordinator: Coordinator,
        accounting: Accounting,
        *,
        page_tokens: int,
        device_tokens: int,
        host_tokens: int,
        storage_tokens: int,
        guard: Guard | None,
        exclusive: bool = False,
    ) -> None:
        self.page_tokens = page_tokens
        self.device_pages = device_tokens // page_tokens
        self.host_pages = host_tokens // page_tokens
        self.storage_pages = storage_tokens // page_tokens if host_tokens else 0
        self.tree = RadixTree(
            coordinator,
            page_tokens,
            choice=guard.choice if guard is not None else lambda tier: FREE_CHOICE,
            exclusive=exclusive,
            on_evicted=self._count_evicted,
        )
        self.on_left: Callable[[Node, Tier], None] = lambda node, tier: None
        self.private_tokens = 0
        self.fetched_tokens = 0
        self.fetched_s = 0.0
        self._env = env
        self._profile = profile
        self._coordinator = coordinator
        self._accounting = accounting
        self.link_free_s = 0.0
        self.storage_free_s = 0.0
        self._backups = simpy.Store(env)
        self._stores = simpy.Store(env)
        if self.host_pages:
            env.process(self._back_up())
        if self.storage_pages:
            env.process(self._store())

    @property
    def free_pages(self) -> int:
        """Pages nobody uses."""
        return self.device_pages - self.tree.device_pages - -(-self.private_tokens // self.page_tokens)

    @property
    def available_pages(self) -> int:
        """Pages that are free or can be made so."""
        return self.free_pages + self.tree.evictable_pages

    def view(self, started_tokens: int = 0) -> MemoryView:
        """What there is, as the guard wants to know it; ``started_tokens`` it knows of already."""
        page = self.page_tokens
        private = self.private_tokens - started_tokens
        return MemoryView(self.device_pages * page, self.host_pages * page, private, self._profile.chunk_tokens)

    def plannable(self) -> AdmissionMemory:
        """What admission may plan with."""
        page = self.page_tokens
        return AdmissionMemory(device_tokens=self.device_pages * page, host_tokens=self.host_pages * page)

    def make_room(self, pages: int) -> bool:
        """Free so many pages of the device; tells whether they are."""
        short = pages - self.free_pages
        if short > 0:
            self.tree.evict_device(short)
        return self.free_pages >= pages

    def load_back(self, node: Node, device: Node) -> float:
        """Load everything from ``device`` (exclusive) down to ``node``; room has been made. Returns when it is there.

        The pages count as on the device at once, as in SGLang; whoever needs them waits for the time returned.
        """
        tokens = (node.end - device.end) * self.page_tokens
        current = node
        while current is not device:
            self.tree.set_device(current)
            assert current.parent is not None
            current = current.parent
        self._accounting.loaded_back(tokens)
        duration_s = tokens * self._profile.load_token_s
        self._accounting.counters.load_back_s += duration_s
        self.link_free_s = max(self.link_free_s, self._env.now) + duration_s
        return self.link_free_s

    def fetch(self, node: Node) -> ProcessGenerator:
        """Bring what only storage has of a prompt to the host (SimPy process); does nothing if there is nothing."""
        missing: list[Node] = []
        current = node
        while current.parent is not None and not current.on_device and not current.on_host:
            missing.append(current)
            current = current.parent
        stored = list(takewhile(lambda one: one.on_storage, reversed(missing)))
        tokens = sum(len(one.key) for one in stored)
        if not tokens:
            return
        now_s = self._env.now
        duration_s = tokens * self._profile.storage_token_s
        self.storage_free_s = max(self.storage_free_s, now_s) + duration_s
        yield self._env.timeout(self.storage_free_s - now_s)
        self.fetched_tokens += tokens
        self.fetched_s += duration_s
        for one in stored:
            if not one.alive or one.on_host or one.on_device:
                continue
            one.host_locks += 1
            fits = self._host_room(one.key.pages)
            one.host_locks -= 1
            if not fits or not (one.parent is None or one.parent.parent is None or one.parent.on_host):
                return
            self.tree.set_host(one)

    def keep_copy(self, node: Node, counted: int) -> None:
        """Copy to the host what it lacks of a prompt, if something of it was found or entered behind page ``counted``.

        Write-through: the host's memory is taken at once, the copy takes its time, and the device's stays locked
        meanwhile. What finds no room, as long as the host is full of copies of what is on the device, is tried again
        with the next hit.
        """
        if not self.host_pages or node.end <= counted:
            return
        lacking: list[Node] = []
        current = node
        while current.parent is not None and not current.on_host:
            lacking.append(current)
            current = current.parent
        copied: list[Node] = []
        current.host_locks += 1  # what is above a copy keeps its own
        for one in reversed(lacking):
            if not self._host_room(one.key.pages):
                break
            self.tree.set_host(one)
            one.host_locks += 1
            copied.append(one)
        current.host_locks -= 1
        if copied:
            self.tree.lock(copied[-1])
            self._backups.put((copied, current.end, sum(len(one.key) for one in copied)))

    def _back_up(self) -> ProcessGenerator:
        while True:
            copied, start_pages, tokens = yield self._backups.get()
            node = copied[-1]
            yield self._env.timeout(tokens * self._profile.backup_token_s)
            for one in copied:
                one.host_locks -= 1
            for span in reversed(_between(node, start_pages)):
                self.tree.copies.add(span)
                if self.storage_pages and not span.on_storage:
                    self._stores.put(span)
            self.tree.unlock(node)

    def _store(self) -> ProcessGenerator:
        while True:
            node = yield self._stores.get()
            yield self._env.timeout(len(node.key) * self._profile.storage_token_s)
            if not node.alive or node.on_storage:
                continue
            short = self.tree.storage_pages + node.key.pages - self.storage_pages
            if short <= 0 or self.tree.evict_storage(short) >= short:
                self.tree.set_storage(node)

    def _host_room(self, pages: int) -> bool:
        short = pages - (self.host_pages - self.tree.host_pages)
        if short > 0:
            self.tree.evict_host(short)
        return pages <= self.host_pages - self.tree.host_pages

    def _count_evicted(self, node: Node, tier: Tier, cls: EvictionClass) -> None:
        self.on_left(node, tier)
        self._accounting.evicted(tier, cls, node.key.pages * self.page_tokens)


def _between(node: Node, start_pages: int) -> list[Node]:
    """Nodes from a node up to a position, deepest first: splits may have made several of one."""
    nodes = []
    current: Node | None = node
    while current is not None and current.parent is not None and current.end > start_pages:
        nodes.append(current)
        current = current.parent
    return nodes
