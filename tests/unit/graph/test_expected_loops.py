"""Agents that may follow each other in any order: against matrices, and what lies beyond the limits."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest

from kvflow.graph import END, START, AgentStepGraph, NextUse, expected_steps
from kvflow.graph.chain import MAX_STATES, Chain, TooManyStatesError, first_outcomes
from kvflow.graph.flow import Flow

Row = dict[str, float]


def free_chat(agents: int, end: float = 0.1, skew: int = 0) -> dict[str, Row]:
    names = [f"a{n}" for n in range(agents)]
    rows: dict[str, Row] = {}
    for n, name in enumerate(names):
        weights = {other: 1.0 + skew * ((7 * n + 3 * m) % agents) for m, other in enumerate(names) if other != name}
        total = sum(weights.values())
        rows[name] = {other: (1 - end) * weight / total for other, weight in weights.items()} | {END: end}
    return rows


def supervisor(workers: int, end: float = 0.1) -> dict[str, Row]:
    names = [f"w{n}" for n in range(workers)]
    return {"boss": dict.fromkeys(names, (1 - end) / workers) | {END: end}} | {name: {"boss": 1.0} for name in names}


def graph_of(rows: dict[str, Row]) -> AgentStepGraph:
    graph = AgentStepGraph().edge(START, next(iter(rows)))
    for source, row in rows.items():
        for target, share in row.items():
            graph.edge(source, target, probability=share)
    return graph


def first_passage(rows: dict[str, Row], start: str, target: str, horizon: int = 64) -> tuple[float, float]:
    """Backwards from the target: by how many steps each agent has led there, for every number of steps."""
    within = [dict.fromkeys([*rows, END], 0.0)]
    for _ in range(horizon):
        last = within[-1]
        reached = {u: sum(p * (1.0 if v == target else last[v]) for v, p in row.items()) for u, row in rows.items()}
        within.append({END: 0.0, **reached})
    by_step = [now[start] - before[start] for before, now in pairwise(within)]
    return sum(by_step), sum(n * p for n, p in enumerate(by_step, 1)) / sum(by_step)


@pytest.mark.parametrize(
    "rows",
    [
        free_chat(5),
        free_chat(8),
        free_chat(8, end=0.01, skew=5),
        free_chat(12, skew=3),
        supervisor(8),
        supervisor(16),
        supervisor(40, end=0.02),
    ],
    ids=["chat of 5", "chat of 8", "long chat", "chat of 12", "8 workers", "16 workers", "40 workers"],
)
def test_agents_in_any_order_are_as_likely_and_as_far_as_matrices_say(rows):
    start, other = list(rows)[:2]
    for active in (start, other):
        found = expected_steps(graph_of(rows), {active}, horizon=64)
        for target in (*rows, END):
            probability, steps = first_passage(rows, active, target)
            assert found[target].probability == pytest.approx(probability, abs=1e-3)
            assert found[target].steps == pytest.approx(steps, rel=2e-3)


def test_two_groups_that_seldom_meet_are_not_taken_for_steady():
    rows = {
        "a": {"b": 0.999, "c": 0.001},
        "b": {"a": 0.999, END: 0.001},
        "c": {"d": 0.5, "c": 0.5},
        "d": {"c": 1.0},
    }
    found = expected_steps(graph_of(rows), {"a"})
    for target in (*rows, END):
        probability, steps = first_passage(rows, "a", target)
        assert found[target].probability == pytest.approx(probability, abs=1e-3)
        assert found[target].steps == pytest.approx(steps, rel=2e-3)


@pytest.mark.parametrize("rows", [free_chat(63), supervisor(250)], ids=["chat of 63", "250 workers"])
def test_more_agents_than_can_be_followed_are_estimated_closely(rows):
    start, other = list(rows)[:2]
    found = expected_steps(graph_of(rows), {start}, horizon=64)
    for target in (other, END):
        probability, steps = first_passage(rows, start, target)
        assert found[target].probability == pytest.approx(probability, rel=0.1)
        assert found[target].steps == pytest.approx(steps, rel=0.1)


def follow(chain: Chain, flow: Flow, active: str) -> None:
    states = chain.spread(*first_outcomes(flow, flow.mask([active]), {}))
    for target in range(1, len(flow.names)):
        list(islice(chain.entering(states, target), 64))


def test_moves_are_explored_once_and_followed_only_until_the_rest_fades():
    rows = free_chat(8)
    flow = graph_of(rows).flow
    chain = Chain(flow, MAX_STATES)
    follow(chain, flow, "a0")
    explored = chain.explored
    assert explored <= sum(map(len, rows.values())) + len(rows["a0"]) + 1
    assert chain.followed < 10_000  # without end it would be about 40,000
    follow(chain, flow, "a0")
    assert chain.explored == explored + len(rows["a0"])  # the first step


@pytest.mark.parametrize("rows", [free_chat(40, skew=3), free_chat(63), supervisor(250)])
def test_no_more_is_followed_than_the_limit(rows):
    flow = graph_of(rows).flow
    chain = Chain(flow, MAX_STATES)
    with pytest.raises(TooManyStatesError):
        follow(chain, flow, next(iter(rows)))
    assert chain.explored <= 4 * MAX_STATES + len(rows)
    assert chain.followed <= 300 * MAX_STATES


def test_parallel_agents_that_are_estimated_are_not_taken_for_certain():
    graph = AgentStepGraph().edge(START, "p")
    for name in (f"x{n}" for n in range(12)):
        graph.edge("p", name).edge(name, name, probability=0.5).edge(name, END, probability=0.3)
        graph.edge(name, "rare", probability=0.01)
    found = expected_steps(graph, {"p"})
    assert found["rare"].probability == pytest.approx(1 - 0.98**12, abs=0.03)
    assert found["rare"].steps == pytest.approx(3, abs=0.3)


def test_an_estimate_is_no_more_than_certain_where_what_runs_multiplies():
    """Each worker calls the boss again, and that all of them: estimates add up, and were taken to grow for ever."""
    graph = AgentStepGraph().edge(START, "router").edge("router", "boss", probability=0.01)
    graph.edge("router", END, probability=0.99)
    for name in (f"w{n}" for n in range(10)):
        graph.edge("boss", name).edge(name, "boss", probability=0.7)
    for use in expected_steps(graph, {"router"}).values():
        assert 0 <= use.probability <= 1
        assert use.steps is None or 1 <= use.steps <= 64


def reviewed_in_a_loop() -> AgentStepGraph:
    graph = AgentStepGraph().edge(START, "planner").fan_out("planner", ["coder", "tester"], join="critic")
    for name, probability in (("coder", 0.3), ("tester", 0.3), (END, 0.4)):
        graph.edge("critic", name, probability=probability)
    return graph


def test_a_join_in_a_loop_is_estimated_though_an_input_comes_from_behind_it():
    """From the tester on only that is waited for; the coder runs again once the critic has asked for it."""
    graph = reviewed_in_a_loop()
    for active in ({"tester"}, {"coder"}, {"critic"}):
        exact, found = expected_steps(graph, active), expected_steps(graph, active, max_states=1)
        for agent in ("coder", "tester"):
            assert found[agent].probability == pytest.approx(exact[agent].probability, abs=0.1), (active, agent)
            assert found[agent].steps == pytest.approx(exact[agent].steps, rel=0.3), (active, agent)
    assert expected_steps(graph, {"tester"}, max_states=1)["critic"] == NextUse(probability=1, steps=1)


def test_a_join_starts_again_in_an_estimate_though_only_one_of_its_inputs_comes_again():
    graph = AgentStepGraph().edge(START, "planner").fan_out("planner", ["coder", "tester"], join="critic")
    graph.edge("critic", "coder", probability=0.6).edge("critic", END, probability=0.4)
    exact, found = expected_steps(graph, {"planner"}), expected_steps(graph, {"planner"}, max_states=1)
    assert found[END].probability == pytest.approx(exact[END].probability, abs=1e-3)
    assert found[END].steps == pytest.approx(exact[END].steps, rel=0.05)


def test_agents_of_a_long_chain_are_all_expected():
    graph = AgentStepGraph().chain(START, *(f"a{n}" for n in range(100)), END)
    found = expected_steps(graph, {"a0"})
    assert found["a80"].probability == 1.0
    assert found["a80"].steps == pytest.approx(80)
