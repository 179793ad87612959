"""Backup: contexts that face a long wait, or are retained, are copied to the host before they leave the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvflow.engine.ahead import LIKELY
from kvflow.engine.claim import Claim
from kvflow.engine.coordinator import Coordinator
from kvflow.engine.ports import Node


class BackupPlanner:
    """Chooses contexts to copy, where the body does not copy everything anyway.

    A context is to be copied when its next use is so far off that keeping it on the device until then costs more than
    to load it: ``next use * tokens / device >= load``, the share of the device it occupies for so long against the
    link's time. That is when it is going to leave; with a copy it comes back by a load, without one by a computation.

    Source: InferCept's comparison of preserve and swap (arXiv 2402.01869, §4.1), decided when the wait begins.

    Args:
        coordinator: whose claims say what is needed when.
        device_tokens: size of the device.
    """

    def __init__(self, coordinator: Coordinator, device_tokens: int) -> None:
        self._coordinator = coordinator
        self._device_tokens = device_tokens
        self._decided = -1
        self._ordered: dict[Node, float] = {}

    def order(self, nodes: Sequence[Node], until_s: float) -> None:
        """Copy contexts by command, however soon they are needed again.

        Args:
            nodes: where they end.
            until_s: not after this, on the control plane's clock.
        """
        self._ordered |= dict.fromkeys(nodes, until_s)
        self._decided = -1

    def flushed(self) -> None:
        """The cache has been flushed."""
        self._ordered.clear()

    def next(self, under_way: Callable[[Node], bool]) -> Node | None:
        """Choose the context to copy next; what is above its node lacks a copy as well, or has one.

        Args:
            under_way: whether a copy of a node has begun.

        Cost: O(claims) if a prediction has changed since the last call that found nothing, else O(1).
        """
        clock = self._coordinator.claims.clock
        if clock.version == self._decided:
            return None
        self._ordered = {n: until_s for n, until_s in self._ordered.items() if until_s > clock.now_s and self._lacks(n)}
        for node in self._ordered:
            if not under_way(node):
                return node
        for claim in self._coordinator.claims.expected():
            node = claim.tip
            if node is not None and self._lacks(node) and self._faces_a_long_wait(claim) and not under_way(node):
                return node
        self._decided = clock.version
        return None

    def refused(self) -> None:
        """The host had no room for what was chosen, or the device none to hold it: wait until something changes."""
        self._decided = self._coordinator.claims.clock.version

    def _lacks(self, node: Node) -> bool:
        """Whether a copy is missing, and can be made."""
        return not (node.backuped or node.evicted) and self._coordinator.cached(node)

    def _faces_a_long_wait(self, claim: Claim) -> bool:
        if claim.since_s is not None or claim.likelihood < LIKELY or not claim.keeps_tail:
            return False
        next_s = claim.next_s(self._coordinator.claims.clock)
        return next_s >= self._coordinator.costs.load_s(self._device_tokens)
