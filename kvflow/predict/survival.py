"""Whether an agent's context will be used again, after so many uses."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict

from kvflow.predict.bounds import MAX_NAME_CHARS, touched

MAX_KEYS = 1024
"""Workflow types and agents remembered; the one not seen for longest is forgotten. About 2 KB each."""
COLD_START = 0.9
_SHRINKAGE = 4.0
"""Uses of a context that weigh as much as everything known about its like."""
_HALF_LIFE = 128
"""So many further contexts of the same key let one count half."""
_GROWTH = 2 ** (1 / _HALF_LIFE)
_RESCALE_AT = 1e100
_EXACT_TURNS = 16
_PER_OCTAVE = 4
_OCTAVES = 8
"""Turns up to 16 have a bin each, further ones a quarter of an octave (19 %), all beyond 4096 the last."""
_ENDLESS = 1 << 40
_LEAST = 1e-3


class Survival:
    """Learns how many times contexts are used.

    What is estimated is the hazard, the probability that the use just made was the last one, by number of uses. With
    few observations a bin's hazard is shrunk towards the agent's over all numbers of uses, that towards the hazard of
    the workflow type after as many uses, that towards the type's over all, and that towards ``1 - COLD_START``.
    Observations fade, so that the recent ones count.

    Source: the life table (actuarial) estimate of a hazard with censoring, Kaplan and Meier, JASA 1958; η is
        Continuum's (arXiv 2511.02230, section 4). Binning, shrinkage and forgetting are ours.
    Cost: a question O(1); an observation O(bins up to the number of uses), at most 49.
    """

    def __init__(self, *, max_keys: int = MAX_KEYS) -> None:
        self._keys: OrderedDict[tuple[str, str | None], _LifeTable] = OrderedDict()
        self._max_keys = max_keys

    def __len__(self) -> int:
        return len(self._keys)

    def observe(self, workflow_type: str, agent: str, turns: int, *, ended: bool) -> None:
        """Learn from a context that will not be heard of again.

        What says nothing is ignored: no turns, one of which nobody knows whether it was the last, or a name that
        is empty or longer than 128 characters.

        Args:
            workflow_type: the kind of program.
            agent: whose context.
            turns: how many times it was used.
            ended: it is not used again. False if it was only lost sight of: the context has lived that long, but
                perhaps longer.
        """
        named = 0 < len(workflow_type) <= MAX_NAME_CHARS and 0 < len(agent) <= MAX_NAME_CHARS
        if not named or turns < (1 if ended else 2):
            return
        for key in ((workflow_type, agent), (workflow_type, None)):
            touched(self._keys, key, self._max_keys, _LifeTable).add(turns, ended=ended)

    def again(self, workflow_type: str, agent: str, turns: int) -> float:
        """Return the probability that a context is used at least once more after ``turns`` uses, in [0.001, 0.999].

        A context that has not been used at all is treated like one used once.
        """
        index = _bin(turns)
        hazard = 1 - COLD_START
        for name in ((workflow_type, None), (workflow_type, agent)):
            table = self._keys.get(name)
            if table is not None:
                hazard = table.hazard(index, hazard)
        return min(1 - _LEAST, max(_LEAST, 1 - hazard))

    def eta(self, workflow_type: str) -> float:
        """Return Continuum's η, the correlation of turns done and turns left with its sign turned, from -1 to 1.

        1 for programs of equal length, 0 for those that may end after every turn with the same probability, negative
        when programs that have run for long go on for longer. 1 at the start, and shrunk towards it later.
        """
        table = self._keys.get((workflow_type, None))
        return 1.0 if table is None else table.eta


class _LifeTable:
    """Decayed counts, by number of uses, of contexts used so often and of those whose last use it was."""

    __slots__ = ("_all_stops", "_all_uses", "_moments", "_stops", "_unit", "_uses")

    def __init__(self) -> None:
        self._uses = [0.0] * BINS
        self._stops = [0.0] * BINS
        self._all_uses = self._all_stops = 0.0
        self._moments = [0.0] * 7
        self._unit = 1.0

    def add(self, turns: int, *, ended: bool) -> None:
        """Count a context; one that was only lost sight of says nothing about what came after its last known use."""
        unit = self._unit
        known = turns if ended else turns - 1
        for index in range(_bin(known) + 1 if known else 0):
            first, last = _FIRST_TURNS[index], _FIRST_TURNS[index + 1] - 1
            self._uses[index] += unit * (min(last, known) - first + 1)
        self._all_uses += unit * known
        if ended:
            self._stops[_bin(turns)] += unit
            self._all_stops += unit
            self._moments = [old + unit * new for old, new in zip(self._moments, _moments(turns), strict=True)]
        self._unit *= _GROWTH
        if self._unit > _RESCALE_AT:
            self._rescale()

    def hazard(self, index: int, wider: float) -> float:
        """Return the hazard after so many uses, shrunk towards that over all, and that towards a wider estimate."""
        unit = self._unit
        overall = (self._all_stops + _SHRINKAGE * unit * wider) / (self._all_uses + _SHRINKAGE * unit)
        return (self._stops[index] + _SHRINKAGE * unit * overall) / (self._uses[index] + _SHRINKAGE * unit)

    @property
    def eta(self) -> float:
        """Minus the correlation of turns done and left, shrunk towards 1 by the weight of four contexts."""
        contexts, pairs, done, left, done2, left2, both = self._moments
        spread = (pairs * done2 - done * done) * (pairs * left2 - left * left)
        if spread <= 1e-9 * (pairs * pairs) ** 2:
            return 1.0
        eta = max(-1.0, min(1.0, (done * left - pairs * both) / math.sqrt(spread)))
        weight = contexts / self._unit
        return (weight * eta + _SHRINKAGE) / (weight + _SHRINKAGE)

    def _rescale(self) -> None:
        unit, self._unit = self._unit, 1.0
        self._uses = [value / unit for value in self._uses]
        self._stops = [value / unit for value in self._stops]
        self._moments = [value / unit for value in self._moments]
        self._all_uses, self._all_stops = self._all_uses / unit, self._all_stops / unit


def _moments(n: int) -> tuple[float, ...]:
    """Return 1, and the sums over k = 1..n turns done, n - k left, of 1, k, n - k, k², (n - k)², k (n - k)."""
    done, left = n * (n + 1) / 2, n * (n - 1) / 2
    done2, left2 = done * (2 * n + 1) / 3, left * (2 * n - 1) / 3
    return 1.0, float(n), done, left, done2, left2, n * done - done2


def _first_turns() -> tuple[int, ...]:
    """Return the first number of turns of every bin, and a bound that none reaches."""
    exact = range(1, _EXACT_TURNS + 1)
    wide = (round(_EXACT_TURNS * 2 ** (i / _PER_OCTAVE)) + 1 for i in range(_OCTAVES * _PER_OCTAVE + 1))
    return (*exact, *wide, _ENDLESS)


_FIRST_TURNS = _first_turns()
BINS = len(_FIRST_TURNS) - 1


def _bin(turns: int) -> int:
    return max(0, bisect_right(_FIRST_TURNS, min(turns, _ENDLESS - 1)) - 1)
