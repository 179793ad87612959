"""How fast batches are computed here, against what the costs that were set say."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate

from kvflow.policy import ServingCosts

_WINDOW = 256
"""Batches that are remembered of each kind."""
_LEAST = 16
"""Batches before anything is told."""
_MOST = 1000.0
"""No factor is larger, or smaller than one by it: what was set is of another kind of machine then."""


class Speed:
    """Learns by what factor prefill batches and decode steps take longer than expected.

    One factor for each: how tokens, attention and a batch by itself relate is left as it was set. It is the median of
    the latest batches, each weighing what it is expected to take, so that one that has waited for something else (a
    kernel that is compiled, a pause) moves nothing. Prefill batches so short that they are mostly what any batch takes
    say nothing of tokens, and are left out.

    Source: ours; a weighted median of ratios.

    Args:
        costs: as they were set; what is made of the factors must not teach them.
    """

    def __init__(self, costs: ServingCosts) -> None:
        self._costs = replace(costs)
        self._prefill = _Ratios()
        self._decode = _Ratios()

    @property
    def prefill_factor(self) -> float | None:
        """For how long prefill batches take; None until it is known."""
        return self._prefill.median()

    @property
    def decode_factor(self) -> float | None:
        """For how long decode steps take; None until it is known."""
        return self._decode.median()

    def prefilled(self, spans: Iterable[tuple[int, int]], taken_s: float) -> None:
        """A prefill batch has been computed.

        Args:
            spans: positions from and to which each prompt was computed, in tokens.
            taken_s: how long it took.
        """
        costs = self._costs
        tokens_s = sum(costs.compute_s(start, end) for start, end in spans)
        if tokens_s >= costs.prefill_step_s:
            self._prefill.add(costs.prefill_step_s + tokens_s, taken_s)

    def decoded(self, sequences: int, context_tokens: int, taken_s: float) -> None:
        """A decode step has been made, of so many sequences with contexts of so many tokens together."""
        self._decode.add(self._costs.decode_s(1, sequences, context_tokens), taken_s)


class _Ratios:
    """Seconds taken over seconds expected, of the latest batches."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: deque[tuple[float, float]] = deque(maxlen=_WINDOW)

    def add(self, expected_s: float, taken_s: float) -> None:
        if expected_s > 0 and taken_s > 0:
            self._latest.append((taken_s / expected_s, expected_s))

    def median(self) -> float | None:
        """The median, weighted; None for too few. Cost: O(window)."""
        if len(self._latest) < _LEAST:
            return None
        ordered = sorted(self._latest)
        sums_s = list(accumulate(expected_s for _, expected_s in ordered))
        ratio, _ = ordered[bisect_left(sums_s, sums_s[-1] / 2)]
        return min(_MOST, max(1 / _MOST, ratio))
