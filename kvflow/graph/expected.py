"""Expected next use: how likely, and how soon on average, each agent runs again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvflow.graph.chain import MAX_STATES, NEGLIGIBLE, Chain, Outcomes, TooManyStatesError, first_outcomes
from kvflow.graph.estimate import running
from kvflow.graph.flow import Flow
from kvflow.graph.nodes import Edge
from kvflow.graph.steps import steps_until_next

if TYPE_CHECKING:
    from kvflow.graph.model import AgentStepGraph

_MEMO_ENTRIES = 256
_HORIZON = 64
_COMES_BACK = "comes back"
_UNKNOWN = 0.5
"""Probability of what is possible when nothing says how likely it is."""


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
    horizon: int | None = None,
    *,
    max_states: int = MAX_STATES,
) -> dict[str, NextUse]:
    """Return the next use of every agent, and of END.

    All agents take one step each at a time: every active agent finishes, starts its unconditional successors and,
    independently, one alternative of its branch or none. An ALL-join starts when nothing it waits for is missing
    (see ``steps_to_execution``) or when a back edge delivers; whatever had arrived there is consumed. END absorbs
    what reaches it; agents that run beside it go on. For an active agent the next use is the one after the current.

    Without branches this agrees with ``steps_until_next``. When more than ``max_states`` states can be reached,
    by more than 4 moves per allowed state (those of large graphs count for more), or when it takes too long to follow
    these for every agent, it is an estimate: as if only one of several agents led to the next, and one run of an agent
    had nothing to do with another. What the estimate has not met, though a path leads there, is as likely as not, at
    its earliest step.

    Args:
        graph: the workflow's graph; not modified.
        active: as in ``steps_to_execution``.
        satisfied: as in ``steps_to_execution``. Alternatives of one source among them are still to be drawn from,
            except a single one that leads into an ALL-join: that one was taken.
        horizon: steps to look ahead; by default 64, and in large graphs twice as many as there are agents.
        max_states: limit of the exploration.

    Raises:
        UnknownAgentError: an active agent is not in the graph.

    Source: first-passage times of a Markov chain, its states the sets of active agents and of arrived inputs; ours.
    Cost: every state is explored once, by 4 ``max_states`` moves at most. These are followed for each agent and step,
        until what is left fades evenly, 256 ``max_states`` of them at most. Results are remembered per graph version.
    """
    flow = graph.flow
    horizon = horizon or max(_HORIZON, 2 * len(flow.names))
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
    first = first_outcomes(flow, flow.mask(active), flow.arrived(satisfied))
    chain = Chain(flow, max_states)
    try:
        states = chain.spread(*first)
        return {name: _summed(chain.entering(states, flow.index[name]), horizon) for name in flow.names[1:]}
    except TooManyStatesError:
        estimates = _estimated(flow, first, horizon)
        steps = steps_until_next(graph, active, satisfied)
        return {name: _possible(estimates[flow.index[name]], value, horizon) for name, value in steps.items()}


def _summed(entering: Iterator[float], horizon: int) -> NextUse:
    probability = weighted = 0.0
    for step, mass in zip(range(1, horizon + 1), entering, strict=False):
        probability += mass
        weighted += step * mass
    if probability < NEGLIGIBLE:
        return NEVER
    return NextUse(probability=min(1.0, probability), steps=weighted / probability)


def _estimated(flow: Flow, first: Outcomes, horizon: int) -> list[NextUse]:
    """Sum up the estimates: what comes back may run at any step, whether or not it has before; the rest runs once."""
    if _COMES_BACK not in flow.memo:
        flow.memo[_COMES_BACK] = [flow.reachable(mask) >> v & 1 for v, mask in enumerate(flow.followers)]
    comes_back = flow.memo[_COMES_BACK]
    used = [0.0] * len(flow.names)
    weighted = [0.0] * len(flow.names)
    for step, masses in zip(range(1, horizon + 1), running(flow, first), strict=False):
        for node, mass in masses.items():
            missed = 1.0 - used[node]
            runs = mass * missed if comes_back[node] else min(mass, missed)
            weighted[node] += step * runs
            used[node] = min(1.0, used[node] + runs)
    return [
        NEVER if probability < NEGLIGIBLE else NextUse(probability=probability, steps=total / probability)
        for probability, total in zip(used, weighted, strict=True)
    ]


def _possible(estimate: NextUse, earliest: int | None, horizon: int) -> NextUse:
    """Where the estimate has not seen an agent run that can, all that is known is its earliest step."""
    if estimate is NEVER and earliest is not None and earliest <= horizon:
        return NextUse(probability=_UNKNOWN, steps=float(earliest))
    return estimate
