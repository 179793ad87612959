from __future__ import annotations

from itertools import permutations

import pytest

from kvflow.graph import END, START, AgentStepGraph, Cursor, NextUse


def review() -> AgentStepGraph:
    graph = AgentStepGraph("code_review").edge(START, "planner")
    graph.fan_out("planner", ["security", "style", "tests"], join="critic")
    return graph.edge("critic", "planner", probability=0.3).edge("critic", "writer", probability=0.7)


def follow(graph: AgentStepGraph, *agents: str) -> Cursor:
    cursor = Cursor(graph)
    for agent in agents:
        cursor.start(agent)
    return cursor


def test_before_anything_ran_start_is_active():
    cursor = Cursor(review())
    assert cursor.active == {START}
    assert cursor.steps == {"planner": 1, "security": 2, "style": 2, "tests": 2, "critic": 3, "writer": 4, END: 5}
    assert not cursor.finished


def test_along_a_chain_each_start_finishes_the_one_before():
    cursor = follow(AgentStepGraph().chain(START, "a", "b", "c"), "a", "b")
    assert cursor.active == {"b"}
    assert cursor.steps == {"a": None, "b": 0, "c": 1, END: 2}
    assert cursor.never("a")
    assert not cursor.never("b")
    assert not cursor.never("c")


def test_a_run_seen_first_in_the_middle_has_left_start():
    cursor = follow(AgentStepGraph().chain(START, "a", "b", "c"), "b")
    assert cursor.active == {"b"}
    assert cursor.steps == {"a": None, "b": 0, "c": 1, END: 2}


def test_after_an_end_fact_the_successor_is_due():
    cursor = follow(AgentStepGraph().chain(START, "a", "b", "c"), "a")
    cursor.end("a")
    assert cursor.active == frozenset()
    assert cursor.satisfied == {("a", "b")}
    assert cursor.steps == {"a": None, "b": 1, "c": 2, END: 3}
    cursor.end("a")
    cursor.start("b")
    assert cursor.steps["c"] == 1


def test_when_one_alternative_starts_the_others_are_out():
    graph = AgentStepGraph().edge(START, "a").edge("a", "b", probability=0.5).edge("a", "c", probability=0.5)
    graph.edge("a", "log")
    cursor = follow(graph, "a")
    cursor.end("a")
    assert [cursor.steps[name] for name in ("b", "c", "log")] == [1, 1, 1]
    assert cursor.next_use["b"] == NextUse(probability=0.5, steps=1)
    cursor.start("b")
    assert [cursor.steps[name] for name in ("b", "c", "log")] == [0, None, 1]
    assert cursor.never("c")


def test_start_can_have_a_branch_too():
    graph = AgentStepGraph().edge(START, "a", probability=0.5).edge(START, "b", probability=0.5)
    cursor = follow(graph, "a")
    assert cursor.satisfied == frozenset()
    assert cursor.never("b")


@pytest.mark.parametrize("order", [*permutations(["security", "style", "tests"])])
@pytest.mark.parametrize("ends", [True, False])
def test_fan_out_and_fan_in_work_in_any_order(order, ends):
    cursor = follow(review(), "planner")
    for count, agent in enumerate(order, start=1):
        cursor.start(agent)
        assert cursor.steps["critic"] == (1 if count == 3 else 2)
        assert all(cursor.steps[other] == 1 for other in order[count:])
        if ends:
            cursor.end(agent)
    assert len(cursor.satisfied) == (3 if ends else 0)
    assert cursor.steps["critic"] == 1
    cursor.start("critic")
    assert cursor.active == {"critic"}
    assert cursor.satisfied == frozenset()


def test_a_loop_can_go_round_again():
    lap = ("planner", "style", "tests", "security", "critic")
    cursor = follow(review(), *lap, *lap)
    assert cursor.steps["planner"] == cursor.steps["writer"] == 1
    cursor.start("writer")
    assert cursor.never("planner")


def test_nested_fan_outs_join_from_the_inside():
    graph = AgentStepGraph().edge(START, "p").fan_out("p", ["a", "b"], join="out")
    graph = graph.edge("b", "b1").edge("b", "b2").edge("b1", "in").edge("b2", "in").agent("in", join="all")
    graph.edge("in", "out")
    cursor = follow(graph, "p", "b", "b2", "a", "b1")
    assert cursor.steps["in"] == 1
    assert cursor.steps["out"] == 2
    cursor.start("in")
    cursor.start("out")
    assert cursor.active == {"out"}


def test_a_step_that_goes_on_changes_nothing():
    cursor = Cursor(AgentStepGraph().chain(START, "a", "b"))
    cursor.start("a", "1")
    steps = cursor.steps
    cursor.start("a", "1")
    cursor.start("a")
    assert cursor.steps is steps


def test_an_agent_that_is_due_and_only_says_that_it_has_ended_has_run():
    cursor = Cursor(AgentStepGraph().chain(START, "plan", "retrieve", "write"))
    cursor.start("plan", "1")
    cursor.end("plan", "1")
    for _ in range(2):
        cursor.end("retrieve", "2")
        assert cursor.active == frozenset()
        assert cursor.steps == {"plan": None, "retrieve": None, "write": 1, END: 2}
    cursor.start("write", "3")
    cursor.end("write", "3")
    assert cursor.satisfied == {("write", END)}


def test_the_end_of_a_step_that_was_taken_for_ended_is_not_another_one():
    cursor = Cursor(AgentStepGraph().chain(START, "a", "b", "a"))
    for agent, step_id in (("a", "1"), ("b", "2")):
        cursor.start(agent, step_id)
    cursor.end("b", "2")
    steps = cursor.steps
    cursor.end("a", "1")
    assert cursor.steps is steps


def test_parallel_steps_keep_an_agent_active_until_all_have_ended():
    cursor = Cursor(AgentStepGraph().chain(START, "map", "reduce"))
    for step_id in "123":
        cursor.start("map", step_id)
    cursor.end("map", "2")
    cursor.end("map", "unknown")
    cursor.end("map", "1")
    assert cursor.active == {"map"}
    cursor.end("map", "3")
    assert cursor.active == frozenset()
    assert cursor.steps["reduce"] == 1


def test_only_the_latest_steps_that_ended_are_remembered():
    cursor = Cursor(AgentStepGraph().chain(START, "worker"))
    cursor.start("worker", "0")
    for step_id in map(str, range(1, 5000)):
        cursor.start("worker", step_id)
        cursor.end("worker", str(int(step_id) - 1))
    assert cursor.active == {"worker"}
    assert len(cursor._past_steps) <= 1024


def test_step_ids_are_bounded_over_all_agents():
    agents = [f"a{number}" for number in range(64)]
    cursor = Cursor(AgentStepGraph().fan_out(START, agents))
    for act in (Cursor.start, Cursor.end):
        for step_id in map(str, range(100)):
            for agent in agents:
                act(cursor, agent, step_id)
        assert sum(map(len, cursor._running.values())) + len(cursor._past_steps) <= 1024
    assert cursor.active == frozenset()


def test_a_successor_ends_all_parallel_steps():
    cursor = Cursor(AgentStepGraph().chain(START, "map", "reduce"))
    cursor.start("map", "1")
    cursor.start("map", "2")
    cursor.start("reduce")
    assert cursor.active == {"reduce"}
    cursor.end("map", "1")
    assert cursor.active == {"reduce"}


def test_a_self_loop_is_a_new_step():
    graph = AgentStepGraph().edge(START, "react").edge("react", "react", probability=0.8)
    cursor = Cursor(graph.edge("react", END, probability=0.2))
    for step_id in "1234":
        cursor.start("react", step_id)
    assert cursor.steps == {"react": 0, END: 1}
    cursor.end("react", "3")
    assert cursor.active == {"react"}
    cursor.end("react", "4")
    assert cursor.steps == {"react": 1, END: 1}
    assert cursor.next_use["react"] == NextUse(probability=0.8, steps=1)


def test_a_step_taken_for_finished_that_shows_up_again_runs_again():
    cursor = Cursor(AgentStepGraph().chain(START, "a", "b", "c"))
    cursor.start("a", "1")
    cursor.start("b", "2")
    cursor.start("a", "1")
    assert cursor.active == {"a", "b"}


def test_any_join_takes_the_input_that_has_arrived_and_leaves_the_other_running():
    cursor = follow(AgentStepGraph().fan_out(START, ["x", "y"]).edge("x", "j").edge("y", "j"), "x", "y")
    cursor.end("x")
    cursor.start("j", "1")
    assert cursor.active == {"j", "y"}
    cursor.end("y")
    cursor.start("j")
    assert cursor.satisfied == frozenset()


def test_unknown_agents_and_transitions_are_survived():
    cursor = follow(review(), "planner")
    cursor.start("stranger")
    cursor.end("stranger")
    cursor.start(END)
    cursor.end("writer")
    assert cursor.active == {"planner"}
    cursor.start("writer")
    assert cursor.active == {"planner", "writer"}
    assert cursor.steps["writer"] == 0
    assert not cursor.never("stranger")


def test_a_join_that_starts_early_takes_what_is_there():
    cursor = follow(review(), "planner", "style", "critic")
    assert cursor.active == {"critic"}


def test_never_does_not_count_on_joins():
    graph = AgentStepGraph().edge(START, "p").fan_out("p", ["x", "y"], join="j").chain("x", "x2", "x")
    assert not follow(graph, "p", "x", "x2").never("j")


def test_finish_and_reopening():
    cursor = follow(review(), "planner")
    cursor.finish()
    assert cursor.finished
    assert cursor.steps[END] == 0
    assert all(cursor.never(agent) for agent in cursor.graph.agents)
    cursor.start("planner")
    assert not cursor.finished
    assert cursor.steps["style"] == 1


def test_what_comes_next_is_computed_when_it_is_asked_for(monkeypatch):
    computed = []
    for name in ("steps_to_execution", "expected_steps"):
        monkeypatch.setattr(f"kvflow.graph.cursor.{name}", lambda *args, name=name: computed.append(name) or {})
    cursor = follow(review(), "planner", "style", "critic", "writer", "planner")
    cursor.end("planner")
    assert computed == []
    for _ in range(2):
        assert cursor.steps == {}
        assert cursor.next_use == {}
    assert computed == ["steps_to_execution", "expected_steps"]


def test_results_are_kept_until_state_or_graph_change():
    graph = AgentStepGraph().chain(START, "a", "b")
    cursor = follow(graph, "a")
    steps, uses = cursor.steps, cursor.next_use
    assert cursor.steps is steps
    assert cursor.next_use is uses
    graph.edge("a", "c")
    assert cursor.steps["c"] == 1
    assert not cursor.never("c")
    with pytest.raises(TypeError):
        cursor.steps["c"] = 5  # type: ignore[index]


def test_the_graph_can_be_replaced_by_a_better_one():
    cursor = follow(AgentStepGraph().chain(START, "a", "b", "c"), "a", "b")
    cursor.graph = AgentStepGraph().chain(START, "b", "d", END)
    assert cursor.steps == {"b": 0, "d": 1, END: 2}
    cursor.graph = AgentStepGraph().chain(START, "d", END)
    cursor.start("d")
    assert cursor.active == {"d"}
    assert cursor.steps == {"d": 0, END: 1}


def test_an_agent_that_may_run_beside_another_does_not_once_that_has_ended():
    graph = AgentStepGraph().chain(START, "plan", "write", "edit", END)
    graph.edge("plan", "check", probability=0.2).edge("check", "legal").edge("legal", END)
    cursor = follow(graph, "plan", "write")
    assert cursor.next_use["check"] == NextUse(probability=0.2, steps=1.0)
    cursor.end("write")
    assert cursor.next_use["check"] == cursor.next_use["legal"] == NextUse(probability=0.0, steps=None)
    cursor.start("check")
    assert cursor.steps["legal"] == 1, "late, but it runs"
    assert not cursor.restarted


def test_a_branch_is_drawn_anew_when_its_source_starts_again():
    graph = AgentStepGraph().edge(START, "agent").edge("agent", "search", probability=0.3)
    graph.edge("agent", END, probability=0.7).edge("search", "agent")
    cursor = Cursor(graph)
    for _ in range(3):
        cursor.start("agent", "step")
        assert cursor.next_use["search"].probability == pytest.approx(0.3)
        cursor.end("agent", "step")
        assert cursor.satisfied == {("agent", "search"), ("agent", END)}


def test_a_run_that_begins_again_after_its_end_is_told_from_one_that_goes_on():
    graph = AgentStepGraph().chain(START, "router", "writer", END)
    cursor = Cursor(graph)
    assert not cursor.at_end
    for agent in ("router", "writer"):
        cursor.start(agent)
        assert not cursor.at_end
        cursor.end(agent)
    assert cursor.at_end
    assert not cursor.restarted
    cursor.start("router")
    assert cursor.restarted
    assert not cursor.at_end


def test_an_agent_that_is_asked_twice_before_the_next_is_no_new_run():
    cursor = follow(AgentStepGraph().chain(START, "plan", "code", "review", END), "plan", "code")
    cursor.end("code")
    cursor.start("code")
    assert not cursor.restarted
