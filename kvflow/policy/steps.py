"""``steps``: KVFlow's order."""

from __future__ import annotations

from kvflow.policy.standing import EvictionClass, Leaf, Rank


class StepsPolicy:
    """Evict the context whose agent is furthest from running.

    Source: KVFlow (arXiv 2507.07400) section 3: only the fixed part of a prompt carries steps-to-execution, shared
    nodes take the minimum, dynamic suffixes leave first, then descending steps. Departures: contexts of finished
    workflows leave before everything else, tails of live workflows are ordered by their steps too, and contexts of
    agents that wait for a tool are softly pinned.
    """

    name = "steps"
    unclaimed_alike = True
    path_order = True

    def rank(self, leaf: Leaf) -> Rank:
        """Rank by class, then by descending steps-to-execution."""
        standing = leaf.standing
        cls = standing.cls
        if cls is EvictionClass.FIXED:
            return (cls, -(standing.fixed_steps or 0.0))
        if cls is EvictionClass.TAIL:
            return (cls, -(standing.tail_steps or 0.0))
        return (cls, 0.0)
