"""The leaves of a tier that may be evicted: a set of which each round looks at a bounded part.

Ranking every leaf in every round takes milliseconds for thousands of leaves, which a scheduler step does not have. So
of large sets a round looks at a part: the first by the order beneath ours (SGLang's), the first of those that nobody
claims, some claimed ones in turns, new ones and those of ended workflows before others, and the worst of the rounds
before. What nobody claims leaves in exactly SGLang's order; for claimed leaves the order is that of a pool kept over
the rounds, as in Redis' approximated LRU. Where many leave in a round, as many new ones come until the next, so what is
looked at grows with them: else it would be the new ones alone.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, Protocol

from kvflow.engine import ports
from kvflow.engine.ages import Ages
from kvflow.engine.choice import FREE_CHOICE, Choice
from kvflow.engine.owners import pin_priority

EXACT = 192
"""Up to so many leaves are all looked at."""
_PART = 32
"""Taken of each kind in a round, and twice as many each time that they are not enough."""
_MOST_CLAIMED = 256
"""Claimed leaves taken in a round in which many leave."""
_POOL = 64
_MOST_POOL = 512
_FADES = 0.9
"""What is left from round to round of how many leave at most."""
_MOST_BEHIND = 640
"""Leaves behind the first ones among which a round looks for such that no pin keeps."""
_MOST_BELOW = 64
"""Leaves below the end of a context that has ended; more of them will have to wait for their turn."""


class Node(ports.Node, Protocol):
    """A node whose leaves are looked at in parts.

    Attributes:
        id: tells nodes apart; the same on every rank.
    """

    id: int


Order = Callable[[Node], Any]
"""Gives what nodes are compared by; lowest leaves first."""


class Leaves(set[Any]):
    """Evictable leaves. While a round is open, iterating gives those that it looks at; all else is that of a set.

    Every choice depends on the order of calls alone, so that tensor-parallel ranks choose alike.

    Args:
        own: the order beneath ours. Its values may only grow while a node is in the set, as times of use do.
    """

    def __init__(self, own: Order) -> None:
        super().__init__()
        self._first = _Queue(self, own)
        self._unclaimed = _Queue(self, own)
        self._ages: Ages | None = None
        self._claimed: OrderedDict[int, Node] = OrderedDict()
        self._new: list[Node] = []
        self._pool: list[Node] = []
        self._round: dict[int, Node] | None = None
        self._part, self._claims = _PART, True
        self._leaving, self._left = 0.0, 0
        self._aside: dict[int, Node] = {}

    def add(self, node: Node) -> None:
        """Add a leaf."""
        if node not in self:
            super().add(node)
            self._new.append(node)
            if len(self._new) > 2 * EXACT:
                self._sort_new()

    def discard(self, node: Any) -> None:
        """Remove what is a leaf no more, if it was one."""
        if node in self:
            super().discard(node)
            self._left += self._round is not None and node.owners is not None
            if self._ages is not None:
                self._ages.discard(node)

    @property
    def ages(self) -> Ages | None:
        """How old all leaves are, while a round looks at a part of them."""
        return self._ages if self._round is not None else None

    def _count_ages(self) -> None:
        """Follow how old leaves are from now on; most devices never have to. Cost: O(leaves log leaves), once."""
        if self._ages is None:
            self._ages = Ages(super().__iter__())

    def __iter__(self) -> Iterator[Node]:
        return super().__iter__() if self._round is None else iter(list(self._round.values()))

    def open_round(
        self,
        *,
        claims: bool,
        tokens: int = 0,
        spared_tokens: float = 0,
        choice: Choice = FREE_CHOICE,
        now_s: float = -math.inf,
    ) -> None:
        """Choose what a round looks at, until :meth:`close_round`.

        Args:
            claims: they have a say; else the order beneath decides alone.
            tokens: what is chosen has to hold so many, if all leaves do.
            spared_tokens: if pins by command keep some of it, what they do not keep has to hold so many, likewise; each
                round looks for that among some hundred leaves more.
            choice: of prediction; if it is among few, more of the oldest are chosen.
            now_s: on the control plane's clock, by which pins end.

        Cost: O(log leaves) for each of a bounded number, or of as many as hold the tokens.
        """
        self._give_back()
        self._sort_new()
        if len(self) <= EXACT:
            return
        chosen = self._round = {id(node): node for node in self._pool if node in self} if claims else {}
        self._part, self._claims, self._left = _PART, claims, 0
        self._bring_back(_PART)
        if not (choice.free or choice.none):
            self._count_ages()
        oldest = self._take()
        if sum(len(node.key) for node in oldest) < choice.window_tokens < math.inf:
            self._first.take(_PART, chosen)
        held = sum(len(node.key) for node in chosen.values())
        while held < tokens and (found := self._first.take(_PART, chosen) or self._take_aside(chosen)):
            held += sum(len(node.key) for node in found)
        free = [len(node.key) for node in chosen.values() if pin_priority(node, now_s) is None]
        if len(free) < len(chosen):
            self._look_behind_pins(spared_tokens - sum(free), chosen, now_s)

    def _look_behind_pins(self, tokens: float, chosen: dict[int, Node], now_s: float) -> None:
        """Choose more by the order beneath, so many tokens of what no pin keeps.

        What is kept is put aside for some rounds, so that the next ones begin behind it.
        """
        looked_at = 0
        while tokens > 0 and looked_at < _MOST_BEHIND and (found := self._first.take(_PART, chosen)):
            looked_at += len(found)
            for node in found:
                if pin_priority(node, now_s) is not None:
                    self._aside[id(node)] = chosen.pop(id(node))
                else:
                    tokens -= len(node.key)

    def _bring_back(self, count: int) -> None:
        for key in list(islice(self._aside, count)):
            node = self._aside.pop(key)
            if node in self:
                self._first.put(node)

    def _take_aside(self, chosen: dict[int, Node]) -> list[Node]:
        self._bring_back(len(self._aside))
        return self._first.take(self._part, chosen)

    def widen(self) -> bool:
        """Look at more, twice as many each time, because what was looked at has not been enough.

        Returns:
            False if there is no more.
        """
        if self._round is None:
            return False
        self._sort_new()
        self._round = {key: node for key, node in self._round.items() if node in self}
        seen = len(self._round)
        self._part *= 2
        if not self._take():
            self._take_aside(self._round)
        return len(self._round) > seen

    def look_at_all(self) -> None:
        """Look at everything until the round is closed."""
        self._give_back()

    def close_round(self, order: Order) -> None:
        """Remember the worst of what is left of a round for the next one.

        Args:
            order: with claims.
        """
        chosen = self._round or {}
        if self._round is not None and self._claims:
            self._leaving = max(float(self._left), _FADES * self._leaving)
        self._give_back()
        claimed = [node for node in chosen.values() if node.owners is not None and node in self]
        if claimed:
            self._pool = sorted(claimed, key=order)[: max(_POOL, min(_MOST_POOL, int(4 * self._leaving)))]

    def ended(self, node: Node) -> None:
        """A workflow whose context ended at a node is over: look at what is left of it soon."""
        waiting = [node]
        for _ in range(_MOST_BELOW):
            if not waiting:
                break
            current = waiting.pop()
            waiting += current.children.values()
            if current in self:
                self._look_soon(current)

    def _take(self) -> list[Node]:
        """Choose some more of each kind; returns those that are the first by the order beneath."""
        chosen = self._round
        assert chosen is not None
        if self._claims:
            self._unclaimed.take(self._part, chosen)
            self._take_claimed(max(self._part, min(_MOST_CLAIMED, int(2 * self._leaving))), chosen)
        return self._first.take(self._part, chosen)

    def _give_back(self) -> None:
        chosen, self._round = self._round or {}, None
        for node in chosen.values():
            if node in self:
                self._first.put(node)
                if node.owners is None:
                    self._unclaimed.put(node)

    def _sort_new(self) -> None:
        for node in self._new:
            if node in self:
                if self._ages is not None:
                    self._ages.put(node)
                self._first.put(node)
                if node.owners is None:
                    self._unclaimed.put(node)
                else:
                    self._look_soon(node)
        self._new.clear()
        if len(self._claimed) > 2 * len(self) + EXACT:
            self._claimed = OrderedDict((key, node) for key, node in self._claimed.items() if node in self)

    def _look_soon(self, node: Node) -> None:
        self._claimed[id(node)] = node
        self._claimed.move_to_end(id(node), last=False)

    def _take_claimed(self, count: int, chosen: dict[int, Node]) -> None:
        for key in list(islice(self._claimed, count)):
            node = self._claimed.pop(key)
            if node in self:
                chosen[key] = self._claimed[key] = node


class _Queue:
    """Leaves by the order beneath. One whose value has grown since it was put in sinks when it comes up."""

    def __init__(self, leaves: Leaves, own: Order) -> None:
        self._leaves = leaves
        self._own = own
        self._heap: list[tuple[Any, int, Node]] = []
        self._inside: set[int] = set()

    def put(self, node: Node) -> None:
        """Put a leaf in, unless it is there."""
        if id(node) not in self._inside:
            self._inside.add(id(node))
            heappush(self._heap, (self._own(node), node.id, node))
            if len(self._heap) > 2 * len(self._leaves) + EXACT:
                self._heap = [entry for entry in self._heap if entry[2] in self._leaves]
                self._inside = {id(node) for _, _, node in self._heap}
                heapify(self._heap)

    def take(self, count: int, chosen: dict[int, Node]) -> list[Node]:
        """Take out the first that are still leaves, and have not been chosen; returns these."""
        found: list[Node] = []
        while count and self._heap:
            value, _, node = heappop(self._heap)
            if node not in self._leaves:
                self._inside.discard(id(node))
            elif (now := self._own(node)) != value:
                heappush(self._heap, (now, node.id, node))
            else:
                self._inside.discard(id(node))
                if id(node) not in chosen:
                    chosen[id(node)] = node
                    found.append(node)
                    count -= 1
        return found


def made_of(nodes: Iterable[Node], own: Order) -> Leaves:
    """Put nodes into a new set."""
    leaves = Leaves(own)
    for node in nodes:
        leaves.add(node)
    return leaves
