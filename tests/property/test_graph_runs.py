"""Cursor, learner and documents on random graphs and random runs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow.errors import GraphError
from kvflow.graph import (
    END,
    START,
    AgentStepGraph,
    Cursor,
    Join,
    TransitionLearner,
    dumps_json,
    dumps_yaml,
    expected_steps,
    loads_json,
    loads_yaml,
    steps_to_execution,
    steps_until_next,
)

NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name not in (START, END))
LETTERS = st.sampled_from("abcde")
FACTS = st.tuples(st.sampled_from(("start", "end")), st.sampled_from("abcdx"), st.sampled_from((None, "1", "2", "3")))


@st.composite
def valid_graphs(draw: st.DrawFn, names: st.SearchStrategy[str] = LETTERS) -> AgentStepGraph:
    """A chain through all agents, and whatever else the graph can hold without becoming invalid."""
    agents = draw(st.lists(names, unique=True, min_size=1, max_size=5))
    graph = AgentStepGraph(draw(NAMES)).chain(START, *agents, END)
    extra = st.tuples(st.sampled_from(agents), st.sampled_from((*agents, END)))
    for source, target in draw(st.lists(extra, max_size=8)):
        graph.edge(source, target, probability=draw(st.none() | st.floats(0, 0.15)))
    for agent in agents:
        tokens = draw(st.none() | st.integers(0, 10**6))
        graph.agent(agent, fixed_prompt_tokens=tokens, join=draw(st.sampled_from(Join)))
    try:
        graph.validate()
    except GraphError:  # joins that wait for each other
        for agent in agents:
            graph.agent(agent, join=Join.ANY)
    return graph


@given(valid_graphs(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_run_that_keeps_to_its_graph_is_followed_whether_or_not_it_is_read(graph, data):
    cursor, unread = Cursor(graph), Cursor(graph)
    for count in range(12):
        running = sorted(cursor.active - {START})
        nexts = [name for name in graph.agents if cursor.steps[name] == 1]
        facts = [(Cursor.start, name) for name in nexts] + [(Cursor.end, name) for name in running]
        if not facts:
            break
        take, name = data.draw(st.sampled_from(facts))
        for one in (cursor, unread):
            take(one, name, str(count) if take is Cursor.start else None)
        assert (name in cursor.active) == (take is Cursor.start)
        assert all(cursor.steps[agent] == 0 for agent in cursor.active)
        assert cursor.steps == unread.steps == steps_to_execution(graph, cursor.active, cursor.satisfied)
        assert cursor.next_use == expected_steps(graph, cursor.active, cursor.satisfied)
        assert all(cursor.steps[agent] is None for agent in graph.agents if cursor.never(agent))


@given(valid_graphs(), st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_too_much_to_follow_can_be_estimated_wherever_a_run_stands(graph, data):
    cursor = Cursor(graph)
    for count in range(12):
        running = sorted(cursor.active - {START})
        facts = [(Cursor.start, name) for name in graph.agents] + [(Cursor.end, name) for name in running]
        take, name = data.draw(st.sampled_from(facts))
        take(cursor, name, str(count) if take is Cursor.start else None)
        estimate = expected_steps(graph, cursor.active, cursor.satisfied, max_states=1)
        for agent, earliest in steps_until_next(graph, cursor.active, cursor.satisfied).items():
            use = estimate[agent]
            assert 0 <= use.probability <= 1
            assert use.steps is None or (earliest is not None and use.steps >= 1), agent


@given(valid_graphs(), st.lists(FACTS, max_size=20))
@settings(deadline=None)
def test_no_fact_is_an_error_for_the_cursor(graph, facts):
    cursor = Cursor(graph)
    for event, agent, step_id in facts:
        getattr(cursor, event)(agent, step_id)
        if event == "start" and agent in graph:
            assert cursor.steps[agent] == 0
            before = cursor.active, cursor.satisfied
            if step_id is not None:
                cursor.start(agent, step_id)
                assert (cursor.active, cursor.satisfied) == before
    cursor.finish()
    assert all(cursor.never(agent) for agent in graph.agents)


@given(st.lists(st.lists(FACTS, max_size=15), min_size=1, max_size=5))
@settings(deadline=None)
def test_whatever_was_observed_the_learned_graph_is_valid(runs):
    learner = TransitionLearner()
    for number, facts in enumerate(runs):
        for event, agent, step_id in facts:
            getattr(learner, event)(str(number), agent, step_id)
        learner.finish(str(number))
    graph = learner.graph()
    seen = {agent for facts in runs for event, agent, _ in facts if event == "start"}
    assert (graph is None) == (not seen)
    if graph is not None:
        assert set(graph.agents) == seen
        graph.validate()


@given(valid_graphs())
@settings(deadline=None)
def test_following_a_learned_run_again_is_no_surprise(graph):
    learner, walk = TransitionLearner(), graph.agents * 2
    for agent in walk:
        learner.start("w", agent)
    learner.finish("w")
    learned = learner.graph()
    assert learned is not None
    cursor = Cursor(learned)
    for agent in walk:
        assert cursor.steps[agent] in (0, 1)
        cursor.start(agent)


@given(valid_graphs(NAMES))
@settings(deadline=None)
def test_documents_give_back_the_graph_they_were_made_of(graph):
    assert loads_json(dumps_json(graph)) == graph
    assert loads_yaml(dumps_yaml(graph)) == graph
