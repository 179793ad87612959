"""The simulated radix tree against a model of prefixes, and its books against a recount after every operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow.engine import Coordinator, PromptClaim
from kvflow.policy import EvictionClass
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from kvflow.sim.context import Context, Pager
from kvflow.sim.node import Node, backed_up
from kvflow.sim.tree import RadixTree
from kvflow.trace import Piece

PAGE = 4
Prefix = tuple[tuple[int, int], ...]
parts = st.lists(st.builds(Piece, st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 1)), min_size=1, max_size=4)
operations = st.lists(
    st.tuples(
        st.sampled_from(
            ["insert", "insert", "match", "lock", "unlock", "device", "host", "storage", "copy", "store", "load"]
        ),
        st.integers(0, 63),
        parts,
    ),
    max_size=40,
)


class Model:
    """What is cached on which tier, prefix by prefix."""

    def __init__(self) -> None:
        self.tiers: dict[Prefix, set[str]] = {}

    def put(self, pages: Prefix, tier: str, start: int = 0) -> None:
        for end in range(start + 1, len(pages) + 1):
            self.tiers.setdefault(pages[:end], set()).add(tier)

    def drop(self, pages: Prefix, tier: str, start: int) -> None:
        for end in range(start + 1, len(pages) + 1):
            held = self.tiers[pages[:end]]
            held.remove(tier)
            if not held:
                del self.tiers[pages[:end]]

    def longest(self, pages: Prefix) -> int:
        """Longest prefix that something cached runs through."""
        best = 0
        for known in self.tiers:
            common = 0
            while common < min(len(known), len(pages)) and known[common] == pages[common]:
                common += 1
            best = max(best, common)
        return best


class Checked:
    """A tree, the model, and the requests that hold nodes."""

    def __init__(self, policy: str = "lru") -> None:
        self.coordinator = Coordinator(policy, backed_up=backed_up)
        self.model = Model()
        self.pager = Pager(PAGE, 2)
        self.tree = RadixTree(self.coordinator, PAGE, on_evicted=self._left)
        self.held: list[Node] = []
        self.lost: list[tuple[Node, str]] = []

    def context(self, pieces: list[Piece]) -> Context:
        return self.pager.extend(self.pager.empty(), 0, pieces)

    def do(self, what: str, number: int, pieces: list[Piece]) -> None:
        context = self.context(pieces)
        pages = whole(context.runs)
        if what == "insert":
            count = min(context.pages, 1 + number % 8)
            node = self.tree.insert(context, count)
            self.model.put(pages[:count], "device")
            assert node.end == count
        elif what == "match":
            limit = number % 8
            node = self.tree.match(context, None, limit)
            assert node.end == self.model.longest(pages[:limit])
        elif what == "lock":
            self.lock(self.tree.match(context))
        elif what == "unlock" and self.held:
            self.tree.unlock(self.held.pop(number % len(self.held)))
        else:
            self._move(what, number)

    def lock(self, node: Node) -> None:
        self.tree.lock(node)
        self.held.append(node)

    def _move(self, what: str, number: int) -> None:
        tree = self.tree
        if what == "device":
            assert tree.evict_device(1 + number % 6) >= min(1 + number % 6, self._evictable())
        elif what == "host":
            tree.evict_host(1 + number % 6)
        elif what == "storage":
            before = set(tree._storage_leaves)
            tree.evict_storage(1 + number % 3)
            for gone in before - set(tree._storage_leaves):
                self.model.drop(path_pages(gone), "storage", gone.end - gone.key.pages)
        elif what == "copy":
            self._on_one(number, lambda n: n.on_device and not n.on_host and above_has(n, "on_host"), "host")
        elif what == "store":
            self._on_one(number, lambda n: n.on_host and not n.on_storage and above_has(n, "on_storage"), "storage")
        elif what == "load":
            self._on_one(number, lambda n: n.on_host and not n.on_device and above_has(n, "on_device"), "device")

    def _on_one(self, number: int, fits: Callable[[Node], bool], tier: str) -> None:
        found = [node for node in nodes(self.tree) if fits(node)]
        if found:
            node = found[number % len(found)]
            {"host": self.tree.set_host, "storage": self.tree.set_storage, "device": self.tree.set_device}[tier](node)
            self.model.put(path_pages(node), tier, node.end - node.key.pages)

    def _evictable(self) -> int:
        return sum(node.key.pages for node in nodes(self.tree) if node.on_device and not node.locks)

    def _left(self, node: Node, tier: str, cls: EvictionClass) -> None:
        assert not node.locks
        self.lost.append((node, tier))
        self.model.drop(path_pages(node), tier, node.end - node.key.pages)


def whole(runs: Any) -> Prefix:
    return tuple((identity, first + index) for identity, first, count in runs for index in range(count))


def nodes(tree: RadixTree) -> list[Node]:
    found, stack = [], list(tree.root.children.values())
    while stack:
        node = stack.pop()
        found.append(node)
        stack.extend(node.children.values())
    return found


def path_pages(node: Node) -> Prefix:
    pages: Prefix = ()
    current: Node | None = node
    while current is not None:
        pages = whole(current.key.runs) + pages
        current = current.parent
    return pages


def above_has(node: Node, tier: str) -> bool:
    assert node.parent is not None
    return node.parent.parent is None or getattr(node.parent, tier)


def recount(checked: Checked) -> None:
    """Compare everything the tree keeps books of with what its nodes say."""
    tree = checked.tree
    found = nodes(tree)
    assert tree.nodes == len(found)
    assert tree.device_pages == sum(node.key.pages for node in found if node.on_device)
    assert tree.host_pages == sum(node.key.pages for node in found if node.on_host)
    assert tree.storage_pages == sum(node.key.pages for node in found if node.on_storage)
    assert tree.protected_pages == sum(node.key.pages for node in found if node.on_device and node.locks)
    for node in [tree.root, *found]:
        children = list(node.children.values())
        assert node.device_children == sum(child.on_device for child in children)
        assert node.host_children == sum(child.on_host for child in children)
        own = sum(held is node for held in checked.held) + (node is tree.root)
        assert node.locks == own + sum(child.locks > 0 for child in children)
        for key, child in node.children.items():
            assert child.parent is node
            assert key == whole(child.key.runs)[0]
            assert child.end == node.end + child.key.pages == node.end + len(whole(child.key.runs))
            assert not child.on_device or node.on_device
            assert child.alive or child.children
    assert set(tree._device_leaves) == {n for n in found if n.on_device and not n.locks and not n.device_children}
    assert set(tree._host_leaves) == {
        n
        for n in found
        if n.on_host and not n.on_device and not n.locks and not any(child.on_host for child in n.children.values())
    }
    assert set(tree._storage_leaves) == {
        n for n in found if n.on_storage and not n.on_host and not n.on_device and not n.children
    }
    tiers = {
        path_pages(node)[:end]: node for node in found for end in range(node.end - node.key.pages + 1, node.end + 1)
    }
    for prefix, node in tiers.items():
        held = {tier for tier in ("device", "host", "storage") if getattr(node, f"on_{tier}")}
        assert checked.model.tiers.get(prefix, set()) == held
    assert checked.model.tiers.keys() <= tiers.keys()


@settings(max_examples=150, deadline=None)
@given(operations)
def test_the_tree_finds_what_the_model_has_and_its_books_are_right(script: list[tuple[str, int, list[Piece]]]) -> None:
    checked = Checked()
    for what, number, pieces in script:
        checked.do(what, number, pieces)
        recount(checked)
    for node in checked.held:
        checked.tree.unlock(node)
    checked.held.clear()
    recount(checked)
    assert checked.tree.protected_pages == 0


@settings(max_examples=60, deadline=None)
@given(operations)
def test_whatever_happens_everything_can_be_evicted_in_the_end(script: list[tuple[str, int, list[Piece]]]) -> None:
    checked = Checked()
    for what, number, pieces in script:
        checked.do(what, number, pieces)
    while checked.held:
        checked.tree.unlock(checked.held.pop())
    for _ in range(2):
        checked.tree.evict_device(10_000)
        checked.tree.evict_host(10_000)
        checked.tree.evict_storage(10_000)
    tree = checked.tree
    assert (tree.device_pages, tree.host_pages, tree.storage_pages, tree.nodes) == (0, 0, 0, 0)
    assert not tree.root.children


@settings(max_examples=60, deadline=None)
@given(operations, parts)
def test_a_search_from_a_node_on_the_way_finds_the_same(
    script: list[tuple[str, int, list[Piece]]], pieces: list[Piece]
) -> None:
    checked = Checked()
    context = checked.context(pieces)
    near = checked.tree.insert(context, context.pages)
    checked.model.put(whole(context.runs), "device")
    for what, number, others in script:
        checked.do(what, number, others)
    longer = checked.pager.extend(context, context.tokens, [Piece("d", 7)])
    assert checked.tree.match(longer, near) is checked.tree.match(longer)


def chain(checked: Checked, *tokens: int) -> list[Node]:
    """One branch of nodes, so many tokens each."""
    made, pieces = [], []
    for index, count in enumerate(tokens):
        pieces.append(Piece(f"{index}", count))
        context = checked.context(list(pieces))
        made.append(checked.tree.insert(context, context.pages))
        checked.model.put(whole(context.runs), "device")
    return made


def test_the_nodes_above_are_as_recent_as_what_was_below_them() -> None:
    checked = Checked()
    upper, lower = chain(checked, 8, 8)
    other = checked.tree.insert(checked.context([Piece("other", 8)]), 2)
    checked.model.put(path_pages(other), "device")
    checked.tree.touch(lower)
    checked.tree.evict_device(2)
    checked.tree.evict_device(4)
    assert [node for node, _ in checked.lost] == [other, lower, upper]


def test_a_node_whose_children_are_on_the_host_only_is_told_of_their_use_at_once() -> None:
    checked = Checked()
    upper, lower = chain(checked, 8, 8)
    for node in (upper, lower):
        checked.tree.set_host(node)
        checked.model.put(path_pages(node), "host", node.end - node.key.pages)
    checked.tree.evict_device(2)
    other = checked.tree.insert(checked.context([Piece("other", 8)]), 2)
    checked.model.put(path_pages(other), "device")
    checked.tree.touch(lower)
    checked.tree.evict_device(2)
    assert [node for node, _ in checked.lost] == [lower, other]


def test_both_parts_of_a_divided_node_count_as_used() -> None:
    checked = Checked()
    long = checked.tree.insert(checked.context([Piece("long", 16)]), 4)
    checked.model.put(path_pages(long), "device")
    other = checked.tree.insert(checked.context([Piece("other", 8)]), 2)
    checked.model.put(path_pages(other), "device")
    checked.tree.match(checked.context([Piece("long", 8)]))
    checked.tree.evict_device(1)
    assert [node for node, _ in checked.lost] == [other]


def test_hits_are_counted_once_per_request_and_survive_a_split() -> None:
    checked = Checked()
    context = checked.context([Piece("a", 16)])
    node = checked.tree.insert(context, 4)
    assert node.hit_count == 1
    assert checked.tree.insert(context, 4, node, counted=4) is node
    assert node.hit_count == 1
    upper = checked.tree.insert(context, 2)
    assert (upper.hit_count, node.hit_count) == (2, 1)
    longer = checked.tree.insert(checked.context([Piece("a", 24)]), 6, node, counted=4)
    assert (upper.hit_count, node.hit_count, longer.hit_count) == (2, 1, 1)


def test_claims_stay_with_both_parts_of_a_divided_node() -> None:
    checked = Checked("steps")
    claims = (ClaimPrediction(agent="agent", steps=2.0),)
    checked.coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=claims))
    node = checked.tree.insert(checked.context([Piece("a", 16)]), 4)
    claim = PromptClaim(workflow_id="w", workflow_type="t", agent="agent", fixed_tokens=16)
    checked.coordinator.tag(claim, [(node, 16)], 16)
    upper = checked.tree.match(checked.context([Piece("a", 8), Piece("b", 8)]))
    assert upper is node.parent
    assert checked.coordinator.class_of(upper) is checked.coordinator.class_of(node)
    ends = [one.owners.end_tokens for one in (upper, node) if one.owners is not None]
    assert ends == [8, 16]


def test_locked_paths_stay_however_much_is_asked_for() -> None:
    checked = Checked()
    upper, lower = chain(checked, 8, 8)
    checked.lock(lower)
    assert checked.tree.evict_device(100) == 0
    checked.tree.unlock(checked.held.pop())
    checked.lock(upper)
    assert checked.tree.evict_device(100) == 2
    assert [node for node, _ in checked.lost] == [lower]


@pytest.mark.parametrize("tier", ["host", "storage"])
def test_what_another_tier_has_is_found_again(tier: str) -> None:
    checked = Checked()
    (node,) = chain(checked, 16)
    checked.tree.set_host(node)
    if tier == "storage":
        checked.tree.set_storage(node)
    checked.model.put(path_pages(node), "host")
    checked.tree.evict_device(4)
    if tier == "storage":
        checked.model.put(path_pages(node), "storage")
        checked.tree.evict_host(4)
    assert checked.tree.match(checked.context([Piece("0", 16)])) is node
    assert (node.on_device, node.on_host, node.on_storage) == (False, tier == "host", tier == "storage")
