"""When to load a context back before anybody asks for it, and how much of the link that may take."""

from __future__ import annotations

from kvflow.policy.costs import ServingCosts

_LEAD = 2.0
"""Loading begins this many times its own duration before the expected use, because predictions are not exact."""
_LEAST_LEAD_S = 0.5
"""And no later than this: what the schedulers know of the time can be a tick old."""
_NEXT_STEP_S = 10.0
"""What the next step needs is loaded this early: when a step ends is known least of all."""
_BURST_S = 0.5
"""Link time that can be saved up."""
_WASTE = 0.1
"""Share of what was loaded ahead that may leave the device unused."""
_MEMORY = 64
"""Loads that are remembered, about."""
_LEAST_TRUST = 1 / 64
_RESTORE = 1.25


class PrefetchPace:
    """Says when a context's next use is near, and how much may be loaded ahead.

    A share of the link's time is given to loads ahead. Each load that leaves the device unused, once more than a tenth
    have, halves that share, and each one used brings a quarter of what is left back: wrong predictions soon load next
    to nothing, and right ones are believed again.

    Sources: the lead is KVFlow's (arXiv 2507.07400, section 4.3: while its predecessor runs) in seconds; halving and
    slow restoring are LARU's for evictions.

    Args:
        costs: how long loads take.
        link_share: share of the link's time, at most.
    """

    def __init__(self, costs: ServingCosts, link_share: float) -> None:
        self.costs = costs
        self.trust = 1.0
        self._link_share = link_share
        self._left_s = _BURST_S
        self._now_s: float | None = None
        self._used_loads = self._wasted_loads = 0.0

    def near(self, next_s: float, steps: float | None, tokens: int) -> bool:
        """Whether a use is so near that its context should be loaded now.

        Args:
            next_s: seconds until the use.
            steps: steps-to-execution; None if the graph does not say.
            tokens: what there is to load.
        """
        least_s = _NEXT_STEP_S if steps is not None and 0 < steps <= 1 else _LEAST_LEAD_S
        return next_s <= max(least_s, _LEAD * self.costs.load_s(tokens))

    def tick(self, now_s: float) -> None:
        """Take over the time."""
        if self._now_s is not None:
            earned_s = max(0.0, now_s - self._now_s) * self._link_share * self.trust
            self._left_s = min(_BURST_S, self._left_s + earned_s)
        self._now_s = now_s

    @property
    def may_load(self) -> bool:
        """Whether any of the link's time is left."""
        return self._left_s > 0

    def loaded(self, tokens: int) -> None:
        """Take note of a load that begins."""
        self._left_s -= self.costs.load_s(tokens)

    def settle(self, used: float) -> None:
        """Learn how a load ended.

        Args:
            used: share of its tokens that some request has used.
        """
        if self._used_loads + self._wasted_loads >= _MEMORY:
            self._used_loads /= 2
            self._wasted_loads /= 2
        self._used_loads += used
        self._wasted_loads += 1 - used
        if used >= 1 - _WASTE:
            self.trust = min(1.0, self.trust * _RESTORE)
        elif self._wasted_loads > 1 + _WASTE * self._used_loads:
            self.trust = max(_LEAST_TRUST, self.trust / 2)
