"""Room on the device for a context of the host, made only by what is worth less."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from math import ceil
from typing import Any

from kvflow.engine.coordinator import Coordinator, Priority
from kvflow.engine.ports import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The memory of a device tier.

    Attributes:
        free_tokens: what nothing has to leave for.
        evictable_tokens: what could leave.
        running: requests that grow with every decode step.
        step_tokens: by how much at most; more than one where tokens are guessed ahead.
        reserved_tokens: what each of them keeps ahead of that.
        promised_tokens: what a prompt that is computed in chunks has yet to take; it goes on whatever there is left.
        page_tokens: by which requests grow.
    """

    free_tokens: int
    evictable_tokens: int = 0
    running: int = 0
    step_tokens: int = 1
    reserved_tokens: int = 0
    promised_tokens: int = 0
    page_tokens: int = 1

    @property
    def available_tokens(self) -> int:
        """What is free or could leave."""
        return self.free_tokens + self.evictable_tokens

    def growth_tokens(self, steps: float) -> int:
        """What requests may take in so many decode steps: those that run a page more than they fill, each."""
        each_tokens = ceil(steps) * self.step_tokens + self.reserved_tokens + self.page_tokens
        return self.running * each_tokens + self.promised_tokens

    def may_lock(self, tokens: int, steps: float) -> bool:
        """Whether so many tokens that could leave may be held for so many decode steps."""
        return self.growth_tokens(steps) <= self.available_tokens - tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """What a body says of its device tier.

    Attributes:
        leaves: what could leave.
        locked: whether requests or transfers hold a node.
        own_order: the body's order among nodes of one rank, lowest first.
    """

    leaves: Collection[Node]
    locked: Callable[[Any], bool]
    own_order: Callable[[Any], Any]


def fitting(coordinator: Coordinator, nodes: Sequence[Node], free_tokens: int, device: DeviceView) -> int:
    """How many of these nodes, from the top, have room made only by what leaves before them by the active order.

    A fixed prompt may take the place of another that is needed later, the tail behind it may not, but may still go
    where memory is free: each node is measured by itself, and what cannot come leaves the rest above it.

    Args:
        coordinator: ranks nodes, under its guard.
        nodes: what is to be loaded, top down.
        free_tokens: room that nothing has to leave for.
        device: what could leave.

    Cost: O(leaves), plus O(leaves that would leave) for each of log(nodes) trials.
    """
    leaving = _leaving(coordinator, device, _ancestors(nodes[0]))

    def too_many(count: int) -> bool:
        nonlocal leaving
        leaving, again = tee(leaving)
        return not _fit(coordinator, nodes[:count], free_tokens, again)

    return bisect_left(range(1, len(nodes) + 1), True, key=too_many)


def _fit(
    coordinator: Coordinator, nodes: Sequence[Node], free_tokens: int, leaving: Iterator[tuple[Priority, int]]
) -> bool:
    """Whether each node has room, with all that is below it, in what is free or leaves before it."""
    limit: Priority | None = None
    needed_tokens, room_tokens = 0, free_tokens
    for node in reversed(nodes):
        own = coordinator.priority_on_device(node)
        limit = own if limit is None else max(limit, own)  # what is below needs what is above
        needed_tokens += len(node.key)
        while needed_tokens > room_tokens:
            priority, tokens = next(leaving, (limit, 0))
            if priority >= limit:
                return False
            room_tokens += tokens
    return True


def unlocked_tokens(node: Node | None, locked: Callable[[Any], bool]) -> int:
    """What could leave now, and cannot while a node is held: itself, and what it hangs below."""
    tokens = 0
    while node is not None and node.parent is not None:
        if not locked(node):
            tokens += len(node.key)
        node = node.parent
    return tokens


def _leaving(coordinator: Coordinator, device: DeviceView, above: set[int]) -> Iterator[tuple[Priority, int]]:
    """Go through an eviction without doing it: leaves by priority, and each parent once all below it is gone."""
    heap = [(coordinator.priority(leaf), device.own_order(leaf), id(leaf), leaf) for leaf in device.leaves]
    heapq.heapify(heap)
    gone: dict[int, int] = {}
    while heap:
        priority, _, _, node = heapq.heappop(heap)
        if id(node) in above:
            continue
        yield priority, len(node.key)
        parent = node.parent
        gone[id(parent)] = gone.get(id(parent), 0) + 1
        if parent.parent is None or id(parent) in above or device.locked(parent):
            continue
        if gone[id(parent)] == sum(not child.evicted for child in parent.children.values()):
            entry = (coordinator.priority(parent), device.own_order(parent), id(parent), parent)
            heapq.heappush(heap, entry)


def _ancestors(node: Node) -> set[int]:
    found: set[int] = set()
    while node.parent is not None:
        node = node.parent
        found.add(id(node))
    return found
