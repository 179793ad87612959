"""Eviction orders made to do harm, for measuring what the guard lets through."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from kvflow.policy import CostPolicy, Leaf, LRUPolicy, Rank, ServingCosts
from kvflow.policy.registry import POLICIES, PolicyFactory

_REMEMBERED = 100_000


class GuardedLRU(LRUPolicy):
    """LRU under the guard: whatever that changes is the guard's own error."""

    name = "guarded-lru"
    guarded = True


class Inverted(CostPolicy):
    """Keeps what is used last."""

    name = "inverted"

    def rank(self, leaf: Leaf) -> Rank:
        """Rank in the opposite order."""
        cls, value = super().rank(leaf)
        return (-cls, -value)


class Random(CostPolicy):
    """As good as no prediction at all, and recency ignored."""

    name = "random"

    def rank(self, leaf: Leaf) -> Rank:
        """Rank by what says nothing about the future, but is the same on every rank."""
        return (0.0, float(hash((leaf.end_tokens, leaf.tokens)) % 9973))


class Stale(CostPolicy):
    """Goes by what was predicted when a piece of context was first looked at, for ever."""

    name = "stale"

    def __init__(self, costs: ServingCosts | None = None) -> None:
        super().__init__(costs)
        self._first: dict[tuple[int, int], Rank] = {}

    def rank(self, leaf: Leaf) -> Rank:
        """Rank as the first time."""
        if len(self._first) > _REMEMBERED:
            self._first.clear()
        place = (leaf.standing.context_tokens, leaf.end_tokens)
        return self._first.setdefault(place, super().rank(leaf))


class Hostile(CostPolicy):
    """One context in seven has talked everybody into keeping it for ever."""

    name = "hostile"

    def rank(self, leaf: Leaf) -> Rank:
        """Rank those above everything."""
        return (9.0, 0.0) if leaf.standing.context_tokens % 7 == 0 else super().rank(leaf)


ADVERSARIES: dict[str, PolicyFactory] = {
    "inverted": Inverted,
    "random": Random,
    "stale": Stale,
    "hostile": Hostile,
}


@contextmanager
def registered() -> Iterator[MutableMapping[str, PolicyFactory]]:
    """Let them, and LRU under the guard, be asked for by name inside a ``with`` block."""
    added = ADVERSARIES | {GuardedLRU.name: lambda costs: GuardedLRU()}
    POLICIES.update(added)
    try:
        yield POLICIES
    finally:
        for name in added:
            del POLICIES[name]
