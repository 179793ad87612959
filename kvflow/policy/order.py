"""Eviction orders: ``lru`` and ``steps``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from kvflow.errors import ConfigError

Rank = tuple[int, float]
"""(class, value within the class); the lowest leaves first."""


class EvictionClass(IntEnum):
    """Order classes, first to leave first."""

    RETIRED = 0
    """Used only by workflows that have ended."""
    UNCLAIMED = 1
    """Never hinted, or nobody is expected to use it again, or a tail that experience says nobody will extend."""
    TAIL = 2
    """The dynamic part of a prompt whose workflow lives and will run the agent again."""
    FIXED = 3
    """The fixed part of a prompt some live workflow will run."""
    PINNED = 4
    """Softly pinned: its agent waits for a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the claims on one radix node add up to.

    Attributes:
        fixed_steps: least steps-to-execution among the claims that hold the node as fixed prompt; None without any.
        tail_steps: the same for claims that hold it as dynamic tail worth keeping.
        pinned: at least one live claim on the node is softly pinned.
        retired: the node has been claimed, and every workflow that did so has ended.
    """

    fixed_steps: float | None = None
    tail_steps: float | None = None
    pinned: bool = False
    retired: bool = False


class EvictionPolicy(Protocol):
    """An eviction order."""

    name: str

    def rank(self, standing: Standing | None) -> Rank:
        """Rank a node; None stands for a node without claims. Called for every evictable leaf, so keep it O(1)."""
        ...


class LRUPolicy:
    """The engine's own order, whatever the hints say."""

    name = "lru"

    def rank(self, standing: Standing | None) -> Rank:
        """Rank every node alike, which leaves the decision to recency."""
        return (EvictionClass.UNCLAIMED, 0.0)


class StepsPolicy:
    """Evict the context whose agent is furthest from running.

    Source: KVFlow (arXiv 2507.07400) section 3: only the fixed part of a prompt carries steps-to-execution, shared
    nodes take the minimum, dynamic suffixes leave first, then descending steps. Departures: contexts of finished
    workflows leave before everything else, tails of live workflows are ordered by their steps too, and contexts of
    agents that wait for a tool are softly pinned.
    """

    name = "steps"

    def rank(self, standing: Standing | None) -> Rank:
        """Rank by class, then by descending steps-to-execution."""
        if standing is None:
            return (EvictionClass.UNCLAIMED, 0.0)
        if standing.pinned:
            return (EvictionClass.PINNED, 0.0)
        if standing.fixed_steps is not None:
            return (EvictionClass.FIXED, -standing.fixed_steps)
        if standing.tail_steps is not None:
            return (EvictionClass.TAIL, -standing.tail_steps)
        return (EvictionClass.RETIRED if standing.retired else EvictionClass.UNCLAIMED, 0.0)


POLICIES: dict[str, type[EvictionPolicy]] = {"lru": LRUPolicy, "steps": StepsPolicy}


def make_policy(name: str) -> EvictionPolicy:
    """Create the policy of that name.

    Raises:
        ConfigError: there is no such policy.
    """
    try:
        return POLICIES[name]()
    except KeyError:
        raise ConfigError(f"eviction policy {name!r} does not exist; choose one of {', '.join(POLICIES)}") from None
