"""Steps-to-execution: how many steps at least until each agent runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kvflow.graph.flow import Arrived, Flow, members
from kvflow.graph.nodes import Edge

if TYPE_CHECKING:
    from kvflow.graph.model import AgentStepGraph

_NOTHING: frozenset[Edge] = frozenset()


def steps_to_execution(
    graph: AgentStepGraph, active: Collection[str], satisfied: Collection[Edge] = _NOTHING
) -> dict[str, int | None]:
    """Return the earliest step at which every agent, and END, can run.

    Active agents are at 0. Any other agent is at the minimum over its predecessors plus 1 or, as ALL-join, at the
    maximum plus 1. Probabilities play no part: a branch counts as taken at its earliest step.

    Beyond the paper, for graphs with loops and runs that are under way:

    * The back edge of a natural loop (its target dominates its source, seen from START) does not belong to what an
      ALL-join waits for; it starts the join by itself.
    * A satisfied edge is left out of the maximum. If nothing else is waited for, the join is next, at 1.
    * A predecessor that can no longer run before the join does is left out as well. The join needs at least one
      other input.
    * A satisfied edge into any other agent means that this agent is next, at 1.

    Args:
        graph: the workflow's graph; not modified.
        active: agents that run now; START before the first one does, END after the last one.
        satisfied: edges whose source has finished while their target has not started since. Pairs that are no edges
            of the graph are ignored.

    Returns:
        Steps by agent, END last; None where no path leads.

    Raises:
        UnknownAgentError: an active agent is not in the graph.

    Source: KVFlow (arXiv 2507.07400) section 3. Minimum and maximum plus 1 are superior functions, so Knuth's
        generalization of Dijkstra's algorithm (1977) settles every node once; all weights being 1, its queue
        degenerates to layers.
    Cost: O(V + E), plus O(V) mask operations per ALL-join.
    """
    flow = graph.flow
    return _named(flow, layers(flow, flow.mask(active), flow.arrived(satisfied)))


def steps_until_next(
    graph: AgentStepGraph, active: Collection[str], satisfied: Collection[Edge] = _NOTHING
) -> dict[str, int | None]:
    """Return the steps until every agent's next execution that is not the current one.

    The same as ``steps_to_execution``, except that an active agent has the length of the shortest way back to it
    (None without a loop) in place of 0. Arguments, errors and cost are the same.
    """
    flow = graph.flow
    mask, arrived = flow.mask(active), flow.arrived(satisfied)
    steps = layers(flow, mask, arrived)
    again = [(node, _again(flow, node, steps, mask, arrived)) for node in members(mask)]
    for node, value in again:
        steps[node] = value
    return _named(flow, steps)


def layers(flow: Flow, active: int, arrived: Arrived) -> list[int | None]:
    """Return steps by node index; the core of ``steps_to_execution``."""
    steps: list[int | None] = [None] * len(flow.names)
    waiting: dict[int, int] = {}
    layer = list(members(active))
    following = [node for node in arrived if not active >> node & 1 and flow.is_due(node, active, arrived)]
    for node in layer:
        steps[node] = 0
    for node in following:
        steps[node] = 1
    step = 0
    while layer or following:
        step += 1
        for u in layer:
            for v in flow.successors[u]:
                if steps[v] is not None:
                    continue
                if flow.required[v] >> u & 1:
                    if v not in waiting:
                        waiting[v] = flow.waits_for(v, active, arrived)
                    waiting[v] &= ~(1 << u)
                    if waiting[v]:
                        continue
                steps[v] = step
                following.append(v)
        layer, following = following, []
    return steps


def _again(flow: Flow, node: int, steps: list[int | None], active: int, arrived: Arrived) -> int | None:
    """Apply the rule of ``steps_to_execution`` to an active node, as if it were not."""
    if flow.is_due(node, active, arrived):
        return 1
    required = flow.required[node]
    sources = flow.predecessors[node]
    ways = [value + 1 for u in members(sources & ~required) if (value := steps[u]) is not None]
    inputs = [steps[u] for u in members(flow.waits_for(node, active, arrived))]
    arrivals = [value for value in inputs if value is not None]
    if arrivals and len(arrivals) == len(inputs):
        ways.append(max(arrivals) + 1)
    return min(ways, default=None)


def _named(flow: Flow, steps: list[int | None]) -> dict[str, int | None]:
    return dict(zip(flow.names[1:], steps[1:], strict=True))
