"""``cost``: seconds saved per byte and second; and the clairvoyant orders it is measured against."""

from __future__ import annotations

import math

from kvflow.policy.costs import ServingCosts
from kvflow.policy.standing import EvictionClass, Leaf, Rank

_FRESH_S = 1.0
"""Ages are told apart down to this; below, size alone decides."""


class CostPolicy:
    """Keep what saves most time per byte.

    ``value = (Σ over claims p / t) · saved / bytes``: p the probability of another use, t the expected time to it,
    saved the recompute, or the load if the next tier has a copy. Below all values are contexts of ended workflows,
    then superseded states, either by size and time since: where others' prompts part from them, small leaves are left.
    Then comes what nobody claims. Fixed prompts and dynamic tails are told apart by their values alone: a prompt that
    many workflows are about to use adds up their rates.

    Source: ours. For one claim, equal costs and certain uses it is Belady's order on expected next uses; the value
    density is GreedyDual-Size's (Cao and Irani, 1997) with a predicted rate in place of an aged frequency. What is
    left behind goes by size-adjusted LRU (Aggarwal, Wolf and Yu, 1999): the largest product of size and age first.
    """

    name = "cost"
    guarded = True
    unclaimed_alike = True
    path_order = True

    def __init__(self, costs: ServingCosts | None = None) -> None:
        self._costs = costs or ServingCosts()

    def rank(self, leaf: Leaf) -> Rank:
        """Rank by class, then by value density."""
        standing = leaf.standing
        if standing.rate_hz > 0:
            position = leaf.end_tokens - leaf.tokens // 2
            saved_s = self._costs.saved_token_s(position, backed_up=leaf.backed_up)
            return (EvictionClass.TAIL, standing.rate_hz * saved_s)
        if standing.retired or standing.superseded:
            cls = EvictionClass.RETIRED if standing.retired else EvictionClass.SUPERSEDED
            return (cls, -leaf.tokens * (standing.idle_s + _FRESH_S))
        return (EvictionClass.UNCLAIMED, 0.0)


class BeladyPolicy:
    """Evict what is used again last, or never.

    Source: Belady (1966). It is as clairvoyant as its claims: the simulator gives it the truth from the trace, so it
    is an upper bound to compare with, not a policy to serve with. Greedy on sized leaves, not the optimum for them.
    """

    name = "belady"
    unclaimed_alike = True
    path_order = True

    def rank(self, leaf: Leaf) -> Rank:
        """Rank by descending time to next use."""
        next_s = leaf.standing.next_s
        return (EvictionClass.TAIL, -next_s) if next_s is not None else (EvictionClass.RETIRED, -math.inf)


class BeladyCostPolicy(CostPolicy):
    """``cost`` on true next uses: what perfect prediction would give it."""

    name = "belady-cost"
    guarded = False
