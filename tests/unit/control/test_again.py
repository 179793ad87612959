"""Contexts whose program has said nothing yet of what comes next, or goes through its graph again and again."""

from __future__ import annotations

import pytest

from kvflow.graph import END, START, AgentStepGraph, to_dict
from tests.unit.control.test_forecast import Driver, driver

__all__ = ["driver"]


def end_without_a_tool(driver: Driver) -> None:
    """Programs of one to six calls, of which all but the last are followed by a tool."""
    for index in range(60):
        workflow = f"old{index}"
        for _ in range(index % 6):
            driver.turn(workflow, 1.0)
        driver.ask(workflow)
        driver.clock.now_s += 1
        driver.answer(workflow)
        driver.clock.now_s += 1
        driver.end(workflow)


def test_contexts_that_usually_end_here_are_not_expected_back(driver: Driver) -> None:
    end_without_a_tool(driver)
    driver.turn("w", 1.0)
    driver.ask("w")
    driver.clock.now_s += 1
    driver.answer("w")
    found = []
    for _ in range(3):  # the tool that it calls, if any, is told of within half a second
        driver.expire()
        found.append(driver.claims["w"]["coder"].probability)
        driver.clock.now_s += 0.25
    assert min(found[:2]) > 0.5 > found[2]
    driver.tool("w", "start", verb="ls")
    assert driver.claims["w"]["coder"].probability > 0.5


@pytest.mark.parametrize("tools", [0.0, 0.5])
def test_a_conversation_that_goes_through_its_graph_again_is_expected_back_by_experience(
    driver: Driver, tools: float
) -> None:
    graph = AgentStepGraph("t").edge(START, "coder").edge("coder", END, probability=1 - tools or None)
    if tools:
        graph.edge("coder", "tools", probability=tools).edge("tools", "coder")
    driver.plane.graphs.declare("t", to_dict(graph))
    for turn in range(8):
        driver.ask("w", step_id=f"s{turn}")
        driver.clock.now_s += 2
        driver.answer("w")
        driver.step_end("w", "coder", f"s{turn}")
        claims = driver.claims["w"]
        driver.clock.now_s += 20
    assert claims["coder"].probability > 0.8
    assert 10 < (claims["coder"].due_s or 0.0) - (driver.clock.now_s - 20) < 25
    driver.ask("new", step_id="s")
    driver.answer("new")
    driver.step_end("new", "coder", "s")
    assert driver.claims["new"]["coder"].probability > 0.3, "so do others of its type"


def test_who_is_next_for_certain_is_so_in_every_run_of_a_conversation(driver: Driver) -> None:
    graph = AgentStepGraph("t").chain(START, "router", "coder", END)
    driver.plane.graphs.declare("t", to_dict(graph))

    def run(workflow: str, turn: int) -> float:
        for agent in graph.agents:
            driver.ask(workflow, agent, step_id=f"{agent}{turn}")
            driver.clock.now_s += 2
            if agent == "router" and turn:
                next_up = driver.claims[workflow]["coder"].probability
            driver.answer(workflow, agent)
            driver.step_end(workflow, agent, f"{agent}{turn}")
        return next_up if turn else 1.0

    for number in range(20):  # most have a single turn
        run(f"old{number}", 0)
        driver.end(f"old{number}")
    run("w", 0)
    driver.clock.now_s += 20
    assert run("w", 1) > 0.9


def test_what_another_agent_says_does_not_tell_whether_one_has_called_a_tool(driver: Driver) -> None:
    end_without_a_tool(driver)
    driver.turn("w", 1.0)
    for agent in ("coder", "other"):
        driver.ask("w", agent)
    driver.clock.now_s += 1
    driver.answer("w")
    driver.clock.now_s += 0.1
    driver.step_end("w", "other")
    assert driver.claims["w"]["coder"].probability > 0.5
