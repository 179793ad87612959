"""How fast batches are computed here, against what the costs that were set say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kvflow.policy import ServingCosts

_LEAST_S = 1.0
"""Measured for so long before anything is told."""
_WINDOW_S = 60.0
"""Seconds of batches over which is averaged, older ones fading."""
_OUTLIER = 16.0
"""A batch that takes so many times as long as others has waited for something else: a kernel that is compiled, say."""
_MOST = 1000.0


class Speed:
    """Learns by what factor prefill batches and decode steps take longer than expected.

    One factor for each: how tokens, attention and a batch by itself relate is left as it was set.

    Source: ours; a ratio of fading sums, so that long batches weigh more.

    Args:
        costs: as they were set; what is made of the factors must not teach them.
    """

    def __init__(self, costs: ServingCosts) -> None:
        self._costs = replace(costs)
        self._prefill = _Ratio()
        self._decode = _Ratio()

    @property
    def prefill_factor(self) -> float | None:
        """For how long prefill batches take; None until it is known."""
        return self._prefill.factor

    @property
    def decode_factor(self) -> float | None:
        """For how long decode steps take; None until it is known."""
        return self._decode.factor

    def prefilled(self, spans: Iterable[tuple[int, int]], taken_s: float) -> None:
        """A prefill batch has been computed.

        Args:
            spans: positions from and to which each prompt was computed, in tokens.
            taken_s: how long it took.
        """
        costs = self._costs
        self._prefill.add(costs.prefill_step_s + sum(costs.compute_s(start, end) for start, end in spans), taken_s)

    def decoded(self, sequences: int, context_tokens: int, taken_s: float) -> None:
        """A decode step has been made, of so many sequences with contexts of so many tokens together."""
        self._decode.add(self._costs.decode_s(1, sequences, context_tokens), taken_s)


class _Ratio:
    """Seconds taken over seconds expected."""

    __slots__ = ("_expected_s", "_taken_s")

    def __init__(self) -> None:
        self._expected_s = self._taken_s = 0.0

    @property
    def factor(self) -> float | None:
        if self._taken_s < _LEAST_S:
            return None
        return min(_MOST, max(1 / _MOST, self._taken_s / self._expected_s))

    def add(self, expected_s: float, taken_s: float) -> None:
        if not (expected_s > 0 and taken_s > 0):
            return
        if self.factor is not None:
            taken_s = min(taken_s, _OUTLIER * self.factor * expected_s)
        self._expected_s += expected_s
        self._taken_s += taken_s
        if self._taken_s > _WINDOW_S:
            self._expected_s, self._taken_s = self._expected_s / 2, self._taken_s / 2
