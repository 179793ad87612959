"""The states of a workflow that can follow each other, as far as they are asked for."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from kvflow.graph.flow import Arrived, Flow, members

MAX_STATES = 256
"""More states than this are not worth exploring, which happens between two requests."""
_MOVES_PER_STATE = 4
_FOLLOWED_PER_STATE = 256
"""Following a move, to the next use of one agent, takes a fiftieth of the time of exploring it."""
_MOVES_PER_VISIT = 2
"""Followed in about the time it takes to look at a state."""
_NODES_PER_MOVE = 32
"""Looked at, for each join that waits, in about the time of a move, as are so many edges."""
NEGLIGIBLE = 1e-9
_STEADY = 1e-6
"""Of what is left: masses this close to a common factor fade evenly, and probabilities are as exact as that."""

_State = tuple[int, tuple[tuple[int, int], ...]]
"""Mask of the active nodes; what has arrived at the joins that still wait, sorted."""
Edge = tuple[int, int]
Draw = tuple[int, Sequence[tuple[int, float]]]
Outcomes = tuple[Arrived, list[Edge], list[Draw]]
"""What has arrived at the joins that wait; the edges that are taken for certain; the branches to draw from."""


class TooManyStatesError(Exception):
    """Exploring the states, or following their moves, would take too long."""


class Chain:
    """The states that can follow each other, by number, explored as they are asked for.

    Args:
        flow: the graph version.
        max_states: explore no more than these, nor more than 4 moves per state (those of large graphs count for
            more), nor more than can be followed once for every node; follow no more than 256 per state.

    Attributes:
        explored: moves explored so far.
        followed: moves followed so far.
    """

    def __init__(self, flow: Flow, max_states: int) -> None:
        self.explored = self.followed = 0
        self._flow = flow
        self._max_states = max_states
        self._max_followed = max_states * _FOLLOWED_PER_STATE
        self._max_explored = min(max_states * _MOVES_PER_STATE, self._max_followed // len(flow.names))
        self._numbers: dict[_State, int] = {}
        self._states: list[_State] = []
        self._reach: list[int] = []
        """By state, the mask of the nodes that may still run or run already."""
        self._moves: dict[int, Sequence[tuple[int, float]]] = {}

    def spread(self, arrived: Arrived, sure: list[Edge], draws: list[Draw]) -> Mapping[int, float]:
        """Return the states that one step's outcomes lead to, with their probabilities.

        Raises:
            TooManyStatesError: there are too many outcomes.
        """
        ways = [_ways(draw) for draw in draws]
        self._explore(math.prod(map(len, ways)))
        states: dict[int, float] = defaultdict(float)
        for taken in product(*ways):
            probability = math.prod(share for _, share in taken)
            edges = [edge for edge, _ in taken if edge is not None]
            states[self._land(arrived, sure + edges)] += probability
        return states

    def entering(self, first: Mapping[int, float], target: int) -> Iterator[float]:
        """Yield the probability that a node runs at the first step and not before, at the second, and so on.

        Ends when the node has run or can no longer do so. Once what is left is spread as it was two steps ago, it
        goes on like this (also where two groups of agents take turns), and nothing need be followed any more.

        Raises:
            TooManyStatesError: there are too many states, or moves to follow.
        """
        arriving = first
        entered, older, old = 0.0, {}, {}
        while True:
            before, entered = entered, 0.0
            left: dict[int, float] = {}
            for state, mass in arriving.items():
                if self._states[state][0] >> target & 1:
                    entered += mass
                elif self._reach[state] >> target & 1:
                    left[state] = mass
            yield entered
            if sum(left.values()) < NEGLIGIBLE:
                return
            ratio = steady_ratio(older, left)
            if ratio is not None:
                yield from _fading(before, entered, ratio)
            older, old = old, left
            arriving = self._follow(left)

    def _follow(self, masses: Mapping[int, float]) -> Mapping[int, float]:
        arriving: dict[int, float] = defaultdict(float)
        for state, mass in masses.items():
            moves = self._moves.get(state) or self._explored_moves(state)
            self.followed += len(moves) + _MOVES_PER_VISIT
            for following, share in moves:
                arriving[following] += mass * share
        if self.followed > self._max_followed:
            raise TooManyStatesError
        return arriving

    def _explored_moves(self, state: int) -> Sequence[tuple[int, float]]:
        if len(self._moves) >= self._max_states:
            raise TooManyStatesError
        active, arrived = self._states[state]
        moves = self.spread(dict(arrived), *outcomes(self._flow, active))
        self._moves[state] = tuple(moves.items())
        return self._moves[state]

    def _explore(self, moves: int) -> None:
        self.explored += moves
        if self.explored > self._max_explored:
            raise TooManyStatesError

    def _land(self, arrived: Arrived, edges: list[Edge]) -> int:
        """Deliver edges to their targets and start what is due."""
        flow = self._flow
        self._explore(len(edges) // _NODES_PER_MOVE)
        inputs = dict(arrived)
        active = 0
        for u, v in edges:
            if flow.required[v] >> u & 1:
                inputs[v] = inputs.get(v, 0) | 1 << u
            else:
                active |= 1 << v
        self._explore(len(inputs) * ((len(inputs) + len(flow.names)) // _NODES_PER_MOVE))
        due = [v for v in inputs if flow.is_due(v, active, inputs)]
        active |= sum(1 << v for v in due if not active >> v & 1)
        state = active, tuple(sorted((v, mask) for v, mask in inputs.items() if not active >> v & 1))
        if state not in self._numbers:
            self._numbers[state] = len(self._states)
            self._states.append(state)
            self._reach.append(flow.reachable(active | sum(1 << v for v, _ in state[1])))
        return self._numbers[state]


def outcomes(flow: Flow, active: int) -> tuple[list[Edge], list[Draw]]:
    """Return the edges active nodes certainly take, and the branches to draw from."""
    sure = [(u, v) for u in members(active) for v in flow.always[u]]
    draws: list[Draw] = [(u, flow.alternatives[u]) for u in members(active) if flow.alternatives[u]]
    return sure, draws


def first_outcomes(flow: Flow, active: int, arrived: Arrived) -> Outcomes:
    """Return the outcomes of the first step, with the branches in ``arrived`` still open."""
    held: dict[int, int] = {}
    sure, draws = outcomes(flow, active)
    sources = 0
    for v, mask in arrived.items():
        sources |= mask
        for u in members(mask):
            if v not in flow.always[u]:
                continue
            if flow.required[v] >> u & 1:
                held[v] = held.get(v, 0) | 1 << u
            else:
                sure.append((u, v))
    for u in members(sources):
        options = [(v, p) for v, p in flow.alternatives[u] if arrived.get(v, 0) >> u & 1]
        if len(options) == 1 and flow.required[options[0][0]] >> u & 1:
            held[options[0][0]] = held.get(options[0][0], 0) | 1 << u
        elif options:
            draws.append((u, options))
    return held, sure, draws


def steady_ratio(before: Mapping[int, float], now: Mapping[int, float]) -> float | None:
    """Return by what factor all masses have changed; None if it is not one."""
    if len(before) != len(now):
        return None
    total = sum(now.values())
    ratio = total / sum(before.values())
    slack = _STEADY * total
    same = all(abs(mass - ratio * before.get(key, 0.0)) <= slack for key, mass in now.items())
    return ratio if same else None


def _fading(before: float, now: float, ratio: float) -> Iterator[float]:
    while True:
        before, now = now, before * ratio
        yield now


def _ways(draw: Draw) -> list[tuple[Edge | None, float]]:
    """Return the alternatives of a branch that are possible, none of them included."""
    u, options = draw
    ways: list[tuple[Edge | None, float]] = [((u, v), share) for v, share in options if share > 0]
    rest = 1 - math.fsum(share for _, share in ways)
    return [*ways, (None, rest)] if rest > NEGLIGIBLE else ways
