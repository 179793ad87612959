"""``ttl``: Continuum's order."""

from __future__ import annotations

from kvflow.policy.standing import EvictionClass, Leaf, Rank


class TTLPolicy:
    """Keep the context of an agent that waits for a tool until its TTL has passed; everything else by recency.

    Source: Continuum (arXiv 2511.02230) section 4. The TTL itself is computed where the tool durations are known
    (:func:`kvflow.predict.continuum_ttl`). There a pin holds memory that nothing else gets; here it is an order, so
    that pins alone can never make an allocation fail.
    """

    name = "ttl"
    unclaimed_alike = True
    path_order = True

    def rank(self, leaf: Leaf) -> Rank:
        """Rank pinned contexts above all others."""
        return (EvictionClass.PINNED if leaf.standing.pinned else EvictionClass.UNCLAIMED, 0.0)
