"""The cursor: where one run of a workflow stands in its graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from kvflow.graph.expected import NextUse, expected_steps
from kvflow.graph.nodes import END, START, Edge
from kvflow.graph.steps import steps_to_execution

if TYPE_CHECKING:
    from kvflow.graph.model import AgentStepGraph

_ALL = 1 - 1e-6
"""What probabilities of a branch sum to, but for rounding, if one of its alternatives is taken always."""
_MOST_STEPS = 1024
"""Steps of one run that are told apart: so many that run side by side, and so many that have ended."""


class Cursor:
    """Follows one workflow from the starts and ends of its agents, and says what comes next.

    End facts are welcome but not needed: when an agent starts without being due, the running agents it follows from
    are taken to have finished. An agent that is due and only ends has run: one that asks no model has no request to
    tell of its start. Facts may be wrong, late or missing; the cursor never raises for them.

    The state is the running agents and the *satisfied* edges: those whose source has finished while their target
    has not started since. Starting an agent consumes the edges into it; an alternative so consumed closes its branch.
    A branch of which nothing may be taken is also closed when something that runs beside it has ended, and every branch
    when its source starts anew.

    Attributes:
        graph: the graph followed; it may grow, or be replaced by a better one, while the workflow runs.
        restarted: the run has gone on where it may have been over, as conversations do.
    """

    def __init__(self, graph: AgentStepGraph) -> None:
        self.graph = graph
        self.restarted = False
        self._running: dict[str, set[str]] = {START: set()}
        self._causes: dict[str, list[str]] = {}
        self._past_steps: dict[tuple[str, str], None] = {}
        self._satisfied: set[Edge] = set()
        self._flow = graph.flow
        self._steps: Mapping[str, int | None] | None = None
        self._next_use: Mapping[str, NextUse] | None = None
        self._reachable: int | None = None

    @property
    def active(self) -> frozenset[str]:
        """What runs now: agents, START before the first of them, END when finished."""
        self._refresh()
        return frozenset(self._running)

    @property
    def satisfied(self) -> frozenset[Edge]:
        """Edges whose source has finished while their target has not started since; of a branch, all alternatives."""
        return frozenset(self._satisfied)

    @property
    def finished(self) -> bool:
        """Whether the workflow has been declared finished."""
        return END in self._running

    @property
    def at_end(self) -> bool:
        """Whether nothing of the run is under way, and nothing can come, as far as the graph tells."""
        return not self.active - {END} and all(count is None for name, count in self.steps.items() if name != END)

    @property
    def steps(self) -> Mapping[str, int | None]:
        """``steps_to_execution`` from here; computed anew only after a change."""
        self._refresh()
        if self._steps is None:
            self._steps = MappingProxyType(steps_to_execution(self.graph, self._running, self._satisfied))
        return self._steps

    @property
    def next_use(self) -> Mapping[str, NextUse]:
        """``expected_steps`` from here; computed anew only after a change."""
        self._refresh()
        if self._next_use is None:
            self._next_use = MappingProxyType(expected_steps(self.graph, self._running, self._satisfied))
        return self._next_use

    def never(self, agent: str) -> bool:
        """Say whether an agent neither runs nor can run again from here.

        Joins are not waited for in this question, so that the answer is never too bold. False for an agent the
        graph lacks: nothing is known about it.
        """
        if agent not in self.graph:
            return False
        self._refresh()
        flow = self._flow
        if self._reachable is None:
            sources = flow.mask(self._running)
            for target in flow.arrived(self._satisfied):
                sources |= 1 << target
            self._reachable = flow.reachable(sources)
        return not self._reachable >> flow.index[agent] & 1

    def start(self, agent: str, step_id: str | None = None) -> None:
        """Take note that an agent starts a step, or goes on with one.

        Args:
            agent: who; one the graph lacks changes nothing.
            step_id: tells steps of one agent apart. A step that goes on changes nothing; a new one of a running
                agent runs beside it, or follows it if the graph has a loop. Without an id, a running agent goes on.
        """
        if agent not in self.graph:
            return
        self._refresh()
        steps = self._running.get(agent)
        if steps is not None and (step_id in steps or (step_id is None and not self._is_due(agent))):
            return
        causes = self._take_edges_into(agent)
        for ends in (START, END):  # a run may be seen first in the middle, and go on after its end
            self._running.pop(ends, None)
        if agent not in self._running:
            self._running[agent] = set()
            self._causes[agent] = causes
            self._satisfied.difference_update((agent, target) for target in self.graph.alternatives(agent))
            self._past_steps = {step: None for step in self._past_steps if step[0] != agent}
        if step_id is not None and sum(map(len, self._running.values())) < _MOST_STEPS:
            self._running[agent].add(step_id)
        self._forget_results()

    def end(self, agent: str, step_id: str | None = None) -> None:
        """Take note that an agent has ended a step.

        Args:
            agent: who; one the graph lacks, or that neither runs nor is due, changes nothing.
            step_id: the step; without it, all steps of the agent.
        """
        if agent not in self.graph:
            return
        self._refresh()
        if agent not in self._running and (agent, step_id) not in self._past_steps and self._is_due(agent):
            self.start(agent, step_id)
        steps = self._running.get(agent)
        if steps is None or (step_id is not None and steps and step_id not in steps):
            return
        if step_id is not None and len(steps) > 1:
            steps.remove(step_id)
            self._pass(agent, [step_id])
            return
        self._leave(agent)
        self._forget_results()

    def finish(self) -> None:
        """Take note that the workflow is over. A later start reopens it."""
        self._running = {END: set()}
        self._satisfied.clear()
        self._forget_results()

    def _is_due(self, agent: str) -> bool:
        flow = self._flow
        return flow.is_due(flow.index[agent], flow.mask(self._running), flow.arrived(self._satisfied))

    def _may_be_over(self) -> bool:
        """Whether nothing runs, and nothing has to come."""
        over = not self._satisfied or any(target == END for _, target in self._satisfied)
        return over and not self._running.keys() - {END}

    def _take_edges_into(self, agent: str) -> list[str]:
        """Consume the edges into an agent that starts; returns where they come from."""
        if not self._is_due(agent):
            self.restarted = self.restarted or self._may_be_over()
            for source in self.graph.predecessors(agent):
                if source in self._running:
                    self._leave(source)
        causes = [source for source, target in self._satisfied if target == agent]
        for source in causes:
            taken = {agent}
            if source in self._flow.index and agent in (branch := self.graph.alternatives(source)):
                taken.update(branch)
            self._satisfied.difference_update((source, target) for target in taken)
        return causes

    def _leave(self, agent: str) -> None:
        """Let an agent finish: every edge out of it becomes satisfied, of a branch all alternatives."""
        self._pass(agent, self._running.pop(agent))
        flow = self._flow
        for source in self._causes.pop(agent, ()):
            self._close(source)
        self._satisfied.update((agent, flow.names[v]) for v in flow.successors[flow.index[agent]])

    def _close(self, source: str) -> None:
        """What may follow a source, and has not when something that follows it has ended already, does not any more."""
        if source not in self._flow.index:
            return
        branch = self.graph.alternatives(source)
        if math.fsum(self.graph.probability(source, target) or 0.0 for target in branch) < _ALL:
            self._satisfied.difference_update((source, target) for target in branch)

    def _pass(self, agent: str, steps: Iterable[str]) -> None:
        """Remember steps as ended; of all agents' together the latest."""
        self._past_steps |= {(agent, step_id): None for step_id in steps}
        while len(self._past_steps) > _MOST_STEPS:
            del self._past_steps[next(iter(self._past_steps))]

    def _refresh(self) -> None:
        if self._flow is not self.graph.flow:
            self._flow = self.graph.flow
            self._running = {agent: steps for agent, steps in self._running.items() if agent in self._flow.index}
            self._forget_results()

    def _forget_results(self) -> None:
        self._steps = self._next_use = self._reachable = None
