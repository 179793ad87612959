"""``saga``: SAGA's workflow-aware LRU."""

from __future__ import annotations

from kvflow.policy.standing import EvictionClass, Leaf, Rank

_SIZE_SCALE_TOKENS = 8192


class SagaPolicy:
    """Evict by a weighted sum of age, improbability of reuse and size.

    Source: SAGA (arXiv 2605.00528), WA-LRU: ``evict = α·recency + β·(1 - P_reuse) + γ·size``, the highest first, with
    α = 0.3, β = 0.5, γ = 0.2. The paper leaves both norms open: recency is the place among the leaves here, size is
    s / (s + 8192 tokens). P_reuse is our probability of another use, which already weighs branches.
    """

    name = "saga"
    uses_age = True

    def __init__(self, recency_weight: float = 0.3, reuse_weight: float = 0.5, size_weight: float = 0.2) -> None:
        self._recency_weight = recency_weight
        self._reuse_weight = reuse_weight
        self._size_weight = size_weight

    def rank(self, leaf: Leaf) -> Rank:
        """Rank by the weighted sum; contexts of agents that wait within their tool's TTL leave last."""
        score = (
            self._recency_weight * leaf.age
            + self._reuse_weight * (1 - leaf.standing.probability)
            + self._size_weight * leaf.tokens / (leaf.tokens + _SIZE_SCALE_TOKENS)
        )
        return (EvictionClass.PINNED if leaf.standing.pinned else EvictionClass.UNCLAIMED, -score)
