"""Pins by command, so kept that none has to be looked for: by tenant, by who has asked for them, and by their ends."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kvflow.engine.accounting import Tier
from kvflow.engine.owners import Pin
from kvflow.engine.ports import Node

Who = tuple[str, Tier]
"""A tenant, and the tier that it pins."""

_LOOK_S = 0.25
_MIN_ENDS = 256


@dataclass(slots=True)
class _Pinned:
    """What one tenant has pinned of a tier.

    Attributes:
        sizes: tokens that each node counts for.
        tokens: of all of them.
        look_s: not before then it is looked at again which of them are not cached any more.
    """

    pins: dict[Node, Pin] = field(default_factory=dict)
    sizes: dict[Node, int] = field(default_factory=dict)
    tokens: int = 0
    look_s: float = -math.inf


class PinTable:
    """All pins there are."""

    def __init__(self) -> None:
        self._pinned: dict[Who, _Pinned] = {}
        self._asked: dict[str, dict[tuple[Who, Node], None]] = {}
        self._ends: list[tuple[float, int, Who, Node]] = []  # a heap; some are of pins that end otherwise by now
        self._most_ends = _MIN_ENDS
        self._numbers = itertools.count()

    def __contains__(self, who: object) -> bool:
        """Whether a tenant has pinned anything of a tier."""
        return who in self._pinned

    def __iter__(self) -> Iterator[tuple[Who, Node]]:
        """All that is pinned, and by whom."""
        return ((who, node) for who, pinned in self._pinned.items() for node in pinned.pins)

    def of(self, who: Who) -> Mapping[Node, Pin]:
        """A tenant's pins."""
        return self._pinned[who].pins if who in self._pinned else {}

    def tokens(self, who: Who) -> int:
        """How many tokens they hold."""
        return self._pinned[who].tokens if who in self._pinned else 0

    def asked(self, workflow_id: str | None) -> list[tuple[Who, Node]]:
        """What has been pinned for a workflow."""
        return [*self._asked.get(workflow_id or "", ())]

    def put(self, who: Who, node: Node, pin: Pin) -> None:
        """Enter a pin on a node, or replace it. Cost: O(who has asked for it + log pins)."""
        pinned = self._pinned.setdefault(who, _Pinned())
        before = pinned.pins.get(node)
        pinned.pins[node] = pin
        if before is None:
            pinned.sizes[node] = len(node.key)
            pinned.tokens += len(node.key)
        self._index(who, node, before, pin)
        if before is None or before.until_s != pin.until_s:
            self._note_end(who, node, pin)

    def divide(self, who: Who, upper: Node, lower: Node) -> None:
        """A node has been divided: if it was pinned, so are both halves."""
        pin = self.of(who).get(lower)
        if pin is None:
            return
        pinned, tokens = self._pinned[who], len(lower.key)
        pinned.tokens -= pinned.sizes[lower] - tokens
        pinned.sizes[lower] = tokens
        self.put(who, upper, pin)

    def remove(self, who: Who, node: Node) -> None:
        """Forget a pin, if there is one."""
        pinned = self._pinned.get(who)
        pin = pinned.pins.pop(node, None) if pinned is not None else None
        if pinned is None or pin is None:
            return
        pinned.tokens -= pinned.sizes.pop(node)
        if not pinned.pins:
            del self._pinned[who]
        self._index(who, node, pin, None)

    def over(self, now_s: float) -> Iterator[tuple[Who, Node]]:
        """Pins that have ended since this was asked last, for the caller to remove. Cost: O(log pins) each."""
        while self._ends and self._ends[0][0] <= now_s:
            _, _, who, node = heapq.heappop(self._ends)
            pin = self.of(who).get(node)
            if pin is not None and pin.until_s <= now_s:
                yield who, node

    def gone(self, who: Who, now_s: float, cached: Callable[[Node], bool]) -> list[Node]:
        """A tenant's nodes that are not cached any more; none if that has just been asked. Cost: O(its nodes)."""
        pinned = self._pinned.get(who)
        if pinned is None or now_s < pinned.look_s:
            return []
        pinned.look_s = now_s + _LOOK_S
        return [node for node in pinned.pins if not cached(node)]

    def _index(self, who: Who, node: Node, before: Pin | None, pin: Pin | None) -> None:
        asked, asked_before = _workflows(pin), _workflows(before)
        for workflow_id in asked - asked_before:
            self._asked.setdefault(workflow_id, {})[who, node] = None
        for workflow_id in asked_before - asked:
            del self._asked[workflow_id][who, node]
            if not self._asked[workflow_id]:
                del self._asked[workflow_id]

    def _note_end(self, who: Who, node: Node, pin: Pin) -> None:
        if len(self._ends) >= self._most_ends:  # most of them may be of pins that have been lifted or made longer
            self._ends = [(self._pinned[by].pins[each].until_s, next(self._numbers), by, each) for by, each in self]
            heapq.heapify(self._ends)
            self._most_ends = max(_MIN_ENDS, 2 * len(self._ends))
        else:
            heapq.heappush(self._ends, (pin.until_s, next(self._numbers), who, node))


def _workflows(pin: Pin | None) -> set[str]:
    return set() if pin is None else {workflow_id for workflow_id, _ in pin.asked if workflow_id is not None}
