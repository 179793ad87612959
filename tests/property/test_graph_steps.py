"""Steps-to-execution and expected next use against slow, literal readings of their definitions."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow.graph import END, START, AgentStepGraph, Join, expected_steps, steps_to_execution, steps_until_next

AGENTS = ("a", "b", "c", "d", "e", "f")


@st.composite
def graphs(draw: st.DrawFn, *, agents: int = 6, branches: bool = False) -> AgentStepGraph:
    """Any graph: loops, joins, deadlocks and unreachable agents included."""
    names = AGENTS[: draw(st.integers(1, agents))]
    graph = AgentStepGraph()
    for name in names:
        graph.agent(name, join=draw(st.sampled_from(Join)))
    pairs = st.tuples(st.sampled_from((START, *names)), st.sampled_from((*names, END)))
    for source, target in draw(st.lists(pairs, unique=True, min_size=len(names), max_size=3 * len(names))):
        graph.edge(source, target)
    if branches:
        for source in (START, *names):
            targets = draw(st.lists(st.sampled_from(graph.successors(source) or (END,)), unique=True, max_size=2))
            for target in set(targets) & set(graph.successors(source)):
                graph.edge(source, target, probability=draw(st.sampled_from((0.2, 0.5))))
    return graph


@st.composite
def positions(draw: st.DrawFn, *, agents: int = 6) -> tuple[AgentStepGraph, set[str], set[tuple[str, str]]]:
    graph = draw(graphs(agents=agents))
    active = draw(st.sets(st.sampled_from((START, *graph.agents)), max_size=3))
    satisfied = draw(st.sets(st.sampled_from(graph.edges), max_size=3))
    return graph, active, satisfied


class Definition:
    """The words of the docstrings, as directly as they can be written down."""

    def __init__(self, graph: AgentStepGraph) -> None:
        self.graph = graph
        self.arrows = graph.digraph()
        if not graph.predecessors(END):
            self.arrows.add_edges_from((name, END) for name in graph.agents if not graph.successors(name))
        self.inputs = {
            v: {u for u in self.arrows.pred[v] if not self.dominates(v, u)} if graph.join(v) is Join.ALL else set()
            for v in self.arrows
        }

    def dominates(self, v: str, u: str) -> bool:
        if u in (v, START) or not nx.has_path(self.arrows, START, u):
            return u == v
        return u not in nx.descendants(self.arrows.subgraph(set(self.arrows) - {v}), START)

    def waits_for(self, v: str, active: set[str], satisfied: set[tuple[str, str]]) -> set[str]:
        way = nx.DiGraph((s, t) for s, t in self.arrows.edges if t != v)
        way.add_nodes_from(self.arrows)
        sources = active | {t for _, t in satisfied if t != v}
        alive = sources.union(*(nx.descendants(way, source) for source in sources))
        return {u for u in self.inputs[v] & alive if (u, v) not in satisfied}

    def due(self, v: str, active: set[str], satisfied: set[tuple[str, str]]) -> bool:
        came = {u for u, t in satisfied if t == v}
        return bool(came - self.inputs[v]) or (bool(came) and not self.waits_for(v, active, satisfied))

    def value(self, v: str, steps: dict[str, int], active: set[str], satisfied: set[tuple[str, str]]) -> int | None:
        if self.due(v, active, satisfied):
            return 1
        ways = [steps[u] + 1 for u in set(self.arrows.pred[v]) - self.inputs[v] if u in steps]
        waits = self.waits_for(v, active, satisfied)
        if waits and waits <= steps.keys():
            ways.append(max(steps[u] for u in waits) + 1)
        return min(ways, default=None)

    def steps(self, active: set[str], satisfied: set[tuple[str, str]]) -> dict[str, int]:
        steps: dict[str, int] = {}
        while True:
            values = {v: 0 if v in active else self.value(v, steps, active, satisfied) for v in self.arrows}
            following = {v: value for v, value in values.items() if value is not None}
            if following == steps:
                return steps
            steps = following


@given(positions())
@settings(max_examples=200, deadline=None)
def test_steps_are_the_fixpoint_of_their_definition(position):
    graph, active, satisfied = position
    definition = Definition(graph)
    steps = definition.steps(active, satisfied)
    assert steps_to_execution(graph, active, satisfied) == {name: steps.get(name) for name in (*graph.agents, END)}
    again = {name: definition.value(name, steps, active, satisfied) for name in active}
    expected = {name: again.get(name, steps.get(name)) for name in (*graph.agents, END)}
    assert steps_until_next(graph, active, satisfied) == expected


@given(graphs())
def test_from_start_on_a_dag_steps_are_the_papers(graph):
    arrows = graph.digraph()
    arrows.remove_edges_from([(u, v) for u, v in graph.edges if u >= v and u != START and v != END])
    dag = AgentStepGraph()
    for name in graph.agents:
        dag.agent(name, join=graph.join(name))
    for source, target in arrows.edges:
        dag.edge(source, target)
    steps: dict[str, float] = {START: 0}
    for name in sorted(dag.agents):
        before = [steps[u] for u in dag.predecessors(name) if u in steps]
        if before:
            steps[name] = (max if dag.join(name) is Join.ALL else min)(before) + 1
    found = steps_to_execution(dag, {START})
    assert {name: found[name] for name in dag.agents} == {name: steps.get(name) for name in dag.agents}


@given(positions())
@settings(deadline=None)
def test_without_branches_the_expected_next_use_is_certain_and_agrees_with_the_steps(position):
    graph, active, satisfied = position
    steps = steps_until_next(graph, active, satisfied)
    found = expected_steps(graph, active, satisfied)
    assert {name: use.steps for name, use in found.items()} == steps
    assert all(use.probability == (0.0 if use.steps is None else 1.0) for use in found.values())


def enumerate_worlds(graph: AgentStepGraph, active: set[str], horizon: int) -> dict[str, tuple[float, float]]:
    """Play all outcomes at once, remembering in each world who has run; ends in (probability, steps) by agent."""
    definition = Definition(graph)
    branch = {
        u: [v for v in definition.arrows.succ[u] if definition.arrows.edges[u, v].get("probability") is not None]
        for u in definition.arrows
    }
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    worlds = {(frozenset(active), frozenset(), frozenset()): 1.0}
    for step in range(1, horizon + 1):
        following: dict = defaultdict(float)
        for (running, waiting, ran), mass in worlds.items():
            always = {(u, v) for u in running for v in definition.arrows.succ[u] if v not in branch[u]}
            draws = [[(u, v) for v in branch[u]] + [None] for u in sorted(running) if branch[u]]
            for taken in product(*draws):
                share = mass
                for options, edge in zip(draws, taken, strict=True):
                    chances = [graph.probability(*option) or 0.0 for option in options if option is not None]
                    share *= (1 - sum(chances)) if edge is None else (graph.probability(*edge) or 0.0)
                edges = always | {edge for edge in taken if edge is not None}
                started = {v for u, v in edges if u not in definition.inputs[v]}
                waits = waiting | {(u, v) for u, v in edges if u in definition.inputs[v]}
                started |= {v for _, v in waits if definition.due(v, started, set(waits))}
                left = frozenset((u, v) for u, v in waits if v not in started)
                for name in started - ran:
                    totals[name][0] += share
                    totals[name][1] += share * step
                following[frozenset(started), left, ran | started] += share
        worlds = {world: mass for world, mass in following.items() if mass > 0}
    return {name: (p, weighted / p) for name, (p, weighted) in totals.items() if p > 0}


@given(graphs(agents=4, branches=True), st.data())
@settings(max_examples=100, deadline=None)
def test_expected_next_use_is_what_playing_all_outcomes_gives(graph, data):
    active = data.draw(st.sets(st.sampled_from((START, *graph.agents)), min_size=1, max_size=2))
    worlds = enumerate_worlds(graph, active, horizon=6)
    for name, use in expected_steps(graph, active, horizon=6).items():
        probability, steps = worlds.get(name, (0.0, None))
        assert use.probability == pytest.approx(probability, abs=1e-6)
        assert use.steps == (None if steps is None else pytest.approx(steps, abs=1e-4))


@given(graphs(branches=True), st.data())
@settings(deadline=None)
def test_an_agent_that_has_just_finished_predicts_what_it_predicted_while_it_ran(graph, data):
    agent = data.draw(st.sampled_from(graph.agents))
    flow = graph.flow
    out = {(agent, flow.names[v]) for v in flow.successors[flow.index[agent]]}
    assert steps_until_next(graph, {agent}) == steps_until_next(graph, (), out)
    single = graph.alternatives(agent) if len(graph.alternatives(agent)) == 1 else ()
    if not any(graph.join(target) is Join.ALL for target in single):
        assert expected_steps(graph, {agent}) == expected_steps(graph, (), out)
