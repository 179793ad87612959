"""Learning a graph: what followed what in the runs seen so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvflow.graph.model import AgentStepGraph
from kvflow.graph.nodes import END, MAX_AGENTS, MAX_EDGES, MAX_NAME_CHARS, START, Edge, Join
from kvflow.graph.spans import Run, Visit
from kvflow.graph.steps import steps_to_execution

NEARLY_ALWAYS = 0.9
"""Share of the cases from which on something counts as always so."""
MAX_LIVE_RUNS = 4096
"""The oldest run is forgotten when more are under way."""
_FADED = 0.25
"""Decayed counts below this are dropped: a single observation lives for two half-lives."""
_SKETCHED_AGAIN = 1.25
"""A run that goes on is looked at again when it has so many times the steps it had then."""
_SAME_PROBABILITY = 0.02
"""A probability that moved by less than this does not make another graph."""
_AGENTS_A_RUN, _KNOWN_RUNS = 5, 4
"""A graph of so many agents is made anew after every run, one of more the more rarely, since all that is known of where
a run may go from each of them goes with it; but never later than when there are a fourth more runs."""


@dataclass(slots=True, kw_only=True)
class _AgentCount:
    """Decayed counts of an agent's steps (of START and END, too).

    Attributes:
        started: all of them.
        joined: those that followed several different agents.
        left: those of which it is known what followed.
        last: those that nothing followed.
    """

    started: float = 0.0
    joined: float = 0.0
    left: float = 0.0
    last: float = 0.0

    def fade(self, factor: float) -> float:
        """Multiply all counts, and return the largest."""
        self.started, self.joined = self.started * factor, self.joined * factor
        self.left, self.last = self.left * factor, self.last * factor
        return self.started


@dataclass(slots=True, kw_only=True)
class _EdgeCount:
    """Decayed counts of how often an edge was taken, and how often as the only one out of its source."""

    taken: float = 0.0
    alone: float = 0.0

    def fade(self, factor: float) -> float:
        """Multiply all counts, and return the largest."""
        self.taken, self.alone = self.taken * factor, self.alone * factor
        return self.taken


class TransitionLearner:
    """Learns the graph of one workflow type from runs whose graph nobody declared.

    A run teaches when it finishes or is forgotten, since only then it is clear which of its steps overlapped. Until a
    first one has, the longest that goes on is gone by, so that agents that take turns are known from the second turn.
    The counts are of order 1: what an agent leads to depends on the agent alone. What cannot be said in a graph is
    approximated: agents that follow independently of each other, each with some probability, become alternatives.

    Facts that cannot be used (reserved names, more agents than a graph may have) are ignored, never an error.

    Source: ours; a Markov chain of order 1 with exponential forgetting, split into fan-out, branch and join by which
        followers came together.

    Attributes:
        runs: how many have started.
    """

    def __init__(self, name: str = "workflow", *, half_life_runs: float = 20.0) -> None:
        """Start with nothing known.

        Args:
            name: the workflow type, and the name of the learned graph.
            half_life_runs: after this many further runs an observation counts half.
        """
        self.runs = 0
        self._name = name
        self._fade = 0.5 ** (1 / half_life_runs)
        self._live: dict[str, Run] = {}
        self._agents: dict[str, _AgentCount] = {}
        self._edges: dict[Edge, _EdgeCount] = {}
        self._graph: AgentStepGraph | None = None
        self._learned = self._built = 0
        self._sketch: AgentStepGraph | None = None
        self._sketched_steps = 0

    def start(self, workflow_id: str, agent: str, step_id: str | None = None) -> None:
        """Take note that an agent of a run starts a step, or goes on with the step of that id."""
        if agent in (START, END) or not 0 < len(agent) <= MAX_NAME_CHARS:
            return
        if workflow_id not in self._live:
            if len(self._live) >= MAX_LIVE_RUNS:
                self.forget(next(iter(self._live)))
            self._live[workflow_id] = Run()
            self.runs += 1
        run = self._live[workflow_id]
        run.start(agent, step_id)
        if not self._agents and len(run) >= max(2, _SKETCHED_AGAIN * self._sketched_steps):
            self._go_by(run)

    def end(self, workflow_id: str, agent: str, step_id: str | None = None) -> None:
        """Take note that an agent of a run has ended a step. Optional, but it tells parallel from sequential steps."""
        if workflow_id in self._live:
            self._live[workflow_id].end(agent, step_id)

    def finish(self, workflow_id: str) -> None:
        """Learn from a run that is complete: its last steps lead to END."""
        if workflow_id in self._live:
            self._learn(self._live.pop(workflow_id).visits(finished=True), finished=True)

    def forget(self, workflow_id: str) -> None:
        """Drop a run of which nothing more will be heard, but learn what it has shown until here."""
        if workflow_id in self._live:
            self._learn(self._live.pop(workflow_id).visits(finished=False), finished=False)

    def graph(self) -> AgentStepGraph | None:
        """Return the graph learned so far, None before the first run has shown anything.

        The same object is returned until the counts have changed materially; do not modify it.
        """
        patience = min(len(self._agents) // _AGENTS_A_RUN, self._built // _KNOWN_RUNS)
        if self._learned - self._built >= max(1, patience):
            self._built = self._learned
            latest = self._build()
            if self._graph is None or not _much_the_same(self._graph, latest):
                self._graph = latest
        return self._graph if self._graph is not None else self._sketch

    def _go_by(self, run: Run) -> None:
        """Take what one run has shown until here for the graph, as long as there is no other. Cost: O(steps)."""
        learner = TransitionLearner(self._name)
        learner._learn(run.visits(finished=False), finished=False)
        latest = learner.graph()
        if self._sketch is None or (latest is not None and not _much_the_same(self._sketch, latest)):
            self._sketch = latest
        self._sketched_steps = len(run)

    def _learn(self, visits: list[Visit], *, finished: bool) -> None:
        self._learned += 1
        self._agents = {key: count for key, count in self._agents.items() if count.fade(self._fade) >= _FADED}
        # Parallel steps that one step follows take an edge several times: it would outlive the agent it leads to.
        self._edges = {
            edge: count
            for edge, count in self._edges.items()
            if count.fade(self._fade) >= _FADED and self._agents.keys() >= {*edge}
        }
        for visit in visits:
            if visit.agent not in self._agents and len(self._agents) >= MAX_AGENTS:
                continue
            count = self._agents.setdefault(visit.agent, _AgentCount())
            count.started += 1
            count.joined += len(visit.sources) > 1
            count.left += finished or bool(visit.followers)
            count.last += finished and not visit.followers
        for visit in visits:
            for follower in sorted(visit.followers):
                self._learn_edge((visit.agent, follower), alone=len(visit.followers) == 1)

    def _learn_edge(self, edge: Edge, *, alone: bool) -> None:
        full = len(self._edges) >= MAX_EDGES and edge not in self._edges
        if full or not self._agents.keys() >= {*edge}:
            return
        count = self._edges.setdefault(edge, _EdgeCount())
        count.taken += 1
        count.alone += alone

    def _build(self) -> AgentStepGraph:
        """Build the part of the graph that START leads to; the rest has lost its connection by fading."""
        followers: dict[str, list[str]] = {}
        for source, target in self._edges:
            followers.setdefault(source, []).append(target)
        graph = AgentStepGraph(self._name)
        todo, known = [START], {START, END}
        while todo:
            source = todo.pop()
            for target, probability in self._branches(source, followers.get(source, [])):
                graph.edge(source, target, probability=probability)
                if target not in known:
                    known.add(target)
                    todo.append(target)
                    if self._agents[target].joined >= NEARLY_ALWAYS * self._agents[target].started:
                        graph.agent(target, join=Join.ALL)
        for agent, steps in steps_to_execution(graph, {START}).items():
            if steps is None and agent != END:
                graph.agent(agent, join=Join.ANY)  # joins learned from different runs can wait for each other
        return graph

    def _branches(self, source: str, targets: Iterable[str]) -> list[tuple[str, float | None]]:
        """Return what follows an agent: None for targets that always do, probabilities for the alternatives."""
        agent = self._agents[source]
        shares: dict[str, float | None] = {}
        for target in targets:
            edge = self._edges[source, target]
            others_taken = agent.left - agent.last - edge.alone
            only_others = others_taken - (edge.taken - edge.alone)
            parallel = only_others <= max(_FADED, (1 - NEARLY_ALWAYS) * others_taken)
            share = edge.taken / agent.left
            shares[target] = None if parallel and share >= NEARLY_ALWAYS else share
        total = max(1.0, sum(share or 0.0 for share in shares.values()))
        return [(target, None if share is None else share / total) for target, share in shares.items()]


def _much_the_same(one: AgentStepGraph, other: AgentStepGraph) -> bool:
    if set(one.agents) != set(other.agents) or set(one.edges) != set(other.edges):
        return False
    if any(one.join(agent) is not other.join(agent) for agent in one.agents):
        return False
    for source, target in one.edges:
        before, after = one.probability(source, target), other.probability(source, target)
        if (before is None) != (after is None) or abs((before or 0) - (after or 0)) >= _SAME_PROBABILITY:
            return False
    return True
