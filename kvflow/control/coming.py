"""Workflows of a known type that are still to come: what the next one will want."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from operator import itemgetter
from statistics import fmean

from kvflow.control.arrivals import Arrivals
from kvflow.control.forecast import MOST_AHEAD, Forecaster
from kvflow.control.graphs import GraphBook
from kvflow.graph import END, START, expected_steps, steps_to_execution
from kvflow.predict import ClaimPrediction, WorkflowUpdate

_LEAST_REVISIT_S = 0.25


@dataclass(slots=True)
class _Type:
    """What the live workflows of one type have in common.

    Attributes:
        live: how many there are.
        arrivals: when the next one is expected.
        last_seen_s: clock reading when the last of them ended.
        announced: what the engine was told of the one to come.
        revisit_s: when it is to be told again.
    """

    live: int = 0
    arrivals: Arrivals = field(default_factory=Arrivals)
    last_seen_s: float = 0.0
    announced: WorkflowUpdate | None = None
    revisit_s: float = math.inf


class Coming:
    """Announces the next workflow of every type that lives or has lived lately.

    Args:
        graphs: what is known of each type.
        forecaster: how long its steps take.
        clock: monotonic seconds.
        idle_s: a type is forgotten when none of its workflows has lived for so long.
    """

    def __init__(self, graphs: GraphBook, forecaster: Forecaster, clock: Callable[[], float], *, idle_s: float) -> None:
        self._graphs = graphs
        self._forecaster = forecaster
        self._clock = clock
        self._idle_s = idle_s
        self._types: dict[str, _Type] = {}
        self._untold: dict[str, WorkflowUpdate] = {}

    def started(self, workflow_type: str) -> None:
        """A workflow has started."""
        state = self._types.setdefault(workflow_type, _Type())
        state.arrivals.start(self._clock())
        state.live += 1
        self._predict(workflow_type, state)

    def stepped(self, workflow_type: str) -> None:
        """A live workflow has started another step."""
        state = self._types[workflow_type]
        if state.arrivals.step(state.live):
            self._predict(workflow_type, state)

    def ended(self, workflow_type: str) -> None:
        """A live workflow is over."""
        state = self._types[workflow_type]
        state.live -= 1
        state.last_seen_s = self._clock()

    def announce(self) -> list[WorkflowUpdate]:
        """What has changed since the last call, one for each type."""
        untold, self._untold = self._untold, {}
        return list(untold.values())

    def expire(self) -> list[WorkflowUpdate]:
        """What has changed because nothing happened; to be called a few times a second. Cost: O(types)."""
        now_s = self._clock()
        for workflow_type, state in list(self._types.items()):
            if not state.live and now_s - state.last_seen_s > self._idle_s:
                del self._types[workflow_type]
                if state.announced is not None:
                    self._untold[workflow_type] = replace(state.announced, claims=(), retired=True)
            elif now_s >= state.revisit_s:
                self._predict(workflow_type, state)
        return self.announce()

    def _before_s(self, workflow_type: str, agents: Mapping[str, int], count: int) -> float:
        """How long the steps take before an agent's that is so many steps from the start, with what lies between."""
        typical_s = [self._forecaster.typical_turn_s(workflow_type, agent) for agent in agents if agents[agent] < count]
        return (count - 1) * fmean(typical_s) if typical_s else 0.0

    def _predict(self, workflow_type: str, state: _Type) -> None:
        """Note what the next workflow will want, if that is known and something new."""
        state.revisit_s = math.inf  # should it fail, others have their turn
        known = self._graphs.find(workflow_type)
        now_s, left_steps = self._clock(), state.arrivals.left_steps
        if known is None or left_steps is None:
            return
        steps = steps_to_execution(known.graph, frozenset({START}))
        start_s = state.arrivals.next_s(now_s)
        state.revisit_s = max(now_s + _LEAST_REVISIT_S, start_s)
        known_steps = [(count, agent) for agent, count in steps.items() if count is not None and agent != END]
        agents = {agent: count for count, agent in sorted(nsmallest(MOST_AHEAD, known_steps), key=itemgetter(1))}
        likely = expected_steps(known.graph, frozenset({START}))
        claims = tuple(
            ClaimPrediction(
                agent=agent,
                steps=round(count + left_steps, 1),
                probability=round(likely[agent].probability, 3),
                due_s=round(start_s + self._before_s(workflow_type, agents, count), 1),
            )
            for agent, count in agents.items()
        )
        update = WorkflowUpdate(workflow_id=workflow_type, workflow_type=workflow_type, claims=claims, expected=True)
        if update != state.announced:
            state.announced = self._untold[workflow_type] = update
