"""How long tools take, learned from what was seen: in this workflow, by verb, by tool, of all tools."""

from __future__ import annotations

import math
from collections import OrderedDict

from kvflow.predict.bounds import MAX_NAME_CHARS, touched
from kvflow.predict.distribution import NOTHING_SEEN, Durations
from kvflow.predict.histogram import Histogram, bin_of

__all__ = ["MAX_KEYS", "DurationModel", "Durations"]

MAX_KEYS = 2048
"""Tools and verbs remembered, and as many of single workflows; the one not seen for longest is forgotten. 4 KB each."""
_SHRINKAGE = 4.0
"""Observations of a tool or verb that weigh as much as everything known about its like."""
_OWN_SHRINKAGE = 16.0
"""The same for a workflow's own calls: workflows differ less than tools do."""
_MATERIAL = 1 / 32
"""A view is made anew when what it rests on has grown by this share, what it backs off to counting less."""
_MAX_ID_CHARS = 256

_Name = tuple[str | None, str, str | None]
"""Workflow, tool, verb; None for all of them."""


class DurationModel:
    """Learns durations per tool and verb, and how they differ in one workflow.

    What is known of a key is shrunk towards what is known of its like: with ``n`` (decayed) observations its own
    histogram has the weight ``n / (n + k)``, and the next wider one (workflow, verb, tool, all tools, prior) the rest;
    ``k`` is 4, and 16 for the calls of one workflow. A tool or verb that has seen nothing but what the next wider level
    has is left out, or the prior would count for less with every level that adds nothing. So there is no threshold,
    unlike Continuum's K = 100, and a verb never seen before is taken for an average call of its tool.

    The same class serves for anything that takes time and has a name with a sub-name, e.g. the pauses of an agent of
    a workflow type.

    Source: backing off as in Continuum (arXiv 2511.02230, section 4), with linear shrinkage (the posterior mean of a
        Dirichlet process whose base is the wider key) in place of thresholds; the workflow as a level is ours.
    Cost: an observation O(1); a view O(bins), remade only when an observation has changed it materially.
    """

    def __init__(self, *, max_keys: int = MAX_KEYS) -> None:
        """Start with nothing known.

        Args:
            max_keys: tools and verbs remembered, and as many of single workflows.
        """
        self._root = _Key(_SHRINKAGE)
        self._keys: OrderedDict[_Name, _Key] = OrderedDict()
        self._own: OrderedDict[_Name, _Key] = OrderedDict()
        self._max_keys = max_keys

    def __len__(self) -> int:
        return len(self._keys) + len(self._own)

    def observe(self, tool: str, verb: str | None, seconds: float, *, workflow: str | None = None) -> None:
        """Learn from one call.

        What cannot be used is ignored, never an error: no finite duration of at least 0 s, no tool, a tool or verb of
        more than 128 characters. An empty verb is none. More than 10^5 s count as 10^5 s.

        Args:
            tool: name of the tool.
            verb: its sub-command, or the program that a shell command starts.
            seconds: how long the call took.
            workflow: whose call it was; None (or more than 256 characters) learns for all workflows alike.
        """
        verb = verb or None
        if not (0 <= seconds < math.inf) or not 0 < len(tool) <= MAX_NAME_CHARS or len(verb or "") > MAX_NAME_CHARS:
            return
        index = bin_of(seconds)
        self._root.histogram.add(index)
        if workflow is not None and len(workflow) <= _MAX_ID_CHARS:
            self._touch(self._own, (workflow, tool, verb), _OWN_SHRINKAGE).histogram.add(index)
        if verb is not None:
            self._touch(self._keys, (None, tool, verb), _SHRINKAGE).histogram.add(index)
        self._touch(self._keys, (None, tool, None), _SHRINKAGE).histogram.add(index)

    def of(self, tool: str, verb: str | None = None, *, workflow: str | None = None) -> Durations:
        """Return what is known about the durations of a tool; it may be one that was never seen."""
        verb = verb or None
        chain = [self._root]
        for name in ((None, tool, None), (None, tool, verb)):
            key = self._keys.get(name)
            if key is not None and key.histogram.seen < chain[-1].histogram.seen:  # else the very same observations
                chain.append(key)
        own = self._own.get((workflow, tool, verb)) if workflow is not None else None
        return _view(chain if own is None else [*chain, own])

    def _touch(self, keys: OrderedDict[_Name, _Key], name: _Name, shrinkage: float) -> _Key:
        return touched(keys, name, self._max_keys, lambda: _Key(shrinkage))


class _Key:
    """A histogram, and the view made last of it and of what it backs off to.

    Attributes:
        stamps: by level from here to all tools, how many observations that level may have before the view is stale.
    """

    __slots__ = ("histogram", "shrinkage", "stamps", "view")

    def __init__(self, shrinkage: float) -> None:
        self.histogram = Histogram()
        self.shrinkage = shrinkage
        self.view: Durations | None = None
        self.stamps: list[float] = []

    @property
    def share(self) -> float:
        """Weight of its own histogram in its view."""
        return self.histogram.weight / (self.histogram.weight + self.shrinkage)


def _view(chain: list[_Key]) -> Durations:
    """Blend a chain of keys that leads from all tools to the narrowest, unless the view at hand is as good."""
    key = chain[-1]
    if key.view is None or _is_stale(chain, key.stamps):
        key.view = _blend(_view(chain[:-1]) if len(chain) > 1 else NOTHING_SEEN, key)
        influence, key.stamps = 1.0, []
        for level in reversed(chain):
            key.stamps.append(level.histogram.seen + _MATERIAL / influence * level.histogram.weight)
            influence *= 1 - level.share
    return key.view


def _is_stale(chain: list[_Key], stamps: list[float]) -> bool:
    return len(stamps) != len(chain) or any(
        key.histogram.seen > stamp for key, stamp in zip(reversed(chain), stamps, strict=True)
    )


def _blend(wider: Durations, key: _Key) -> Durations:
    """Shrink what was seen of a key towards a wider view."""
    histogram = key.histogram
    weight, own = histogram.weight, key.share
    if not weight:
        return wider
    rest, scale = 1 - own, own / histogram.total
    return Durations(
        [rest * share + scale * count for share, count in zip(wider.shares, histogram.counts, strict=True)],
        rest * wider.assumed,
        weight=weight,
        total_weight=wider.total_weight or weight,
    )
