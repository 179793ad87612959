"""How long tools take, learned from what was seen: by tool and verb, by tool, of all tools."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from kvflow.predict.histogram import (
    BINS,
    EDGES_S,
    LONGEST_S,
    PRIOR,
    Histogram,
    at_position,
    bin_of,
    partial_means,
    position,
    tails,
)

MAX_KEYS = 2048
"""Tools and verbs remembered; beyond it the one not seen for longest is forgotten. About 2 KB each."""
MAX_CANDIDATES = 64
_SHRINKAGE = 4.0
"""Observations of a key that weigh as much as everything known about its like."""
_MATERIAL = 1 / 32
"""A view is made anew when what it rests on has grown by this share, what it backs off to counting less."""
_MAX_NAME_CHARS = 128
_SEEN_SHARE = 1e-6


class Durations:
    """What is known about one tool's durations, as of the moment it was asked for. Immutable, and cheap to ask.

    Within the observed range this is the blended histogram. Beyond all observations it is a Pareto tail with α = 2,
    whose mean excess is the time already waited: InferCept's estimate (arXiv 2402.01869, section 4.3).

    Attributes:
        weight: decayed number of observations of the narrowest key that has any: tool and verb, tool, or all tools.
        total_weight: decayed number of observations of all tools.
    """

    __slots__ = ("_distribution", "_longest_s", "_means", "_observed", "_tail", "total_weight", "weight")

    def __init__(self, shares: list[float], observed: list[float], *, weight: float, total_weight: float) -> None:
        """Take over shares per bin, and the part of them that was observed rather than assumed."""
        self.weight = weight
        self.total_weight = total_weight
        self._tail = tails(shares)
        self._observed = observed
        self._means: list[float] | None = None
        self._distribution: Sequence[tuple[float, float]] | None = None
        last = next((i for i in range(BINS - 1, -1, -1) if observed[i] > _SEEN_SHARE), BINS - 1)
        self._longest_s = EDGES_S[last + 1]

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
        seen = [i for i, share in enumerate(self._observed) if share > _SEEN_SHARE]
        filled = seen or [i for i in range(BINS) if tail[i] - tail[i + 1] > 1 / MAX_CANDIDATES]
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


class DurationModel:
    """Learns durations per tool and verb.

    What is known of a key is shrunk towards what is known of its like: with ``n`` (decayed) observations its own
    histogram has the weight ``n / (n + 4)``, and the next wider one (verb, tool, all tools, prior) the rest. So there
    is no threshold, unlike Continuum's K = 100, and a verb never seen before is taken for an average call of its tool.

    The same class serves for anything that takes time and has a name with a sub-name, e.g. the steps of an agent of a
    workflow type, or the pauses between them.

    Source: backing off as in Continuum (arXiv 2511.02230, section 4), with linear shrinkage (the posterior mean of a
        Dirichlet process whose base is the wider key) in place of thresholds.
    Cost: an observation O(1); a view O(bins), remade only when an observation has changed it materially.
    """

    def __init__(self, *, max_keys: int = MAX_KEYS) -> None:
        self._root = _Key()
        self._keys: OrderedDict[tuple[str, str | None], _Key] = OrderedDict()
        self._max_keys = max_keys

    def __len__(self) -> int:
        return len(self._keys)

    def observe(self, tool: str, verb: str | None, seconds: float) -> None:
        """Learn from one call.

        What cannot be used is ignored, never an error: no finite duration of at least 0 s, a tool or verb of more than
        128 characters, no tool. An empty verb is none. More than 10^5 s count as 10^5 s.
        """
        verb = verb or None
        if not (0 <= seconds < math.inf) or not 0 < len(tool) <= _MAX_NAME_CHARS or len(verb or "") > _MAX_NAME_CHARS:
            return
        index = bin_of(seconds)
        self._root.histogram.add(index)
        if verb is not None:
            self._touch((tool, verb)).histogram.add(index)
        self._touch((tool, None)).histogram.add(index)

    def of(self, tool: str, verb: str | None = None) -> Durations:
        """Return what is known about the durations of a tool; it may be one that was never seen."""
        chain = [self._root]
        key = self._keys.get((tool, None))
        if key is not None:
            chain.append(key)
            leaf = self._keys.get((tool, verb)) if verb else None
            if leaf is not None:
                chain.append(leaf)
        return chain[-1].view_of(chain)

    def _touch(self, name: tuple[str, str | None]) -> _Key:
        key = self._keys.get(name)
        if key is None:
            if len(self._keys) >= self._max_keys:
                self._keys.popitem(last=False)
            key = self._keys[name] = _Key()
        else:
            self._keys.move_to_end(name)
        return key


class _Key:
    """A histogram, and the view made last of it and of what it backs off to."""

    __slots__ = ("_stamps", "_view", "histogram")

    def __init__(self) -> None:
        self.histogram = Histogram()
        self._view: Durations | None = None
        self._stamps: list[float] = []

    def view_of(self, chain: Sequence[_Key]) -> Durations:
        """Blend a chain that leads from all tools to this key, unless the view at hand is as good."""
        if self._view is None or self._is_stale(chain):
            self._view = _blend([key.histogram for key in chain])
            influence = 1.0
            self._stamps = []
            for histogram in (key.histogram for key in reversed(chain)):
                self._stamps.append(histogram.seen + _MATERIAL / influence * histogram.weight)
                influence *= _SHRINKAGE / (histogram.weight + _SHRINKAGE)
        return self._view

    def _is_stale(self, chain: Sequence[_Key]) -> bool:
        return len(self._stamps) != len(chain) or any(
            key.histogram.seen > stamp for key, stamp in zip(reversed(chain), self._stamps, strict=True)
        )


def _blend(chain: Sequence[Histogram]) -> Durations:
    """Shrink each histogram towards the one before it, and the first towards the prior."""
    observed = [0.0] * BINS
    assumed = 1.0
    for histogram in chain:
        own = histogram.weight / (histogram.weight + _SHRINKAGE)
        assumed *= 1 - own
        if histogram.total > 0:
            scale = own / histogram.total
            observed = [
                (1 - own) * wider + scale * count for wider, count in zip(observed, histogram.counts, strict=True)
            ]
    shares = [seen + assumed * prior for seen, prior in zip(observed, PRIOR, strict=True)]
    return Durations(shares, observed, weight=chain[-1].weight, total_weight=chain[0].weight)


def _check(*values: float) -> None:
    if any(math.isnan(value) for value in values):
        raise ValueError("not a number")
