"""The simulated radix cache: pages on device, host and storage, and leaf-first eviction on each tier.

Mirrors SGLang's radix cache where it matters for what is evicted when: nodes are split where prompts part, a whole
leaf is evicted at a time, a node with a host copy is demoted, one without is lost, a node on the device is never
evicted from the host but as kvflow does it there, and recency is that of the latest prompt that passed through.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from kvflow.engine import FREE_CHOICE, Choice, Coordinator, Tier
from kvflow.policy import EvictionClass
from kvflow.sim.context import Context, runs_between
from kvflow.sim.copies import Copies
from kvflow.sim.node import Node, Span, common_pages, cut, first_page

_STEP = 1e-5
"""How much older than its child a parent is, when one prompt touches both."""


OnEvicted = Callable[[Node, Tier, EvictionClass], None]
"""Called with a node and the tier it leaves, before it does."""


class RadixTree:
    """Radix cache of three tiers.

    Args:
        coordinator: ranks what can be evicted.
        page_tokens: page size.
        choice: tells among which leaves of a tier prediction may choose (see :class:`kvflow.engine.Guard`).
        exclusive: whether a full host drops copies of what the device holds before it loses anything.
        on_evicted: told of every eviction.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        page_tokens: int,
        *,
        choice: Callable[[Tier], Choice] = lambda tier: FREE_CHOICE,
        exclusive: bool = False,
        on_evicted: OnEvicted = lambda node, tier, cls: None,
    ) -> None:
        self.page_tokens = page_tokens
        self.root = Node(Span([], 0, page_tokens), None, 0)
        self.root.on_device = True
        self.root.locks = 1
        self.device_pages = self.protected_pages = self.host_pages = self.storage_pages = 0
        self.nodes = 0
        self._coordinator = coordinator
        self._choice = choice
        self._exclusive = exclusive
        self._on_evicted = on_evicted
        self._time = 0.0
        self._device_leaves: dict[Node, None] = {}
        self._host_leaves: dict[Node, None] = {}
        self._storage_leaves: dict[Node, None] = {}
        self.copies = Copies(coordinator, lambda: self._choice(Tier.HOST))
        self._tiered = False  # nothing has ever been below the device

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
            child = node.children.get(first_page(context, position))
            if child is None:
                break
            common = common_pages(child, context, position, limit)
            if common < child.key.pages:
                node = self._split(child, common) if common else node
                break
            node = child
            position = node.end
        self.touch(node)
        return node

    def touch(self, node: Node) -> None:
        """Note that a prompt has passed through a node, and so through all above it.

        Only leaves of a tier are ever compared, so what lies above on the same tier learns of it when what lies below
        leaves (see `_inherit`); a node whose children are on lower tiers only is a leaf already and is told at once.
        """
        self._time += 1.0
        node.last_access_time = self._time
        age = _STEP
        while not node.on_device and node.parent is not None:
            node = node.parent
            node.last_access_time = self._time - age
            age += _STEP

    def insert(self, context: Context, pages: int, near: Node | None = None, *, counted: int = 0) -> Node:
        """Enter the first pages of a context, which the caller has on the device.

        Args:
            context: the prompt, or the prompt with its answer.
            pages: how many of its pages.
            near: a node known to be on its path.
            counted: a hit is counted for nodes that end behind this page; the others had theirs from this request.

        Returns:
            The node they end at.
        """
        node = self.match(context, near, pages)
        known = node
        while known.parent is not None and not known.on_device:
            known.on_device = True  # the caller's pages take the place of what the host or storage holds
            self.copies.add(known)
            self.device_pages += known.key.pages
            known.parent.device_children += 1
            if known.locks:
                self.protected_pages += known.key.pages
            self._classify(known)
            known = known.parent
            self._classify(known)
        if node.end < pages:
            span = Span(runs_between(context, node.end, pages), pages - node.end, self.page_tokens)
            child = Node(span, node, pages)
            child.on_device = True
            node.children[first_page(context, node.end)] = child
            node.device_children += 1
            self.nodes += 1
            self.device_pages += span.pages
            self.touch(child)
            self._classify(child)
            self._classify(node)
            node = child
        found = node
        while found.parent is not None and found.end > counted:
            found.hit_count += 1
            found = found.parent
        return node

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

    def unlocked_pages(self, node: Node) -> int:
        """Pages of a node on the device, and of all above, that nobody has locked: those that locking it protects."""
        pages = 0
        while not node.locks:
            pages += node.key.pages
            node = _parent(node)
        return pages

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

    def set_host(self, node: Node) -> None:
        """A copy of the node has arrived on the host."""
        if not node.on_host:
            node.on_host = self._tiered = True
            self.host_pages += node.key.pages
            parent = _parent(node)
            parent.host_children += 1
            self._classify(node)
            self._classify(parent)

    def set_storage(self, node: Node) -> None:
        """A copy of the node has arrived on storage."""
        if not node.on_storage:
            node.on_storage = self._tiered = True
            self.storage_pages += node.key.pages
            self._classify(node)

    def set_device(self, node: Node) -> None:
        """The node has been loaded back."""
        if not node.on_device:
            node.on_device = True
            self.device_pages += node.key.pages
            if node.locks:
                self.protected_pages += node.key.pages
            self.copies.add(node)
            parent = _parent(node)
            parent.device_children += 1
            if not node.locks:  # else neither can leave
                self._classify(parent)
                self._classify(node)

    def evict_device(self, pages: int) -> int:
        """Free at least so many pages of the device, if there are as many to free; returns how many were."""
        return self._evict(Tier.DEVICE, self._device_leaves, pages, self._leave_device)

    def evict_host(self, pages: int) -> int:
        """The same for the host."""
        freed = self._give_up_first(pages) if self._exclusive else 0
        return freed + self._evict(Tier.HOST, self._host_leaves, pages - freed, self._leave_host)

    def evict_storage(self, pages: int) -> int:
        """The same for storage, always by recency."""
        freed = 0
        while freed < pages and self._storage_leaves:
            node = min(self._storage_leaves, key=_last_access)
            freed += node.key.pages
            self._leave_storage(node)
        return freed

    def candidates(self) -> list[Node]:
        """What could leave the device, ready to be ranked."""
        self._coordinator.open_round(self._device_leaves, self._choice(Tier.DEVICE))
        return list(self._device_leaves)

    def _evict(
        self, tier: Tier, leaves: dict[Node, None], pages: int, leave: Callable[[Node, EvictionClass], None]
    ) -> int:
        self._coordinator.open_round(leaves, self._choice(tier))
        priority = self._coordinator.priority
        heap = [(priority(node), node.last_access_time, id(node), node) for node in leaves]
        heapq.heapify(heap)
        freed = 0
        while freed < pages and heap:
            node = heapq.heappop(heap)[3]
            if node not in leaves:
                continue
            parent, left = self._evict_path(node, leaves, pages - freed, leave)
            freed += left
            if freed < pages and parent in leaves:
                heapq.heappush(heap, (priority(parent), parent.last_access_time, id(parent), parent))
        return freed

    def _give_up_first(self, pages: int) -> int:
        freed = 0
        for node in self.copies.given_up_first(self._host_leaves):
            freed += node.key.pages
            if node.on_device:
                self._drop_copy(node)
            else:
                self._leave_host(node, self._coordinator.class_of(node))
            if freed >= pages:
                break
        return freed

    def _drop_copy(self, node: Node) -> None:
        node.on_host = False
        self.host_pages -= node.key.pages
        parent = _parent(node)
        parent.host_children -= 1
        self._classify_below(parent)

    def _evict_path(
        self, node: Node, leaves: dict[Node, None], pages: int, leave: Callable[[Node, EvictionClass], None]
    ) -> tuple[Node, int]:
        """Evict a leaf and those above that are sure to be next; returns who may be it then, and the pages freed."""
        coordinator, freed = self._coordinator, 0
        path, cls = coordinator.path_of(node), coordinator.class_of(node)
        while True:
            parent = _parent(node)
            follows = path is not None and coordinator.follows(parent, node, path)
            freed += node.key.pages
            leave(node, cls)
            if freed >= pages or not follows or parent not in leaves:
                return parent, freed
            node = parent

    def _leave_device(self, node: Node, cls: EvictionClass) -> None:
        self._on_evicted(node, Tier.DEVICE, cls)
        node.on_device = False
        self.device_pages -= node.key.pages
        parent = _parent(node)
        parent.device_children -= 1
        self._inherit(node, parent)
        del self._device_leaves[node]
        if self._tiered:
            self._classify_below(node)
        if not parent.device_children and not parent.locks:
            self._device_leaves[parent] = None  # what is above something on the device is there, too
        self._drop_if_gone(node)

    def _leave_host(self, node: Node, cls: EvictionClass) -> None:
        self._on_evicted(node, Tier.HOST, cls)
        node.on_host = False
        self.host_pages -= node.key.pages
        parent = _parent(node)
        parent.host_children -= 1
        self._inherit(node, parent)
        self._classify_below(node)
        self._classify_below(parent)
        self._drop_if_gone(node)

    def _leave_storage(self, node: Node) -> None:
        node.on_storage = False
        del self._storage_leaves[node]
        self.storage_pages -= node.key.pages
        self._inherit(node, _parent(node))
        self._classify(node)
        self._drop_if_gone(node)

    @staticmethod
    def _inherit(node: Node, parent: Node) -> None:
        parent.last_access_time = max(parent.last_access_time, node.last_access_time - _STEP)

    def _drop_if_gone(self, node: Node) -> None:
        if node.alive or node.children:
            return
        parent = _parent(node)
        identity, first, _ = node.key.runs[0]
        del parent.children[identity, first]
        self.nodes -= 1
        self.copies.forget(node)
        self._classify(parent)
        if parent.parent is not None:
            self._drop_if_gone(parent)

    def _classify(self, node: Node) -> None:
        """Keep the sets of what could be evicted from each tier up to date; what is locked is in none of the first two.

        The root is always locked.
        """
        if not node.locks:
            _put(self._device_leaves, node, node.on_device and not node.device_children)
        if self._tiered:
            self._classify_below(node)

    def _classify_below(self, node: Node) -> None:
        below = not node.on_device
        if not node.locks:
            _put(self._host_leaves, node, below and node.on_host and not node.host_locks and not node.host_children)
        if node.on_storage:
            _put(self._storage_leaves, node, below and not node.on_host and not node.children)

    def _split(self, child: Node, pages: int) -> Node:
        """Divide a node; returns its upper part, of ``pages`` pages."""
        parent = _parent(child)
        head, tail = cut(child.key.runs, pages)
        upper = Node(Span(head, pages, self.page_tokens), parent, child.end - child.key.pages + pages)
        upper.on_device, upper.on_host, upper.on_storage = child.on_device, child.on_host, child.on_storage
        self._time += 1.0
        upper.last_access_time = self._time - _STEP
        child.last_access_time = self._time  # SGLang takes being split for being used
        upper.hit_count = child.hit_count
        upper.locks = 1 if child.locks else 0
        upper.device_children, upper.host_children = int(child.on_device), int(child.on_host)
        parent.children[head[0][0], head[0][1]] = upper
        upper.children[tail[0][0], tail[0][1]] = child
        child.key = Span(tail, child.key.pages - pages, self.page_tokens)
        child.parent = upper
        self.nodes += 1
        self.copies.split(upper, child)
        self._coordinator.split(upper, child)
        self._classify(upper)
        self._classify(child)
        return upper


def _put(leaves: dict[Node, None], node: Node, belongs: bool) -> None:
    if belongs:
        leaves[node] = None
    elif node in leaves:
        del leaves[node]


def _parent(node: Node) -> Node:
    assert node.parent is not None, "the root cannot be evicted or split"
    return node.parent


def _last_access(node: Node) -> float:
    return node.last_access_time
