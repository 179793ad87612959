"""Expected next use: how likely, and how soon on average, each agent runs again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from kvflow.graph.flow import Arrived, Flow, members
from kvflow.graph.nodes import Edge
from kvflow.graph.steps import steps_until_next

if TYPE_CHECKING:
    from kvflow.graph.model import AgentStepGraph

MAX_STATES = 256
"""More states than this are not worth exploring, which happens between two requests; the fallback is as good as the
paper."""
_MOVES_PER_STATE = 16
_NODES_PER_MOVE = 32
"""Looked at, for each join that waits, in about the time of a move, as are so many edges."""
_NEGLIGIBLE = 1e-9
_MEMO_ENTRIES = 256

State = tuple[int, tuple[tuple[int, int], ...]]
"""Mask of the active nodes; what has arrived at the joins that still wait, sorted."""
_Edge = tuple[int, int]
_Draw = tuple[int, Sequence[tuple[int, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextUse:
    """When an agent runs next.

    Attributes:
        probability: that it runs within the horizon.
        steps: the expected number of steps until it does, given that it does; None if it does not.
    """

    probability: float
    steps: float | None


NEVER = NextUse(probability=0.0, steps=None)


def expected_steps(
    graph: AgentStepGraph,
    active: Collection[str],
    satisfied: Collection[Edge] = frozenset(),
    horizon: int = 64,
    *,
    max_states: int = MAX_STATES,
) -> dict[str, NextUse]:
    """Return the next use of every agent, and of END.

    All agents take one step each at a time: every active agent finishes, starts its unconditional successors and,
    independently, one alternative of its branch or none. An ALL-join starts when nothing it waits for is missing
    (see ``steps_to_execution``) or when a back edge delivers; whatever had arrived there is consumed. END absorbs
    what reaches it; agents that run beside it go on. For an active agent the next use is the one after the current.

    Without branches this agrees with ``steps_until_next``. When more than ``max_states`` states can be reached, or
    it takes more than 16 moves per allowed state to follow them all (those of large graphs count for more), it *is*
    ``steps_until_next``, with probability 1 for what can be reached within the horizon.

    Args:
        graph: the workflow's graph; not modified.
        active: as in ``steps_to_execution``.
        satisfied: as in ``steps_to_execution``. Alternatives of one source among them are still to be drawn from,
            except a single one that leads into an ALL-join: that one was taken.
        horizon: steps to look ahead.
        max_states: limit of the exploration.

    Raises:
        UnknownAgentError: an active agent is not in the graph.

    Source: first-passage times of a Markov chain, its states the sets of active agents and of arrived inputs; ours.
    Cost: per agent, horizon times the moves between the states that are possible at one step, 16 ``max_states``
        moves for all agents at most; states are explored once. Results are remembered per graph version.
    """
    flow = graph.flow
    key = (flow.mask(active), tuple(sorted(flow.arrived(satisfied).items())), horizon, max_states)
    if key not in flow.memo:
        if len(flow.memo) >= _MEMO_ENTRIES:
            flow.memo.clear()
        flow.memo[key] = _next_uses(graph, active, satisfied, horizon, max_states)
    return dict(flow.memo[key])


def _next_uses(
    graph: AgentStepGraph, active: Collection[str], satisfied: Collection[Edge], horizon: int, max_states: int
) -> Mapping[str, NextUse]:
    flow = graph.flow
    chain = _Chain(flow, max_states)
    try:
        first = chain.first_moves(flow.mask(active), flow.arrived(satisfied))
        return {name: _first_passage(chain, first, flow.index[name], horizon) for name in flow.names[1:]}
    except _TooManyStatesError:
        steps = steps_until_next(graph, active, satisfied)
        return {name: _certain(value, horizon) for name, value in steps.items()}


def _certain(steps: int | None, horizon: int) -> NextUse:
    return NEVER if steps is None or steps > horizon else NextUse(probability=1.0, steps=float(steps))


def _first_passage(chain: _Chain, first: Mapping[State, float], target: int, horizon: int) -> NextUse:
    """Follow the probability mass until it has entered the target or can no longer do so."""
    probability = weighted = 0.0
    arriving = first
    for step in range(1, horizon + 1):
        left: dict[State, float] = {}
        for state, mass in arriving.items():
            if state[0] >> target & 1:
                probability += mass
                weighted += step * mass
            elif chain.reach[state] >> target & 1:
                left[state] = mass
        if sum(left.values()) < _NEGLIGIBLE:
            break
        arriving = defaultdict(float)
        for state, mass in left.items():
            for following, share in chain.moves(state).items():
                arriving[following] += mass * share
    if probability < _NEGLIGIBLE:
        return NEVER
    return NextUse(probability=min(1.0, probability), steps=weighted / probability)


class _TooManyStatesError(Exception):
    pass


class _Chain:
    """The states that can follow each other, explored as they are asked for.

    Attributes:
        reach: by state, the mask of the nodes that may still run or run already.
    """

    def __init__(self, flow: Flow, max_states: int) -> None:
        self.reach: dict[State, int] = {}
        self._flow = flow
        self._moves: dict[State, Mapping[State, float]] = {}
        self._max_states = max_states
        self._moves_left = max_states * _MOVES_PER_STATE

    def first_moves(self, active: int, arrived: Arrived) -> Mapping[State, float]:
        """Return the states after the first step: like ``moves``, with the branches in ``arrived`` still open."""
        flow = self._flow
        held: dict[int, int] = {}
        sure, draws = self._outcomes(active)
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
        return self._spread(held, sure, draws)

    def moves(self, state: State) -> Mapping[State, float]:
        """Return the states one step later, with their probabilities."""
        if state not in self._moves:
            if len(self._moves) >= self._max_states:
                raise _TooManyStatesError
            active, arrived = state
            self._moves[state] = self._spread(dict(arrived), *self._outcomes(active))
        moves = self._moves[state]
        self._spend(len(moves))
        return moves

    def _outcomes(self, active: int) -> tuple[list[_Edge], list[_Draw]]:
        """Return the edges active nodes certainly take, and the branches to draw from."""
        flow = self._flow
        sure = [(u, v) for u in members(active) for v in flow.always[u]]
        draws: list[_Draw] = [(u, flow.alternatives[u]) for u in members(active) if flow.alternatives[u]]
        return sure, draws

    def _spread(self, arrived: Arrived, sure: list[_Edge], draws: list[_Draw]) -> Mapping[State, float]:
        self._spend(math.prod(len(options) + 1 for _, options in draws))
        states: dict[State, float] = defaultdict(float)
        for taken in product(*map(_ways, draws)):
            probability = math.prod(share for _, share in taken)
            edges = [edge for edge, _ in taken if edge is not None]
            states[self._land(arrived, sure + edges)] += probability
        return states

    def _spend(self, moves: int) -> None:
        self._moves_left -= moves
        if self._moves_left < 0:
            raise _TooManyStatesError

    def _land(self, arrived: Arrived, edges: list[_Edge]) -> State:
        """Deliver edges to their targets and start what is due."""
        flow = self._flow
        self._spend(len(edges) // _NODES_PER_MOVE)
        inputs = dict(arrived)
        active = 0
        for u, v in edges:
            if flow.required[v] >> u & 1:
                inputs[v] = inputs.get(v, 0) | 1 << u
            else:
                active |= 1 << v
        self._spend(len(inputs) * ((len(inputs) + len(flow.names)) // _NODES_PER_MOVE))
        due = [v for v in inputs if flow.is_due(v, active, inputs)]
        active |= sum(1 << v for v in due if not active >> v & 1)
        state = active, tuple(sorted((v, mask) for v, mask in inputs.items() if not active >> v & 1))
        if state not in self.reach:
            self.reach[state] = flow.reachable(active | sum(1 << v for v, _ in state[1]))
        return state


def _ways(draw: _Draw) -> list[tuple[_Edge | None, float]]:
    """Return the alternatives of a branch that are possible, none of them included."""
    u, options = draw
    ways: list[tuple[_Edge | None, float]] = [((u, v), share) for v, share in options if share > 0]
    rest = 1 - math.fsum(share for _, share in ways)
    return [*ways, (None, rest)] if rest > _NEGLIGIBLE else ways
