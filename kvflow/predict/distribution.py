"""A distribution of durations: what a duration model answers with."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from kvflow.predict.histogram import BINS, EDGES_S, LONGEST_S, PRIOR, at_position, partial_means, position, tails

MAX_CANDIDATES = 64
_SEEN_SHARE = 1e-6


class Durations:
    """What is known about one tool's durations, as of the moment it was asked for. Immutable, and cheap to ask.

    Within the observed range this is the blended histogram. Beyond all observations it is a Pareto tail with α = 2,
    whose mean excess is the time already waited: InferCept's estimate (arXiv 2402.01869, section 4.3).

    Attributes:
        weight: decayed number of observations of the narrowest key that has any: workflow, verb, tool, or all tools.
        total_weight: decayed number of observations of all tools.
        shares: probability of every bin.
        assumed: the part of it that comes from the prior.
    """

    __slots__ = ("_distribution", "_longest_s", "_means", "_tail", "assumed", "shares", "total_weight", "weight")

    def __init__(self, shares: Sequence[float], assumed: float, *, weight: float, total_weight: float) -> None:
        """Take over the probability of every bin, of which ``assumed`` comes from the prior."""
        self.weight = weight
        self.total_weight = total_weight
        self.assumed = assumed
        self.shares = array("d", shares)
        self._tail = tails(shares)
        self._means: Sequence[float] | None = None
        self._distribution: Sequence[tuple[float, float]] | None = None
        self._longest_s = LONGEST_S
        for index in range(BINS - 1, -1, -1):
            if shares[index] - assumed * PRIOR[index] > _SEEN_SHARE:
                self._longest_s = EDGES_S[index + 1]
                break

    def longer_than(self, seconds: float, *, elapsed_s: float = 0.0) -> float:
        """Return the probability that a call takes longer than ``seconds``, given that it took ``elapsed_s`` already.

        Raises:
            ValueError: one of them is not a number.
        """
        _check(seconds, elapsed_s)
        if seconds <= elapsed_s or seconds <= 0:
            return 1.0
        if self._beyond_all(elapsed_s):
            return (elapsed_s / seconds) ** 2
        return min(1.0, self._beyond(seconds) / self._beyond(elapsed_s))

    def residual_s(self, elapsed_s: float) -> float:
        """Return how many more seconds a call takes on average that took ``elapsed_s`` already.

        Beyond all observations as long as it took already.

        Raises:
            ValueError: ``elapsed_s`` is not a number.
        """
        _check(elapsed_s)
        elapsed_s = max(0.0, elapsed_s)
        if self._beyond_all(elapsed_s):
            return elapsed_s
        if self._means is None:
            self._means = partial_means(self._tail)
        where = position(elapsed_s)
        index = int(where)
        beyond = self._beyond(elapsed_s)
        high_s = EDGES_S[index + 1]
        low_s = max(elapsed_s, EDGES_S[index])
        mass = beyond - self._tail[index + 1]
        mean_s = (high_s - low_s) / math.log(high_s / low_s) if high_s > low_s * (1 + 1e-9) else high_s
        return max(0.0, (mass * mean_s + self._means[index + 1]) / beyond - elapsed_s)

    def quantile_s(self, q: float, *, elapsed_s: float = 0.0) -> float:
        """Return the duration (from the start of the call) that a share ``q`` of the calls does not exceed.

        Raises:
            ValueError: ``q`` is not between 0 and 1, or ``elapsed_s`` is not a number.
        """
        _check(elapsed_s)
        if not 0 <= q <= 1:
            raise ValueError(f"q must be between 0 and 1, got {q}")
        if self._beyond_all(elapsed_s):
            reached_s = elapsed_s / math.sqrt(1 - q) if q < 1 else math.inf
            return max(elapsed_s, min(reached_s, LONGEST_S))
        wanted = (1 - q) * self._beyond(elapsed_s)
        index = max(1, min(bisect_left(self._tail, -wanted, key=float.__neg__), BINS))
        above, below = self._tail[index - 1], self._tail[index]
        share = (above - wanted) / (above - below) if above > below else 1.0
        return max(elapsed_s, at_position(index - 1 + min(1.0, max(0.0, share))))

    def still_running(self, moments_s: Sequence[float], *, elapsed_s: float = 0.0) -> list[float]:
        """Return, for several moments from now, the probability that a call runs on beyond each; as ``longer_than``."""
        _check(elapsed_s)
        if self._beyond_all(elapsed_s):
            return [(elapsed_s / (elapsed_s + moment_s)) ** 2 if moment_s > 0 else 1.0 for moment_s in moments_s]
        beyond, whole = self._beyond, self._beyond(elapsed_s)
        return [min(1.0, beyond(elapsed_s + moment_s) / whole) for moment_s in moments_s]

    def candidates(self) -> Sequence[float]:
        """Return the distinct durations seen, ascending: upper edges of their bins, at most 64.

        Before anything was seen, those that the prior takes for likely.
        """
        return [seconds for seconds, _ in self.distribution()]

    def distribution(self) -> Sequence[tuple[float, float]]:
        """Return the candidates, each with the probability that a call takes no longer."""
        if self._distribution is None:
            self._distribution = tuple(self._distinct())
        return self._distribution

    def _distinct(self) -> Iterator[tuple[float, float]]:
        tail = self._tail
        seen = [i for i in range(BINS) if self.shares[i] - self.assumed * PRIOR[i] > _SEEN_SHARE]
        filled = seen or [i for i, share in enumerate(self.shares) if share > 1 / MAX_CANDIDATES]
        step = 1 / MAX_CANDIDATES if len(filled) > MAX_CANDIDATES else 0.0
        at = 1.0
        for i in filled:
            if at - tail[i + 1] > step or i == filled[-1]:
                at = tail[i + 1]
                yield EDGES_S[i + 1], 1 - at

    def _beyond_all(self, elapsed_s: float) -> bool:
        return elapsed_s >= self._longest_s or self._beyond(elapsed_s) <= 0

    def _beyond(self, seconds: float) -> float:
        where = position(seconds)
        index = int(where)
        if index >= BINS:
            return 0.0
        above = self._tail[index]
        return above - (where - index) * (above - self._tail[index + 1])


def _check(*values: float) -> None:
    if any(math.isnan(value) for value in values):
        raise ValueError("not a number")


NOTHING_SEEN = Durations(PRIOR, 1.0, weight=0.0, total_weight=0.0)
"""The prior."""
