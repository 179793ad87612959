"""Which simulated nodes are on device and host alike, and which of them a full host gives up first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from kvflow.engine import Choice, Coordinator, given_up_first
from kvflow.sim.node import Node


class Copies:
    """Nodes that are on both tiers, in the order in which they came to be.

    Args:
        coordinator: says what stays on the device.
        choice: among which leaves of the host prediction may choose.
    """

    def __init__(self, coordinator: Coordinator, choice: Callable[[], Choice]) -> None:
        self._coordinator = coordinator
        self._choice = choice
        self._nodes: dict[Node, Node] = {}

    def add(self, node: Node) -> None:
        """Take a node in if it is on both, and the copy from one to the other is done."""
        if node.on_device and node.on_host:
            self._nodes.setdefault(node, node)

    def split(self, upper: Node, lower: Node) -> None:
        """A node has been divided."""
        if lower in self._nodes:
            self.add(upper)

    def forget(self, node: Node) -> None:
        """A node has left all tiers."""
        self._nodes.pop(node, None)

    def given_up_first(self, leaves: Collection[Node]) -> Iterator[Node]:
        """Give what a full host gives up first; see :func:`kvflow.engine.given_up_first`.

        Args:
            leaves: of the host.
        """
        coordinator, choice = self._coordinator, self._choice()
        if not coordinator.uses_claims or choice.none:
            return
        coordinator.open_round(leaves, choice)
        yield from given_up_first(
            coordinator,
            leaves,
            self._nodes,
            order=lambda leaf: (coordinator.priority(leaf), leaf.last_access_time),
            droppable=lambda node: node.on_device and node.on_host and not node.host_locks,
            locked=lambda node: node.locks > 0,
        )
