"""The simulated radix cache: pages on device, host and storage, and leaf-first eviction on each tier.

Mirrors SGLang's radix cache where it matters for what is evicted when: nodes are split where prompts part, a whole
leaf is evicted at a time, a node with a host copy is demoted, one without is lost, a node on the device is never
evicted from the host, and recency is that of the latest prompt that passed through.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from kvflow.engine import Coordinator
from kvflow.engine.owners import Owners
from kvflow.sim.context import Context, Run, runs_between

_STEP = 1e-5
"""How much older than its child a parent is, when one prompt touches both."""


class Span:
    """What a node spans; its length is in tokens, as that of SGLang's keys."""

    __slots__ = ("page_tokens", "pages", "runs")

    def __init__(self, runs: list[Run], pages: int, page_tokens: int) -> None:
        self.runs = runs
        self.pages = pages
        self.page_tokens = page_tokens

    def __len__(self) -> int:
        return self.pages * self.page_tokens


class Node:
    """A radix node.

    Attributes:
        end: position of its last page + 1, in pages.
        on_device, on_host, on_storage: where its pages are.
        locks: requests and transfers that need it on the device, and children that are locked.
        device_children: children on the device.
    """

    __slots__ = (
        "children",
        "device_children",
        "end",
        "hit_count",
        "host_locks",
        "key",
        "last_access_time",
        "locks",
        "on_device",
        "on_host",
        "on_storage",
        "owners",
        "parent",
    )

    def __init__(self, key: Span, parent: Node | None, end: int) -> None:
        self.key = key
        self.parent = parent
        self.end = end
        self.children: dict[tuple[int, int], Node] = {}
        self.on_device = self.on_host = self.on_storage = False
        self.locks = self.host_locks = self.device_children = 0
        self.last_access_time = 0.0
        self.hit_count = 0
        self.owners: Owners | None = None

    @property
    def backuped(self) -> bool:
        """The host has a copy."""
        return self.on_host

    @property
    def evicted(self) -> bool:
        """The device has none."""
        return not self.on_device

    @property
    def alive(self) -> bool:
        """Some tier has it."""
        return self.on_device or self.on_host or self.on_storage


def backed_up(node: Any) -> bool:
    """Whether the tier below the one the node would leave has a copy."""
    return node.on_host if node.on_device else node.on_storage


OnEvicted = Callable[[Node, str], None]
"""Called with a node and the tier it leaves, before it does."""


class RadixTree:
    """Radix cache of three tiers.

    Args:
        coordinator: ranks what can be evicted.
        page_tokens: page size.
        share: tells how far prediction is trusted (see :class:`kvflow.engine.Guard`).
        on_evicted: told of every eviction.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        page_tokens: int,
        *,
        share: Callable[[], float] = lambda: 1.0,
        on_evicted: OnEvicted = lambda node, tier: None,
    ) -> None:
        self.page_tokens = page_tokens
        self.root = Node(Span([], 0, page_tokens), None, 0)
        self.root.on_device = True
        self.root.locks = 1
        self.device_pages = self.protected_pages = self.host_pages = self.storage_pages = 0
        self.nodes = 0
        self._coordinator = coordinator
        self._share = share
        self._on_evicted = on_evicted
        self._time = 0.0
        self._device_leaves: dict[Node, None] = {}
        self._host_leaves: dict[Node, None] = {}
        self._storage_leaves: dict[Node, None] = {}

    @property
    def evictable_pages(self) -> int:
        """Pages on the device that no request needs."""
        return self.device_pages - self.protected_pages

    def match(self, context: Context, near: Node | None = None, pages: int | None = None) -> Node:
        """Find the deepest node that the context runs through, splitting it where they part; touches the path.

        Args:
            context: the prompt.
            near: a node known to be on its path, from which the search starts; evicted ones are fine.
            pages: look at so many first pages only.
        """
        limit = context.pages if pages is None else min(pages, context.pages)
        node = near or self.root
        while node.parent is not None and (not node.alive or node.end > limit):
            node = node.parent
        position = node.end
        while position < limit:
            child = node.children.get(_first_page(context, position))
            if child is None:
                break
            common = _common_pages(child, context, position, limit)
            if common < child.key.pages:
                node = self._split(child, common) if common else node
                break
            node = child
            position = node.end
        self.touch(node)
        return node

    def touch(self, node: Node) -> None:
        """Note that a prompt has passed through a node, and so through all above it.

        Only leaves are ever compared, so the nodes above learn of it when the ones below are gone (see `_inherit`).
        """
        self._time += 1.0
        node.last_access_time = self._time

    def insert(self, context: Context, pages: int, near: Node | None = None) -> tuple[Node, int]:
        """Enter the first pages of a context, which the caller has on the device.

        Returns:
            The node they end at, and how many of the pages the tree had on the device already.
        """
        node = self.match(context, near, pages)
        known = node
        while known.parent is not None and not known.on_device:
            known.on_device = True  # the caller's pages take the place of what the host or storage holds
            self.device_pages += known.key.pages
            known.parent.device_children += 1
            if known.locks:
                self.protected_pages += known.key.pages
            self._classify(known)
            known = known.parent
            self._classify(known)
        had = known.end
        if node.end < pages:
            span = Span(runs_between(context, node.end, pages), pages - node.end, self.page_tokens)
            child = Node(span, node, pages)
            child.on_device = True
            node.children[_first_page(context, node.end)] = child
            node.device_children += 1
            self.nodes += 1
            self.device_pages += span.pages
            self.touch(child)
            self._classify(child)
            self._classify(node)
            node = child
        return node, had

    def lock(self, node: Node) -> None:
        """Keep a node, and with it all above, on the device."""
        current: Node | None = node
        while current is not None:
            current.locks += 1
            if current.locks > 1:
                return
            if current.on_device:
                self.protected_pages += current.key.pages
            self._device_leaves.pop(current, None)
            self._host_leaves.pop(current, None)
            current = current.parent

    def unlock(self, node: Node) -> None:
        """Undo one :meth:`lock`."""
        current: Node | None = node
        while current is not None:
            current.locks -= 1
            if current.locks:
                return
            if current.on_device:
                self.protected_pages -= current.key.pages
            if not current.device_children:
                self._classify(current)
            current = current.parent

    def lock_host(self, node: Node, change: int) -> None:
        """Keep a node (``change`` 1), or no longer (-1), on the host while it is loaded."""
        node.host_locks += change
        self._classify(node)

    def set_host(self, node: Node) -> None:
        """A copy of the node has arrived on the host."""
        if not node.on_host:
            node.on_host = True
            self.host_pages += node.key.pages
            self._classify(node)

    def set_storage(self, node: Node) -> None:
        """A copy of the node has arrived on storage."""
        if not node.on_storage:
            node.on_storage = True
            self.storage_pages += node.key.pages
            self._classify(node)

    def set_device(self, node: Node) -> None:
        """The node has been loaded back."""
        if not node.on_device:
            node.on_device = True
            self.device_pages += node.key.pages
            if node.locks:
                self.protected_pages += node.key.pages
            if node.parent is not None:
                node.parent.device_children += 1
                self._classify(node.parent)
            self._classify(node)

    def evict_device(self, pages: int) -> int:
        """Free at least so many pages of the device, if there are as many to free; returns how many were."""
        return self._evict(self._device_leaves, pages, self._leave_device)

    def evict_host(self, pages: int) -> int:
        """The same for the host."""
        return self._evict(self._host_leaves, pages, self._leave_host)

    def evict_storage(self, pages: int) -> int:
        """The same for storage, always by recency."""
        freed = 0
        while freed < pages and self._storage_leaves:
            node = min(self._storage_leaves, key=_last_access)
            freed += node.key.pages
            self._leave_storage(node)
        return freed

    def _evict(self, leaves: dict[Node, None], pages: int, leave: Callable[[Node], None]) -> int:
        self._coordinator.open_round(leaves, self._share())
        priority = self._coordinator.priority
        heap = [(priority(node), node.last_access_time, id(node), node) for node in leaves]
        heapq.heapify(heap)
        freed = 0
        while freed < pages and heap:
            node = heapq.heappop(heap)[3]
            if node not in leaves:
                continue
            parent = node.parent
            freed += node.key.pages
            leave(node)
            if parent is not None and parent in leaves:
                heapq.heappush(heap, (priority(parent), parent.last_access_time, id(parent), parent))
        return freed

    def _leave_device(self, node: Node) -> None:
        self._on_evicted(node, "device")
        node.on_device = False
        self.device_pages -= node.key.pages
        parent = _parent(node)
        parent.device_children -= 1
        self._inherit(node)
        self._classify(node)
        self._classify(parent)
        self._drop_if_gone(node)

    def _leave_host(self, node: Node) -> None:
        self._on_evicted(node, "host")
        node.on_host = False
        self.host_pages -= node.key.pages
        self._inherit(node)
        self._classify(node)
        self._drop_if_gone(node)

    def _leave_storage(self, node: Node) -> None:
        node.on_storage = False
        self.storage_pages -= node.key.pages
        self._inherit(node)
        self._classify(node)
        self._drop_if_gone(node)

    @staticmethod
    def _inherit(node: Node) -> None:
        parent = _parent(node)
        parent.last_access_time = max(parent.last_access_time, node.last_access_time - _STEP)

    def _drop_if_gone(self, node: Node) -> None:
        if node.alive or node.children:
            return
        parent = _parent(node)
        identity, first, _ = node.key.runs[0]
        del parent.children[identity, first]
        self.nodes -= 1
        self._classify(parent)
        if parent.parent is not None:
            self._drop_if_gone(parent)

    def _classify(self, node: Node) -> None:
        """Keep the sets of what could be evicted from each tier up to date."""
        if node.parent is None:
            return
        _put(self._device_leaves, node, node.on_device and not node.locks and not node.device_children)
        on_host_alone = node.on_host and not node.on_device and not node.host_locks and not node.locks
        _put(self._host_leaves, node, on_host_alone and not any(c.on_host for c in node.children.values()))
        on_storage_alone = node.on_storage and not node.on_host and not node.on_device
        _put(self._storage_leaves, node, on_storage_alone and not node.children)
        parent = node.parent
        if parent.parent is not None and not parent.on_device:
            on_host_alone = parent.on_host and not parent.host_locks and not parent.locks
            _put(self._host_leaves, parent, on_host_alone and not any(c.on_host for c in parent.children.values()))

    def _split(self, child: Node, pages: int) -> Node:
        """Divide a node; returns its upper part, of ``pages`` pages."""
        parent = _parent(child)
        head, tail = _cut(child.key.runs, pages)
        upper = Node(Span(head, pages, self.page_tokens), parent, child.end - child.key.pages + pages)
        upper.on_device, upper.on_host, upper.on_storage = child.on_device, child.on_host, child.on_storage
        upper.last_access_time = child.last_access_time - _STEP
        upper.hit_count = child.hit_count
        upper.locks = 1 if child.locks else 0
        upper.device_children = int(child.on_device)
        parent.children[head[0][0], head[0][1]] = upper
        upper.children[tail[0][0], tail[0][1]] = child
        child.key = Span(tail, child.key.pages - pages, self.page_tokens)
        child.parent = upper
        self.nodes += 1
        self._coordinator.split(upper, child)
        if child.host_locks:
            upper.host_locks = child.host_locks
        self._classify(upper)
        self._classify(child)
        return upper


def _put(leaves: dict[Node, None], node: Node, belongs: bool) -> None:
    if belongs:
        leaves[node] = None
    else:
        leaves.pop(node, None)


def _parent(node: Node) -> Node:
    assert node.parent is not None, "the root cannot be evicted or split"
    return node.parent


def _last_access(node: Node) -> float:
    return node.last_access_time


def _first_page(context: Context, position: int) -> tuple[int, int]:
    index = bisect_right(context.run_ends, position)
    identity, first, pages = context.runs[index]
    return identity, first + pages - (context.run_ends[index] - position)


def _common_pages(node: Node, context: Context, position: int, limit: int) -> int:
    """How many first pages of a node the context has at a position."""
    index = bisect_right(context.run_ends, position)
    common = 0
    for identity, first, pages in node.key.runs:
        matched = 0
        while matched < pages and position < limit:
            other, other_first, other_pages = context.runs[index]
            run_end = context.run_ends[index]
            if other != identity or other_first + other_pages - (run_end - position) != first + matched:
                return common + matched
            step = min(pages - matched, run_end - position, limit - position)
            matched += step
            position += step
            index += position == run_end
        common += matched
        if matched < pages:
            break
    return common


def _cut(runs: list[Run], pages: int) -> tuple[list[Run], list[Run]]:
    head: list[Run] = []
    for index, (identity, first, count) in enumerate(runs):
        if pages < count:
            if pages:
                head.append((identity, first, pages))
            return head, [(identity, first + pages, count - pages), *runs[index + 1 :]]
        head.append((identity, first, count))
        pages -= count
    return head, []
