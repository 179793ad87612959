from __future__ import annotations

import time

import pytest

from kvflow.graph import END, START, AgentStepGraph, NextUse, expected_steps
from kvflow.graph.expected import NEVER


def test_a_branch_is_taken_with_its_probability():
    graph = AgentStepGraph().edge(START, "a").edge("a", "b", probability=0.7).edge("a", "c", probability=0.2)
    graph.chain("b", "d").chain("c", "c2", "d")
    found = expected_steps(graph, {"a"})
    assert found["a"] == NEVER
    assert found["b"] == NextUse(probability=0.7, steps=1)
    assert found["d"].probability == pytest.approx(0.9)
    assert found["d"].steps == pytest.approx((0.7 * 2 + 0.2 * 3) / 0.9)


def test_a_loop_has_the_mean_of_a_geometric_distribution():
    graph = AgentStepGraph().edge(START, "a").edge("a", "a", probability=0.5).edge("a", END, probability=0.5)
    found = expected_steps(graph, {"a"})
    assert found["a"] == NextUse(probability=0.5, steps=1)
    assert found[END].probability == pytest.approx(1, abs=1e-8)
    assert found[END].steps == pytest.approx(2, abs=1e-6)
    assert expected_steps(graph, {"a"}, horizon=1)[END] == NextUse(probability=0.5, steps=1)


def test_a_join_waits_for_parallel_loops():
    """The maximum of two geometric variables with 1/2 is 8/3 on average."""
    graph = AgentStepGraph().fan_out(START, ["x", "y"])
    for name in "xy":
        graph.edge(name, name, probability=0.5).edge(name, "j", probability=0.5)
    graph.agent("j", join="all")
    assert expected_steps(graph, {"x", "y"})["j"].steps == pytest.approx(8 / 3, abs=1e-6)


def test_unconditional_edges_are_taken_beside_the_branch():
    graph = AgentStepGraph().edge(START, "a").edge("a", "log").edge("a", "b", probability=0.4)
    found = expected_steps(graph, {"a"})
    assert found["log"] == NextUse(probability=1, steps=1)
    assert found["b"] == NextUse(probability=0.4, steps=1)


def test_a_join_starts_when_its_other_inputs_have_become_impossible():
    graph = AgentStepGraph().edge(START, "p").edge("p", "w").edge("p", "x", probability=0.5)
    graph.edge("p", "y", probability=0.5).edge("w", "j").edge("x", "j").edge("y", "j").agent("j", join="all")
    assert expected_steps(graph, {"p"})["j"] == NextUse(probability=1, steps=2)


def test_reaching_end_does_not_stop_what_runs_beside_it():
    graph = AgentStepGraph().edge(START, "a").chain("a", END).chain("a", "b", "c", END)
    assert expected_steps(graph, {"a"})["c"] == NextUse(probability=1, steps=2)


def test_alternatives_among_the_satisfied_edges_are_still_open():
    graph = AgentStepGraph().edge(START, "a").edge("a", "b", probability=0.7).edge("a", "c", probability=0.3)
    graph.agent("c", join="all")
    found = expected_steps(graph, (), {("a", "b"), ("a", "c")})
    assert found["b"] == NextUse(probability=0.7, steps=1)
    assert found["c"].probability == pytest.approx(0.3)
    assert expected_steps(graph, (), {("a", "c")})["c"].probability == 1


def test_too_many_states_are_estimated():
    graph = AgentStepGraph().edge(START, "p")
    for name in map(str, range(12)):
        graph.edge("p", name).edge(name, name, probability=0.5).edge(name, "j", probability=0.5)
    graph.agent("j", join="all").chain("j", "last", END)
    found = expected_steps(graph, {"p"})
    assert found["7"] == NextUse(probability=1, steps=1)
    assert found["j"] == NextUse(probability=pytest.approx(1), steps=pytest.approx(3))
    assert found["p"] == NEVER
    assert expected_steps(graph, {"p"}, horizon=2)["j"] == NextUse(probability=0.5, steps=2)
    assert expected_steps(graph, {"p"}, horizon=2)["last"] == NEVER


def test_joins_that_wait_in_a_large_graph_are_paid_for():
    """Ten draws have as many outcomes as moves are allowed, and each of them would ask 200 joins."""
    graph = AgentStepGraph().chain(START, "hub").chain(START, "before", "slow")
    for name in (f"draw {n}" for n in range(10)):
        graph.edge(START, name).edge(name, "drawn", probability=0.5).edge(name, END, probability=0.5)
    for name in (f"join {n}" for n in range(200)):
        graph.agent(name, join="all").edge("hub", name).edge("slow", name)
    active = {"hub", "before", *(f"draw {n}" for n in range(10))}
    began_s = time.process_time()
    found = expected_steps(graph, active)
    assert time.process_time() - began_s < 1.0
    assert found["join 7"].probability == 1


def test_edges_of_a_large_graph_are_paid_for():
    """Ten alternatives at once among thousands of edges that are taken for certain."""
    agents = [f"a{n}" for n in range(250)]
    graph = AgentStepGraph("wide")
    for n, agent in enumerate(agents):
        graph.edge("START", agent)
        for other in range(1, 15):
            graph.edge(agent, agents[(n + other) % 250])
        if n < 10:
            graph.edge(agent, agents[(n + 100) % 250], probability=0.5)
        graph.edge(agent, "END")
    began_s = time.process_time()
    expected_steps(graph, ["START"])
    assert time.process_time() - began_s < 2.0


def test_a_small_limit_of_states_is_kept():
    graph = AgentStepGraph().chain(START, *"abcdef").edge("f", "a", probability=0.5)
    assert expected_steps(graph, {"a"})["a"].probability == 0.5
    assert expected_steps(graph, {"a"}, max_states=3)["b"] == NextUse(probability=1, steps=1)
    assert expected_steps(graph, {"a"}, max_states=3)["a"].steps > 6  # an estimate


def test_results_are_remembered_but_not_shared():
    graph = AgentStepGraph().chain(START, "a", "b")
    expected_steps(graph, {"a"}).clear()
    assert expected_steps(graph, {"a"})["b"] == NextUse(probability=1, steps=1)
    graph.edge("a", "c")
    assert expected_steps(graph, {"a"})["c"] == NextUse(probability=1, steps=1)
