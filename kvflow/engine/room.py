"""Room on the device for a context of the host, made only by what is worth less."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvflow.engine.coordinator import Coordinator
from kvflow.engine.ports import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """What a body says of its device tier.

    Attributes:
        leaves: what could leave.
        locked: whether requests or transfers hold a node.
        own_order: the body's order among nodes of one rank, lowest first.
    """

    leaves: Iterable[Node]
    locked: Callable[[Any], bool]
    own_order: Callable[[Any], Any]


def has_room(coordinator: Coordinator, nodes: Sequence[Node], needed_tokens: int, device: DeviceView) -> bool:
    """Whether so much would leave before these nodes by the active order and under its guard.

    Goes through an eviction without doing it: leaves by priority, and each parent once all below it is gone.

    Args:
        coordinator: ranks nodes.
        nodes: what is to be loaded, top down.
        needed_tokens: what has to leave for it, at least 1.
        device: what could.

    Cost: O(leaves).
    """
    limit = coordinator.priority_on_device(nodes[-1])
    above = _ancestors(nodes[0])
    heap = [(coordinator.priority(leaf), device.own_order(leaf), id(leaf), leaf) for leaf in device.leaves]
    heapq.heapify(heap)
    gone: dict[int, int] = {}
    while heap and needed_tokens > 0:
        priority, _, _, node = heapq.heappop(heap)
        if priority >= limit:
            return False
        if id(node) in above:
            continue
        needed_tokens -= len(node.key)
        parent = node.parent
        gone[id(parent)] = gone.get(id(parent), 0) + 1
        if parent.parent is None or id(parent) in above or device.locked(parent):
            continue
        if gone[id(parent)] == sum(not child.evicted for child in parent.children.values()):
            entry = (coordinator.priority(parent), device.own_order(parent), id(parent), parent)
            heapq.heappush(heap, entry)
    return needed_tokens <= 0


def _ancestors(node: Node) -> set[int]:
    found: set[int] = set()
    while node.parent is not None:
        node = node.parent
        found.add(id(node))
    return found
