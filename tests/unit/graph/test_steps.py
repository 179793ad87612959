from __future__ import annotations

import pytest

from kvflow.errors import UnknownAgentError
from kvflow.graph import END, START, AgentStepGraph, steps_to_execution, steps_until_next


def diamond(join: str) -> AgentStepGraph:
    """A short way (b) and a long one (c, d) from a to e."""
    graph = AgentStepGraph().chain(START, "a", "b", "e", END).chain("a", "c", "d", "e")
    return graph.agent("e", join=join)


def test_a_chain_is_counted_off():
    graph = AgentStepGraph().chain(START, "a", "b", "c")
    assert steps_to_execution(graph, {START}) == {"a": 1, "b": 2, "c": 3, END: 4}
    assert steps_to_execution(graph, {"b"}) == {"a": None, "b": 0, "c": 1, END: 2}
    assert steps_to_execution(graph, {END}) == {"a": None, "b": None, "c": None, END: 0}


@pytest.mark.parametrize(("join", "steps"), [("any", 3), ("all", 4)])
def test_any_takes_the_minimum_and_all_the_maximum(join, steps):
    assert steps_to_execution(diamond(join), {START})["e"] == steps


def test_a_branch_counts_at_its_earliest_whatever_its_probability():
    graph = AgentStepGraph().edge(START, "a").edge("a", "b", probability=0.01).edge("a", "c", probability=0.99)
    assert steps_to_execution(graph, {"a"}) == {"a": 0, "b": 1, "c": 1, END: 2}


def test_with_several_active_agents_the_nearest_counts():
    graph = AgentStepGraph().chain(START, "a", "b", "c", "d").edge(START, "x").edge("x", "d")
    assert steps_to_execution(graph, {"a", "x"})["d"] == 1


def test_a_loop_back_into_an_all_join_is_no_deadlock():
    graph = AgentStepGraph().fan_out(START, ["a", "b"], join="c").chain("c", "d", "c")
    assert steps_to_execution(graph, {START}) == {"a": 1, "b": 1, "c": 2, "d": 3, END: None}
    assert steps_to_execution(graph, {"d"})["c"] == 1
    assert steps_until_next(graph, {"c"})["c"] == 2


def test_the_way_back_to_an_active_agent():
    graph = AgentStepGraph().chain(START, "a", "b", "c", "a").edge("c", END)
    assert steps_to_execution(graph, {"a"}) == {"a": 0, "b": 1, "c": 2, END: 3}
    assert steps_until_next(graph, {"a"}) == {"a": 3, "b": 1, "c": 2, END: 3}
    assert steps_until_next(graph, {START}) == steps_to_execution(graph, {START})
    assert steps_until_next(diamond("any"), {"b"})["b"] is None
    assert steps_until_next(AgentStepGraph().edge(START, "a").edge("a", "a"), {"a"})["a"] == 1


def test_an_agent_out_of_reach_has_no_steps():
    assert steps_to_execution(diamond("any"), {"d"})["b"] is None
    assert set(steps_to_execution(diamond("any"), ()).values()) == {None}


def test_satisfied_inputs_of_a_join_are_not_waited_for():
    graph = AgentStepGraph().edge(START, "p").fan_out("p", ["x", "y"], join="j").edge("x", "x2").edge("x2", "x")
    assert steps_to_execution(graph, {"y", "x2"})["j"] == 2
    assert steps_to_execution(graph, {"y", "x2"}, {("x", "j")})["j"] == 1
    assert steps_to_execution(graph, {"x2"}, {("x", "j"), ("y", "j")})["j"] == 1
    assert steps_to_execution(graph, (), {("x", "j"), ("y", "j")})["j"] == 1


def test_a_satisfied_edge_into_any_other_agent_makes_it_next():
    graph = AgentStepGraph().chain(START, "a", "b", "c")
    assert steps_to_execution(graph, (), {("a", "b")}) == {"a": None, "b": 1, "c": 2, END: 3}
    assert steps_to_execution(graph, {"b"}, {("a", "b")})["b"] == 0
    assert steps_until_next(graph, {"b"}, {("a", "b")})["b"] == 1
    assert steps_to_execution(graph, {"a"}, {("c", "a"), ("x", "y")})["a"] == 0


def test_a_join_does_not_wait_for_what_can_no_longer_come():
    graph = AgentStepGraph().edge(START, "p").fan_out("p", ["x", "y"], join="j")
    assert steps_to_execution(graph, {"y"})["j"] == 1
    assert steps_to_execution(graph, ())["j"] is None


def test_a_join_does_not_wait_for_what_only_it_leads_to():
    graph = AgentStepGraph().edge(START, "p").fan_out("p", ["x", "y"], join="critic")
    graph.edge("critic", "x", probability=0.2).edge("critic", "p", probability=0.2)
    assert steps_to_execution(graph, {"x"}) == {"p": 2, "x": 0, "critic": 1, "y": 3, END: None}


def test_an_unknown_active_agent_is_an_error():
    with pytest.raises(UnknownAgentError):
        steps_to_execution(diamond("any"), {"z"})
