"""Backup: contexts that face a long wait, or are retained, are copied to the host before they leave the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

from kvflow.engine.ahead import LIKELY
from kvflow.engine.claim import Claim
from kvflow.engine.coordinator import Coordinator
from kvflow.engine.ports import Node
from kvflow.engine.searches import MOST_FOUND, Search

_TRIES = 4
"""Contexts that are tried before anything has changed."""
_PAUSE_S = 0.1
"""Between two looks for waits, which are longer."""


class BackupPlanner:
    """Chooses contexts to copy, where the body does not copy everything anyway.

    A context is to be copied when its next use is so far off that keeping it on the device until then costs more than
    to load it: ``next use * tokens / device >= load``, the share of the device it occupies for so long against the
    link's time. That is when it is going to leave; with a copy it comes back by a load, without one by a computation.
    So is that of a program that is held until others have had their turn.

    Source: InferCept's comparison of preserve and swap (arXiv 2402.01869, §4.1), decided when the wait begins.

    Args:
        coordinator: whose claims say what is needed when.
        device_tokens: size of the device.
    """

    def __init__(self, coordinator: Coordinator, device_tokens: int) -> None:
        self._coordinator = coordinator
        self._device_tokens = device_tokens
        self._decided = -1
        self._resume_s = 0.0
        claims = coordinator.claims
        self._waits = Search(
            claims.clock,
            lambda: chain(claims.expected(), claims.waited_for()),
            wanted=self._is_wanted,
            choose=lambda found: list(islice(found, MOST_FOUND)),
            pause_s=lambda: _PAUSE_S,
        )
        self._ordered: dict[Node, float] = {}
        self._refused: tuple[int, set[Node]] = (-1, set())

    def order(self, nodes: Sequence[Node], until_s: float) -> None:
        """Copy contexts by command, however soon they are needed again.

        Args:
            nodes: where they end.
            until_s: not after this, on the control plane's clock.
        """
        now_s = self._coordinator.claims.clock.now_s
        self._ordered |= {node: until_s for node in nodes if self._lacks(node)}
        self._ordered = {node: due_s for node, due_s in self._ordered.items() if due_s > now_s and self._lacks(node)}
        self._decided = -1

    @property
    def has_orders(self) -> bool:
        """Whether copies have been ordered and not been made. Cost: O(1) without orders, else of those."""
        return any(map(self._lacks, self._ordered))

    def ordered(self, node: Node) -> bool:
        """Whether a copy of a node has been ordered and not been made."""
        return node in self._ordered and self._lacks(node)

    def cancel(self, nodes: Sequence[Node]) -> None:
        """Take back what has been ordered of these."""
        for node in nodes:
            self._ordered.pop(node, None)

    def flushed(self) -> None:
        """The cache has been flushed."""
        self._ordered.clear()

    def next(self, under_way: Callable[[Node], bool]) -> Node | None:
        """Choose the context to copy next; what is above its node lacks a copy as well, or has one.

        Args:
            under_way: whether a copy of a node has begun.

        Cost: O(1); O(claims) for a search, ten times a second, or when all that one has found has been dealt with.
        """
        clock = self._coordinator.claims.clock
        if clock.version == self._decided or (clock.now_s < self._resume_s and not self._ordered):
            return None
        if self._refused[0] != clock.version:
            self._refused = (clock.version, set())
        refused = self._refused[1]
        self._ordered = {n: until_s for n, until_s in self._ordered.items() if until_s > clock.now_s and self._lacks(n)}
        wanted = (node for node in self._wanted() if node not in refused and not under_way(node))
        node = next(wanted, None) if len(refused) < _TRIES else None
        if node is None:
            self._decided = clock.version
            self._resume_s = self._waits.next_s if self._waits.next_s > clock.now_s else clock.now_s + _PAUSE_S
        return node

    def refused(self, node: Node) -> None:
        """There was no room for what was chosen, on the host or to hold it: others first, until something changes."""
        self._refused[1].add(node)

    def _wanted(self) -> Iterator[Node]:
        """Where contexts end that are to be copied: as ordered, or because they will not be used for long."""
        yield from self._ordered
        yield from (claim.tip for claim in self._waits.found() if claim.tip is not None)

    def _is_wanted(self, claim: Claim) -> bool:
        """Whether its context will not be used for long, and lacks a copy."""
        if not claim.expected or (claim.waited_for and not claim.held_s):
            return False
        return claim.tip is not None and self._lacks(claim.tip) and self._faces_a_long_wait(claim)

    def _lacks(self, node: Node) -> bool:
        """Whether a copy is missing, and can be made."""
        return not (node.backuped or node.evicted) and self._coordinator.cached(node)

    def _faces_a_long_wait(self, claim: Claim) -> bool:
        in_use = claim.since_s is not None and not claim.held_s
        if in_use or claim.likelihood < LIKELY or not claim.keeps_tail:
            return False
        next_s = claim.next_s(self._coordinator.claims.clock)
        return next_s >= self._coordinator.costs.load_s(self._device_tokens)
