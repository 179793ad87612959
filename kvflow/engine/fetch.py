"""Fetch: contexts brought from storage to the host before a request, or a load ahead, needs them there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvflow.engine.accounting import Counters
from kvflow.engine.ahead import nearest, target
from kvflow.engine.claim import Claim
from kvflow.engine.coordinator import Coordinator
from kvflow.engine.ports import Node
from kvflow.policy.prefetch import PrefetchPace

_REFUSED_S = 1.0
"""How long a context is not asked for again that could not be."""


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """A context to fetch.

    Attributes:
        claim: who will use it.
        nodes: what neither device nor host has of it any more, top down.
        tokens: their length.
    """

    claim: Claim
    nodes: Sequence[Node]
    tokens: int

    @property
    def last(self) -> Any:
        """The deepest node, as the body knows it."""
        return self.nodes[-1]


class Fetcher:
    """Decides what to fetch from storage, one context at a time, and keeps account of what became of it.

    Decides as :class:`~kvflow.engine.Prefetcher` does, under a budget for mistakes. What has left
    device and host has not been forgotten as long as a claim or its role remembers where its prompt ended.

    Args:
        coordinator: whose claims say what is needed next.
        pace: how early, and how much; its costs are those of storage.
        counters: where outcomes are counted; asked for each time, because they start anew.
        least_tokens: says below how much a context is not worth it; asked each time, as it may become known late.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        pace: PrefetchPace,
        counters: Callable[[], Counters],
        *,
        least_tokens: Callable[[], int],
    ) -> None:
        self._coordinator = coordinator
        self._pace = pace
        self._counters = counters
        self._least_tokens = least_tokens
        self._decided = -1
        self._search = nearest(coordinator, lost=True)
        self._search_s = 0.0
        self._refused: dict[Claim, float] = {}

    def next(self) -> Fetch | None:
        """Choose what to fetch next, if there is something.

        Cost: O(1); O(claims) for a search, of which there are few (see :class:`~kvflow.engine.searches.Search`).
        """
        clock = self._coordinator.claims.clock
        self._pace.tick(clock.now_s)
        if clock.version == self._decided or clock.now_s < self._search_s or not self._pace.may_load:
            return None
        fetch = next(filter(None, map(self._fetch_of, self._search.found())), None)
        if fetch is None:
            self._decided = clock.version
            self._search_s = self._search.next_s
        return fetch

    def flushed(self) -> None:
        """The cache has been flushed."""
        self._pace.flushed()

    def begun(self, fetch: Fetch) -> None:
        """It is under way."""
        self._pace.loaded(fetch.tokens)
        self._counters().fetches += 1

    def refused(self, fetch: Fetch) -> None:
        """The body could not begin what was chosen: others have their turn for a while."""
        now_s = self._coordinator.claims.clock.now_s
        self._refused = {claim: until_s for claim, until_s in self._refused.items() if until_s > now_s}
        self._refused[fetch.claim] = now_s + _REFUSED_S

    def given_up(self, fetch: Fetch) -> None:
        """The body has broken it off."""
        self._pace.missed(fetch.tokens)
        self.refused(fetch)

    def ended(self, fetch: Fetch, path: Sequence[tuple[Node, int]], found_tokens: int) -> None:
        """It has arrived, or storage did not have it.

        Args:
            fetch: the fetch.
            path: nodes of the whole context with the position where each ends, deepest first, as far as there are.
            found_tokens: length of what has come.
        """
        found_tokens = min(found_tokens, fetch.tokens)
        self._pace.missed(fetch.tokens - found_tokens)
        self._counters().fetched_tokens += found_tokens
        for node, _ in path:
            if found_tokens <= 0:
                break
            node.fetched = True
            found_tokens -= len(node.key)
        self._coordinator.found(fetch.claim, fetch.last, path)

    def used(self, path: Iterable[Node]) -> None:
        """A request computes behind these nodes."""
        for node in path:
            if node.fetched:
                node.fetched = False
                self._pace.used(len(node.key))
                self._counters().fetch_used_tokens += len(node.key)

    def left(self, node: Node) -> None:
        """A node leaves the host."""
        if node.fetched:
            node.fetched = False
            self._pace.wasted(len(node.key))
            self._counters().fetch_wasted_tokens += len(node.key)

    def _fetch_of(self, claim: Claim) -> Fetch | None:
        if self._refused.get(claim, -math.inf) > self._coordinator.claims.clock.now_s:
            return None
        nodes = self._lost(target(claim))
        tokens = sum(len(node.key) for node in nodes)
        next_s = claim.next_s(self._coordinator.claims.clock)
        if tokens < self._least_tokens() or not self._pace.near(next_s, claim.steps, tokens):
            return None
        return Fetch(claim, nodes, tokens)

    def _lost(self, node: Node | None) -> list[Node]:
        """What of a context neither device nor host has, top down. All above is there: leaves go first."""
        lost: list[Node] = []
        while node is not None and node.parent is not None:
            if self._coordinator.cached(node) and (node.backuped or not node.evicted):
                break
            lost.append(node)
            node = node.parent
        return lost[::-1]
