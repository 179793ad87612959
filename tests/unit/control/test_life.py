"""What keeps workflows alive, and what the control plane learns only when it is true."""

from __future__ import annotations

import pytest

from kvflow.config import Settings
from kvflow.control import ControlPlane
from kvflow.graph import END, START, AgentStepGraph, to_dict
from kvflow.hints import DecodedFact, StepFact, ToolFact
from tests.unit.control.test_forecast import Driver
from tests.unit.control.test_plane import Clock


def start(
    plane: ControlPlane, workflow: str, *, parent: str | None = None, tenant: str | None = None, request: bool = False
) -> None:
    fact = StepFact(workflow_id=workflow, workflow_type="t", agent="a", parent_workflow_id=parent, tenant=tenant)
    plane.take([DecodedFact(action_id="", action_type="kvflow.step", fact=fact)], with_request=request)


def at_work(plane: ControlPlane, workflow: str) -> bool:
    found = plane._workflows.get(workflow)
    assert found is not None
    return found.at_work


def workflow_ids(plane: ControlPlane) -> list[str]:
    return [each["workflow_id"] for each in reversed(plane.view())]


def test_a_workflow_is_at_work_while_any_sub_workflow_is_whichever_began_first() -> None:
    plane = ControlPlane(Settings(), Clock())
    start(plane, "child 1", parent="parent")
    start(plane, "parent")
    start(plane, "child 2", parent="parent")
    plane.finish("child 1")
    assert at_work(plane, "parent")
    plane.finish("child 2")
    assert not at_work(plane, "parent")
    plane.finish("parent")
    assert plane._workflows._children == {}


def test_a_parent_that_comes_back_has_its_sub_workflows() -> None:
    plane = ControlPlane(Settings(), Clock())
    start(plane, "parent")
    start(plane, "child", parent="parent")
    plane.finish("parent")
    start(plane, "parent")
    assert at_work(plane, "parent")


def test_where_there_are_too_many_those_at_work_stay() -> None:
    settings = Settings.model_validate({"intake": {"max_workflows": 2}})
    plane = ControlPlane(settings, Clock())
    start(plane, "works", request=True)
    start(plane, "idle")
    start(plane, "new")
    assert workflow_ids(plane) == ["works", "new"]
    start(plane, "newer", request=True)
    start(plane, "newest", request=True)
    assert len(workflow_ids(plane)) == 2, "whatever they do"


def test_of_too_many_those_of_whom_has_the_most_are_dropped() -> None:
    plane = ControlPlane(Settings.model_validate({"intake": {"max_workflows": 4}}), Clock())
    start(plane, "quiet", tenant="one")
    for number in range(10):
        start(plane, f"{number}", tenant="other")
    assert workflow_ids(plane) == ["quiet", "7", "8", "9"]


def test_where_there_are_too_many_those_who_wait_for_a_long_tool_stay() -> None:
    plane = ControlPlane(Settings.model_validate({"intake": {"max_workflows": 2}}), Clock())
    start(plane, "waits")
    call = ToolFact(workflow_id="waits", agent="a", tool="build", event="start", expected_s=600.0)
    plane.take([DecodedFact(action_id="t", action_type="kvflow.tool", fact=call)])
    start(plane, "idle")
    start(plane, "new")
    assert workflow_ids(plane) == ["waits", "new"]


def test_an_answer_is_a_sign_of_life_like_any_other() -> None:
    settings = Settings.model_validate({"intake": {"max_workflows": 2}})
    plane = ControlPlane(settings, Clock())
    start(plane, "answered", request=True)
    start(plane, "silent")
    plane.answered("answered", "a")
    start(plane, "new")
    assert workflow_ids(plane) == ["answered", "new"]


def test_no_pause_is_learned_while_a_request_is_in_flight() -> None:
    driver = Driver()
    for number in range(20):
        driver.ask("w", step_id=f"{number}")
        driver.clock.now_s += 1.0
        driver.answer("w")
        driver.clock.now_s += 1.0
        driver.ask("w", step_id=f"{number} long")
        driver.clock.now_s += 50.0
        driver.ask("w", step_id=f"{number} beside")
        driver.answer("w")
        driver.answer("w")
        driver.clock.now_s += 1.0
    driver.ask("w")
    pause_s = driver.claims["w"]["coder"].pause_s
    assert pause_s is not None
    assert pause_s < 5


def test_the_next_agent_is_due_when_such_steps_have_been_followed() -> None:
    driver = Driver()
    graph = AgentStepGraph("t").chain(START, "planner", "coder")
    graph.edge("coder", "planner", probability=0.9).edge("coder", END, probability=0.1)
    driver.plane.graphs.declare("t", to_dict(graph))
    for _ in range(30):
        for agent in ("planner", "coder"):
            driver.ask("w", agent)
            driver.clock.now_s += 2.0
            driver.answer("w", agent)
            driver.step_end("w", agent)
            driver.clock.now_s += 60.0
    driver.ask("w", "planner")
    driver.clock.now_s += 2.0
    driver.answer("w", "planner")
    driver.step_end("w", "planner")
    assert driver.left_s("w", "coder") == pytest.approx(60, abs=10)
    driver.clock.now_s += 75.0
    driver.expire()
    assert driver.left_s("w", "coder") == pytest.approx(15, abs=3), "what is late may be as late again"


def test_steps_that_follow_at_once_are_due_at_once() -> None:
    driver = Driver()
    driver.plane.graphs.declare("t", to_dict(AgentStepGraph("t").chain(START, "planner", "coder")))
    driver.ask("w", "planner")
    driver.answer("w", "planner")
    driver.step_end("w", "planner")
    assert driver.left_s("w", "coder") <= 0.1


def test_agents_that_a_declared_graph_does_not_have_come_back_as_they_have_so_far() -> None:
    driver = Driver()
    driver.plane.graphs.declare("t", to_dict(AgentStepGraph("t").chain(START, "planner", "coder")))
    for workflow in map(str, range(20)):
        for turn in range(4 if workflow != "19" else 2):
            for agent in ("planner", "summarizer"):
                driver.ask(workflow, agent, step_id=f"{turn}")
                driver.clock.now_s += 1.0
                driver.answer(workflow, agent)
        if workflow != "19":
            driver.end(workflow)
    driver.ask("19", "planner", step_id="5")
    assert driver.claims["19"]["summarizer"].probability > 0.3


def test_a_request_that_tells_the_end_of_another_workflow_is_that_of_its_own_step() -> None:
    plane = ControlPlane(Settings(), Clock())
    start(plane, "old")
    facts = [StepFact(workflow_id="new", workflow_type="t", agent="a"), StepFact(workflow_id="old", agent=END)]
    items = [DecodedFact(action_id="", action_type="kvflow.step", fact=fact) for fact in facts]
    assert len(plane.take(items, with_request=True).asked) == 1
    assert workflow_ids(plane) == ["new"]
    plane.answered("new", "a")
    assert [update.workflow_id for update in plane.expire()] == ["new"]
