"""How many tokens of a tier's leaves are how old, where there are too many leaves to sort them in every round."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

from kvflow.engine.choice import Choice
from kvflow.engine.ports import Node

_MOST = 256
"""Leaves in a span of time."""

_Entry = tuple[float, int]
"""(when a leaf was last used, its tokens), as of when it was last looked at."""


class Ages:
    """Leaves by when they were last used, in spans of time of which each knows its tokens.

    A leaf is used, or becomes shorter, without a word. Then it counts as older, or longer, than it is until its span is
    looked at, so that the oldest leaves never hold more than is said. What comes out depends on the order of times and
    on tokens, never on that in which sets are walked, so that tensor-parallel ranks agree.

    Args:
        leaves: those to begin with.
    """

    def __init__(self, leaves: Iterable[Node] = ()) -> None:
        self._entries: dict[Node, _Entry] = {}
        self._ends: list[float] = [math.inf]
        self._spans: list[set[Node]] = [set()]
        self._tokens: list[int] = [0]
        self._turn = 0
        for node in sorted(leaves, key=_last_access):
            self.put(node)

    def put(self, node: Node) -> None:
        """Enter a leaf, or what has become of it. Cost: O(log leaves), amortized."""
        entry = (node.last_access_time, len(node.key))
        known = self._entries.get(node)
        if known == entry:
            return
        if known is not None:
            self._join(self._take_out(node, known))
        self._entries[node] = entry
        place = bisect_left(self._ends, entry[0])
        self._spans[place].add(node)
        self._tokens[place] += entry[1]
        if len(self._spans[place]) > _MOST:
            self._split(place)

    def discard(self, node: Node) -> None:
        """It is no leaf any more. Cost: O(log leaves), amortized."""
        entry = self._entries.pop(node, None)
        if entry is not None:
            self._join(self._take_out(node, entry))

    def cutoff(self, choice: Choice) -> float:
        """Last use of the youngest leaf among which prediction may choose; minus infinity if there is none.

        Cost: O(spans), and O(log leaves) for each leaf that has been used since, of some spans.
        """
        self._turn = (self._turn + 1) % len(self._spans)
        self._look(self._turn)
        room = min(choice.window_tokens, choice.share * sum(self._tokens))
        youngest, place = -math.inf, 0
        while place < len(self._spans):
            if self._tokens[place] > room:
                self._look(place)
            if self._tokens[place] > room:
                return _youngest((self._entries[node] for node in self._spans[place]), room, youngest)
            room -= self._tokens[place]
            youngest, place = self._ends[place], place + 1
        return youngest

    def _look(self, place: int) -> None:
        """Move leaves of a span that have been used since to where they belong: behind it."""
        entries = self._entries
        used = [node for node in self._spans[place] if entries[node] != (node.last_access_time, len(node.key))]
        for node in sorted(used, key=_last_access):
            self.put(node)

    def _take_out(self, node: Node, entry: _Entry) -> int:
        place = bisect_left(self._ends, entry[0])
        self._spans[place].discard(node)
        self._tokens[place] -= entry[1]
        return place

    def _split(self, place: int) -> None:
        span = self._spans[place]
        times = sorted(self._entries[node][0] for node in span)
        end = times[len(times) // 2 - 1]
        older = {node for node in span if self._entries[node][0] <= end}
        if len(older) < len(span):  # else all are of one time
            tokens = sum(self._entries[node][1] for node in older)
            self._ends.insert(place, end)
            self._spans[place : place + 1] = [older, span - older]
            self._tokens[place : place + 1] = [tokens, self._tokens[place] - tokens]

    def _join(self, place: int) -> None:
        """Join a span with the next one if there is little in both, or nothing in it."""
        spans = self._spans
        if place + 1 == len(spans):
            return
        if not spans[place] or len(spans[place]) + len(spans[place + 1]) <= _MOST // 4:
            spans[place + 1] |= spans[place]
            self._tokens[place + 1] += self._tokens[place]
            del spans[place], self._tokens[place], self._ends[place]


def cutoff_of(leaves: Iterable[Node], choice: Choice) -> float:
    """The same as :meth:`Ages.cutoff` of leaves that are few enough to be sorted. Cost: O(leaves log leaves)."""
    entries = [(node.last_access_time, len(node.key)) for node in leaves]
    room = min(choice.window_tokens, choice.share * sum(tokens for _, tokens in entries))
    return _youngest(entries, room, -math.inf)


def _youngest(entries: Iterable[_Entry], room: float, youngest: float) -> float:
    """Time of the youngest of the oldest leaves that there is room for; of those of one time all are, or none."""
    by_age = sorted(entries)
    for time, tokens in by_age:
        room -= tokens
        if room < 0:
            return max((earlier for earlier, _ in by_age if earlier < time), default=youngest)
    return by_age[-1][0] if by_age else youngest


def _last_access(node: Node) -> float:
    return node.last_access_time
