"""The agent step graph that the LangGraph adapter reads from a compiled app."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import kvflow
from kvflow.errors import GraphError
from kvflow.graph import END as END_STEP
from kvflow.graph import Join

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations
    pytest.importorskip("langgraph", reason="LangGraph is not on PYTHONPATH")
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Command

    from kvflow.integrations.langgraph import Hints, graph_of
    from tests.client.langgraph_apps import State, app, seen

pytestmark = pytest.mark.filterwarnings("default")


def test_an_apps_graph_is_read_from_it() -> None:
    graph = graph_of(app(), "t")
    assert graph.agents == ("x", "y", "z", "w")
    assert set(graph.edges) == {
        ("START", "x"),
        ("x", "y"),
        ("x", "z"),
        ("y", "w"),
        ("z", "w"),
        ("w", "x"),
        ("w", END_STEP),
    }
    assert graph.probability("x", "y") is None
    assert graph.probability("w", "x") == graph.probability("w", END_STEP) == 0.5


def test_a_node_with_one_edge_from_several_waits_for_all_of_them() -> None:
    builder = StateGraph(State)
    for name in "xyzw":
        builder.add_node(name, seen)
    builder.add_edge(START, "x")
    builder.add_edge("x", "y")
    builder.add_edge("y", "z")
    builder.add_edge(["x", "z"], "w")
    assert graph_of(builder.compile(), "t").join("w") is Join.ALL
    builder.add_edge("y", "w")
    assert graph_of(builder.compile(), "t").join("w") is Join.ANY, "y alone is enough"


def test_a_graph_that_cannot_be_declared_is_left_to_be_learned(caplog: pytest.LogCaptureFixture) -> None:
    def goes_on(state: State) -> Command[Any]:  # where to, nobody is told
        return Command(goto="y", update={"seen": [kvflow.current()]})

    builder = StateGraph(State)
    builder.add_node("x", goes_on)
    builder.add_node("y", seen)
    builder.add_edge(START, "x")
    made = builder.compile()
    with pytest.raises(GraphError, match="y"):
        graph_of(made, "t")
    with caplog.at_level("WARNING", "kvflow.client"):
        hints = Hints("t", made)
    assert "servers learn it instead" in caplog.text
    assert [step.agent for step in made.invoke({"seen": []}, {"callbacks": [hints]})["seen"]] == ["x", "y"]


def test_a_node_that_chooses_twice_is_not_declared_to_choose_once() -> None:
    def first(state: State) -> str:
        return "y"

    def second(state: State) -> str:
        return "z"

    builder = StateGraph(State)
    for name in "xyz":
        builder.add_node(name, seen)
    builder.add_edge(START, "x")
    builder.add_conditional_edges("x", first, ["y", END])
    builder.add_conditional_edges("x", second, ["z", END])
    with pytest.raises(GraphError, match="node 'x' has 2 sets of conditional edges"):
        graph_of(builder.compile(), "t")


def test_nodes_whose_names_no_agent_can_have_are_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    builder = StateGraph(State)
    names = ["x" * 130, "END", "y"]
    for name in names:
        builder.add_node(name, seen)
    for source, target in zip([START, *names], names, strict=False):
        builder.add_edge(source, target)
    steps = builder.compile().invoke({"seen": []}, {"callbacks": [Hints("t")]})["seen"]
    assert [step.agent for step in steps] == ["x" * 128, "main", "y"]
    assert not caplog.records
