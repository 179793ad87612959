"""Next uses where too many agents run beside each other, in too many combinations, to follow them all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from kvflow.graph.chain import NEGLIGIBLE, Outcomes, steady_ratio
from kvflow.graph.flow import Arrived, Flow, members

_MAX_FOLLOWED = 16384
"""Edges, after which all goes on as in the last two steps; a few milliseconds."""
_Share = tuple[int, int, float]
"""An edge and how likely it is taken."""


def running(flow: Flow, first: Outcomes) -> Iterator[Mapping[int, float]]:
    """Yield how likely each node starts at the first step, at the second, and so on, until nothing runs any more.

    Exact while one agent runs at a time. What comes from several agents is added up, as if only one of them could
    send it; a join starts as far as the last of its inputs has come, also where these are alternatives of one branch
    in a loop of its own, of which only one will.

    Args:
        flow: the graph version.
        first: the outcomes of the first step.

    Source: a Petri net whose tokens are a fluid; ours.
    Cost: per step, the edges out of what runs, until these are 16,384 or all goes on evenly.
    """
    _, sure, draws = first
    joins = _Joins(flow, first)
    edges: Iterable[_Share] = [(u, v, 1.0) for u, v in sure] + [(u, v, p) for u, options in draws for v, p in options]
    older: Mapping[int, float] = {}
    old: Mapping[int, float] = {}
    followed = 0
    while True:
        now = joins.start(edges)
        yield now
        if not now:
            return
        followed += sum(len(flow.successors[u]) for u in now)
        ratio = steady_ratio(older, now)
        if ratio is None and followed > _MAX_FOLLOWED and older:
            ratio = min(1.0, sum(now.values()) / sum(older.values()))
        if ratio is not None:
            break
        older, old = old, now
        edges = _out_of(flow, now)
    while True:
        old, now = now, {node: min(1.0, mass * ratio) for node, mass in old.items()}
        yield now


def _out_of(flow: Flow, masses: Mapping[int, float]) -> Iterator[_Share]:
    for u, mass in masses.items():
        for v in flow.always[u]:
            yield u, v, mass
        for v, share in flow.alternatives[u]:
            yield u, v, mass * share


class _Joins:
    """What has come to each ALL-join, by input, since it last started."""

    def __init__(self, flow: Flow, first: Outcomes) -> None:
        self._flow = flow
        self._held, sure, draws = first
        self._came: dict[int, dict[int, float]] = {}
        self._active = sum(1 << u for u in {u for u, _ in sure} | {u for u, _ in draws})
        for v in self._held:
            self._came[v] = self._awaited(v, self._held)

    def start(self, edges: Iterable[_Share]) -> dict[int, float]:
        """Deliver edges to their targets; return what starts, and how likely."""
        required = self._flow.required
        starts: dict[int, float] = defaultdict(float)
        for u, v, mass in edges:
            if required[v] >> u & 1:
                if v not in self._came:
                    self._came[v] = self._awaited(v, self._held)
                self._came[v][u] = min(1.0, self._came[v].get(u, 0.0) + mass)
            else:
                starts[v] += mass
        started = {v: least for v, inputs in self._came.items() if (least := min(inputs.values())) > 0}
        for v, least in started.items():
            starts[v] += least
        self._active = sum(1 << v for v in starts)
        self._held = {}
        for v, least in started.items():
            self._begin_again(v, least)
        return {v: min(1.0, mass) for v, mass in starts.items() if mass > NEGLIGIBLE}

    def _begin_again(self, join: int, started: float) -> None:
        """After a start what is left over goes on waiting, for what may come from now on."""
        left = {u: mass - started for u, mass in self._came.pop(join).items() if mass - started > NEGLIGIBLE}
        if left:
            self._came[join] = self._awaited(join, {}) | left

    def _awaited(self, join: int, arrived: Arrived) -> dict[int, float]:
        """Return what has come to a join, 0 for what has not; inputs that nothing that runs leads to are left out."""
        came = arrived.get(join, 0)
        waits = self._flow.waits_for(join, self._active, arrived)
        return dict.fromkeys(members(waits), 0.0) | dict.fromkeys(members(came), 1.0)
