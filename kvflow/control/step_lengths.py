"""How long it takes from one agent's step to another's."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import accumulate

from kvflow.graph import END, NextUse

_LEAST_WEIGHT = 0.01
"""Of all that is expected earlier; less says nothing."""
_SAME_STEP = 1e-6
"""Agents that are expected in the same step may differ by rounding."""


class StepLengths:
    """How long the steps are that may come before an agent's next one: those expected earlier, as likely as they are.

    Args:
        ahead: who may run next.
        turn_s: how long it is from an agent's step to the next one.
    """

    def __init__(self, ahead: Mapping[str, NextUse], turn_s: Callable[[str], float]) -> None:
        self._turn_s = turn_s
        in_order = sorted((use.steps, agent) for agent, use in ahead.items() if use.steps is not None and agent != END)
        self._steps = [steps for steps, _ in in_order]
        weights = [ahead[agent].probability for _, agent in in_order]
        lengths_s = (weight * turn_s(agent) for weight, (_, agent) in zip(weights, in_order, strict=True))
        self._weight = list(accumulate(weights, initial=0.0))
        self._weighted_s = list(accumulate(lengths_s, initial=0.0))

    def before_s(self, agent: str, steps: float) -> float:
        """Mean length; that of the agent's own if nobody is expected earlier. Cost: O(log agents).

        Args:
            agent: who runs next.
            steps: in so many steps.
        """
        earlier = bisect_left(self._steps, steps - _SAME_STEP)
        weight = self._weight[earlier]
        return self._weighted_s[earlier] / weight if weight > _LEAST_WEIGHT else self._turn_s(agent)
