"""Orders that use no prediction: ``lru``, ``lfu``, ``slru``, ``tlru``. Ties go by recency, as everywhere."""

from __future__ import annotations

from kvflow.policy.standing import EvictionClass, Leaf, Rank


class LRUPolicy:
    """The engine's own order, whatever the hints say."""

    name = "lru"
    uses_claims = False
    unclaimed_alike = True

    def rank(self, leaf: Leaf) -> Rank:
        """Rank every node alike, which leaves the decision to recency."""
        return (EvictionClass.UNCLAIMED, 0.0)


class LFUPolicy:
    """Evict what was hit least often (SGLang's ``lfu``)."""

    name = "lfu"
    uses_claims = False

    def rank(self, leaf: Leaf) -> Rank:
        """Rank by the number of hits."""
        return (EvictionClass.UNCLAIMED, leaf.hits)


class SLRUPolicy:
    """Evict what was hit once before what was hit again (SGLang's ``slru``)."""

    name = "slru"
    uses_claims = False

    def __init__(self, protected_hits: int = 2) -> None:
        self._protected_hits = protected_hits

    def rank(self, leaf: Leaf) -> Rank:
        """Rank by segment: probationary, then protected."""
        return (EvictionClass.UNCLAIMED, leaf.hits >= self._protected_hits)


class TLRUPolicy:
    """Evict what a next prompt can do without and still start in time.

    Source: tail-optimized LRU (arXiv 2510.15152). A context of L tokens whose next prompt adds Q only has to keep
    L + Q - threshold tokens; what lies beyond leaves first. L is known for hinted contexts only.
    """

    name = "tlru"
    unclaimed_alike = True

    def __init__(self, threshold_tokens: int = 8192, next_prompt_tokens: int = 1024) -> None:
        self._threshold_tokens = threshold_tokens
        self._next_prompt_tokens = next_prompt_tokens

    def rank(self, leaf: Leaf) -> Rank:
        """Rank what is safe to lose first."""
        keep_tokens = leaf.standing.context_tokens + self._next_prompt_tokens - self._threshold_tokens
        without = leaf.end_tokens - leaf.tokens
        return (EvictionClass.UNCLAIMED, without < max(keep_tokens, 0) or not leaf.standing.context_tokens)
