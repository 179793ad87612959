"""Durations as decayed counts in log-spaced bins: what a duration model stores per tool."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise

SHORTEST_S = 1e-3
"""Below this all durations are alike."""
LONGEST_S = 1e5
"""Longer ones count as this long (a bit more than a day)."""
_PER_DECADE = 12
BINS = 8 * _PER_DECADE
"""A bin is a factor of 10^(1/12) = 1.21 wide, within which a duration is taken to be log-uniform."""
EDGES_S = tuple(SHORTEST_S * 10 ** (i / _PER_DECADE) for i in range(BINS + 1))

_HALF_LIFE = 256
"""So many further observations of the same key let one count half: a P99 is still seen, a drift is followed."""
_GROWTH = 2 ** (1 / _HALF_LIFE)
_RESCALE_AT = 1e100
_BIN_MEANS_S = tuple((high - low) / math.log(high / low) for low, high in pairwise(EDGES_S))

PRIOR_MEDIAN_S = 1.0
PRIOR_SIGMA = 2.0


def position(seconds: float) -> float:
    """Return where a duration lies among the edges, from 0 to ``BINS``: whole part the bin, fraction within it."""
    if seconds <= SHORTEST_S:
        return 0.0
    return min((math.log10(seconds) + 3) * _PER_DECADE, float(BINS))


def at_position(where: float) -> float:
    """Return the duration at a position: the inverse of :func:`position`."""
    return 10 ** (where / _PER_DECADE - 3)


def bin_of(seconds: float) -> int:
    """Return the bin a duration falls into."""
    return min(int(position(seconds)), BINS - 1)


def _lognormal_shares(median_s: float, sigma: float) -> tuple[float, ...]:
    """Return the bins' shares of a lognormal distribution, what lies outside added to the ends."""
    below = [0.5 * math.erfc(-math.log(edge / median_s) / (sigma * math.sqrt(2))) for edge in EDGES_S]
    below[0], below[-1] = 0.0, 1.0
    return tuple(high - low for low, high in pairwise(below))


PRIOR = _lognormal_shares(PRIOR_MEDIAN_S, PRIOR_SIGMA)
"""What is believed before anything was seen: median 1 s like Continuum's Exp(1), but with the tail tools have.

An exponential tail calls a tool that runs for 10 s due within one more second; measured tools of one kind span three
and more decades (90 % of this prior lies between 0.04 and 27 s, 1 % beyond 105 s).
"""


class Histogram:
    """Decayed counts of one key.

    Old observations are not made smaller, new ones are made larger (forward decay), so that an observation costs O(1).

    Source: Cormode, Shkapenyuk, Srivastava, Xu, "Forward Decay", ICDE 2009, section 3.
    """

    __slots__ = ("counts", "seen", "total", "unit")

    def __init__(self) -> None:
        self.counts = array("d", [0.0]) * BINS
        self.total = 0.0
        self.unit = 1.0
        self.seen = 0

    @property
    def weight(self) -> float:
        """Decayed number of observations; the latest counts 1, and it never exceeds 1.44 half-lives (370)."""
        return self.total / self.unit * _GROWTH

    def add(self, index: int) -> None:
        """Count one observation in a bin. Cost: O(1), now and then O(bins)."""
        self.counts[index] += self.unit
        self.total += self.unit
        self.unit *= _GROWTH
        self.seen += 1
        if self.unit > _RESCALE_AT:
            self.counts = array("d", [count / self.unit for count in self.counts])
            self.total /= self.unit
            self.unit = 1.0


def tails(shares: Sequence[float]) -> array[float]:
    """Return P(D > edge) for every edge, the first being 1 and the last 0."""
    beyond = array("d", accumulate(reversed(shares), initial=0.0))
    beyond.reverse()
    beyond[0] = 1.0
    return beyond


def partial_means(tail: Sequence[float]) -> array[float]:
    """Return E[D; D > edge] in seconds for every edge."""
    pieces = [(low - high) * mean for (low, high), mean in zip(pairwise(tail), _BIN_MEANS_S, strict=True)]
    beyond = array("d", accumulate(reversed(pieces), initial=0.0))
    beyond.reverse()
    return beyond
