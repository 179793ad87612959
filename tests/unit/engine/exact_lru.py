"""A plain LRU radix tree, which the guard's shadow is held to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class RadixNode:
    """Some units in a row, which leave together."""

    units: list[int]
    parent: RadixNode | None
    children: list[RadixNode] = field(default_factory=list)
    used_at: int = 0
    holders: int = 0


class ExactLRU:
    """A radix tree in which always the leaf leaves that was unused for longest and that no request holds.

    Slow and plain on purpose; shares nothing with the shadow.

    Args:
        chunk: units that are added at a time.
    """

    def __init__(self, chunk: int) -> None:
        self._root = RadixNode([], None)
        self._chunk = chunk
        self._clock = 0

    def hits(self, prompt: Sequence[int]) -> int:
        return sum(len(node.units) for node in self._find(prompt))

    def start(self, prompt: Sequence[int], capacity: int) -> None:
        for node in self._enter(prompt, self._chunk):
            node.holders += 1
        self._evict(capacity)

    def end(self, prompt: Sequence[int], whole: Sequence[int], capacity: int) -> None:
        for node in self._find(prompt):
            node.holders -= 1
        self._clock += 1
        for node in self._enter(whole, len(whole)):
            node.used_at = self._clock
        self._evict(capacity)

    def size(self) -> int:
        return sum(len(node.units) for node in self._nodes())

    def _find(self, prompt: Sequence[int]) -> list[RadixNode]:
        """The path of a prompt, divided where it ends or leaves the tree."""
        path, node, done = [], self._root, 0
        while done < len(prompt):
            child = next((child for child in node.children if child.units[0] == prompt[done]), None)
            if child is None:
                break
            common = 0
            while common < min(len(child.units), len(prompt) - done) and child.units[common] == prompt[done + common]:
                common += 1
            if common < len(child.units):
                child = self._split(child, common)
            path.append(child)
            node, done = child, done + common
        return path

    @staticmethod
    def _split(lower: RadixNode, count: int) -> RadixNode:
        above = lower.parent
        assert above is not None
        upper = RadixNode(lower.units[:count], above, [lower], lower.used_at, lower.holders)
        above.children[above.children.index(lower)] = upper
        lower.units, lower.parent = lower.units[count:], upper
        return upper

    def _enter(self, prompt: Sequence[int], chunk: int) -> list[RadixNode]:
        path = self._find(prompt)
        done = sum(len(node.units) for node in path)
        while done < len(prompt):
            above = path[-1] if path else self._root
            path.append(RadixNode(list(prompt[done : done + chunk]), above))
            above.children.append(path[-1])
            done += chunk
        return path

    def _nodes(self) -> list[RadixNode]:
        nodes, waiting = [], list(self._root.children)
        while waiting:
            nodes.append(waiting.pop())
            waiting += nodes[-1].children
        return nodes

    def _evict(self, capacity: int) -> None:
        while self.size() > capacity:
            leaves = [node for node in self._nodes() if not node.children and not node.holders]
            if not leaves:
                return
            oldest = min(leaves, key=lambda node: node.used_at)
            assert oldest.parent is not None
            oldest.parent.children.remove(oldest)
