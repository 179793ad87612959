from __future__ import annotations

import doctest
import pickle
from itertools import islice, product

import pytest

from kvflow.errors import BadProbabilityError, GraphError, UnknownAgentError, UnreachableEndError
from kvflow.graph import END, MAX_AGENTS, MAX_EDGES, START, AgentStepGraph, Join, model


def review() -> AgentStepGraph:
    graph = AgentStepGraph("code_review").edge(START, "planner")
    graph.fan_out("planner", ["security", "style"], join="critic")
    return graph.edge("critic", "planner", probability=0.3).edge("critic", END, probability=0.7)


def test_the_example_in_the_docstring_works():
    assert doctest.testmod(model).failed == 0


def test_lookups_answer_in_the_order_of_declaration():
    graph = review().agent("critic", fixed_prompt_tokens=1200)
    assert graph.agents == ("planner", "security", "critic", "style")
    assert graph.successors("planner") == ("security", "style")
    assert graph.predecessors("critic") == ("security", "style")
    assert graph.alternatives("critic") == ("planner", END)
    assert graph.probability("critic", "planner") == 0.3
    assert graph.probability("planner", "style") is None
    assert (graph.join("critic"), graph.join("planner")) == (Join.ALL, Join.ANY)
    assert (graph.fixed_prompt_tokens("critic"), graph.fixed_prompt_tokens("style")) == (1200, None)
    assert "style" in graph
    assert START not in graph
    assert len(graph) == 4
    graph.validate()


def test_declaring_an_agent_again_keeps_what_is_not_said():
    graph = AgentStepGraph().agent("a", join="all", fixed_prompt_tokens=7).agent("a").edge(START, "a")
    assert (graph.join("a"), graph.fixed_prompt_tokens("a")) == (Join.ALL, 7)
    assert graph.agent("a", join=Join.ANY).join("a") is Join.ANY


def test_an_edge_declared_again_has_the_latest_probability():
    graph = AgentStepGraph().edge("a", "b", probability=0.5).edge("a", "b")
    assert graph.probability("a", "b") is None
    assert graph.edges == (("a", "b"),)


def test_equality_is_structural_and_ignores_the_order():
    one = AgentStepGraph().edge(START, "a").edge(START, "b")
    other = AgentStepGraph().edge(START, "b").edge(START, "a")
    assert one == other
    assert one != other.copy().agent("a", join="all")
    assert one != other.copy().edge("a", END)
    assert one != other.copy().edge(START, "a", probability=1)
    assert one != AgentStepGraph("other").edge(START, "a").edge(START, "b")
    assert one != "a graph"


def test_copies_and_pickles_are_independent_equals():
    graph = review()
    assert graph.flow is graph.flow
    for twin in (graph.copy(), pickle.loads(pickle.dumps(graph))):
        assert twin == graph
        assert twin.agents == graph.agents
        assert twin.edge("style", "lint") != graph


def test_every_change_makes_another_version_and_another_flow():
    graph = review()
    version, flow = graph.version, graph.flow
    graph.edge("style", "lint")
    assert graph.version > version
    assert graph.flow is not flow
    assert graph.digraph().has_edge("style", "lint")


def test_without_an_edge_to_end_the_last_agents_lead_there():
    graph = AgentStepGraph().edge(START, "a").fan_out("a", ["b", "c"])
    graph.validate()
    assert graph.edges == ((START, "a"), ("a", "b"), ("a", "c"))
    assert graph.flow.predecessors[graph.flow.index[END]] == graph.flow.mask({"b", "c"})


def test_fan_out_to_end_needs_no_join():
    graph = AgentStepGraph().fan_out(START, ["a", "b"], join=END)
    assert graph.predecessors(END) == ("a", "b")


@pytest.mark.parametrize("name", ["", START, END, "x" * 129, 5, None])
def test_invalid_names_are_refused(name):
    with pytest.raises(GraphError):
        AgentStepGraph().agent(name)


def test_unknown_agents_are_named_with_what_there_is():
    with pytest.raises(UnknownAgentError, match="'coder' is not in the graph; it has: critic, planner"):
        review().successors("coder")
    for lookup in (AgentStepGraph.predecessors, AgentStepGraph.join, AgentStepGraph.fixed_prompt_tokens):
        with pytest.raises(KeyError):
            lookup(review(), "coder")
    with pytest.raises(GraphError, match="no edge 'style' -> 'planner'"):
        review().probability("style", "planner")


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_probability_lies_between_0_and_1(probability):
    with pytest.raises(BadProbabilityError, match="'a' -> 'b'"):
        AgentStepGraph().edge("a", "b", probability=probability)


def test_bad_arguments_are_refused():
    with pytest.raises(GraphError, match="join must be 'any' or 'all', got 'some'"):
        AgentStepGraph().agent("a", join="some")
    for tokens in (-1, 2**31 + 1, 1.5, "9"):
        with pytest.raises(GraphError, match=r"fixed_prompt_tokens must be a whole number from 0 to"):
            AgentStepGraph().agent("a", fixed_prompt_tokens=tokens)  # type: ignore[arg-type]
    for source, target in ((END, "a"), ("a", START)):
        with pytest.raises(GraphError, match="nothing follows END and nothing precedes START"):
            AgentStepGraph().edge(source, target)


def test_a_graph_can_be_full():
    graph = AgentStepGraph().chain(START, *map(str, range(MAX_AGENTS)))
    with pytest.raises(GraphError, match="256 agents"):
        graph.agent("one more")
    pairs = set(product(graph.agents, repeat=2)) - {*graph.edges, ("255", "0")}
    for source, target in islice(pairs, MAX_EDGES - MAX_AGENTS):
        graph.edge(source, target)
    with pytest.raises(GraphError, match="4096 edges"):
        graph.edge("255", "0")


def test_validate_finds_what_is_wrong_with_the_whole():
    with pytest.raises(GraphError, match="no edge from START"):
        AgentStepGraph().edge("a", "b").validate()
    with pytest.raises(BadProbabilityError, match=r"after 'a' add up to 1.2"):
        review().edge("a", "b", probability=0.6).edge("a", "c", probability=0.6).validate()
    with pytest.raises(GraphError, match="'lost' can never run"):
        review().agent("lost").validate()
    with pytest.raises(UnreachableEndError):
        AgentStepGraph().edge(START, "a").edge("a", "a").validate()


def test_joins_that_wait_for_each_other_are_refused():
    graph = AgentStepGraph().fan_out(START, ["a", "b"]).edge("a", "b").edge("b", "a").edge("b", END)
    graph.validate()
    with pytest.raises(GraphError, match="joins wait for each other"):
        graph.agent("a", join="all").agent("b", join="all").validate()


def test_three_times_a_third_is_not_more_than_1():
    graph = AgentStepGraph().edge(START, "a")
    for target in "bcd":
        graph.edge("a", target, probability=1 / 3 + 1e-10)
    graph.validate()
