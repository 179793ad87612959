"""Nodes of the simulated radix cache, and what of a prompt they span."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from kvflow.engine.owners import Owners
from kvflow.engine.prefetch import Load
from kvflow.sim.context import Context, Run


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
        device_children, host_children: children on the device, and on the host.
    """

    __slots__ = (
        "arriving",
        "children",
        "device_children",
        "end",
        "fetched",
        "hit_count",
        "host_children",
        "host_locks",
        "key",
        "last_access_time",
        "load",
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
        self.locks = self.host_locks = self.device_children = self.host_children = 0
        self.last_access_time = 0.0
        self.hit_count = 0
        self.owners: Owners | None = None
        self.load: Load | None = None
        self.arriving: Load | None = None
        self.fetched = False

    def path(self) -> list[Node]:
        """The node and all above it but the root, deepest first."""
        path = []
        node = self
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path

    def path_with_ends(self, page_tokens: int) -> list[tuple[Node, int]]:
        """The same with the position of each node's last token + 1."""
        path = []
        node = self
        while (parent := node.parent) is not None:
            path.append((node, node.end * page_tokens))
            node = parent
        return path

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

    @property
    def cached(self) -> Node:
        """The deepest of it and those above it that the device or the host has; the root if there is none."""
        node = self
        while not node.on_device and not node.on_host:
            assert node.parent is not None
            node = node.parent
        return node

    @property
    def resident(self) -> Node:
        """The deepest of it and those above it that the device has; the root if there is none."""
        node = self
        while not node.on_device:
            assert node.parent is not None
            node = node.parent
        return node


def backed_up(node: Any) -> bool:
    """Whether the tier below the one the node would leave has a copy."""
    return node.on_host if node.on_device else node.on_storage


def first_page(context: Context, position: int) -> tuple[int, int]:
    """Identify the page of a context at a position in pages: what a node's children are found by."""
    index = bisect_right(context.run_ends, position)
    identity, first, pages = context.runs[index]
    return identity, first + pages - (context.run_ends[index] - position)


def common_pages(node: Node, context: Context, position: int, limit: int) -> int:
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


def cut(runs: list[Run], pages: int) -> tuple[list[Run], list[Run]]:
    """Divide runs behind their first pages."""
    head: list[Run] = []
    for index, (identity, first, count) in enumerate(runs):
        if pages < count:
            if pages:
                head.append((identity, first, pages))
            return head, [(identity, first + pages, count - pages), *runs[index + 1 :]]
        head.append((identity, first, count))
        pages -= count
    return head, []
