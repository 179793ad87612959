"""Steps of one agent, and agents of one run, that are under way side by side; and what is learned of what came late."""

from __future__ import annotations

import pytest

from kvflow.config import Settings
from kvflow.control import ControlPlane
from kvflow.graph import END, START, AgentStepGraph, to_dict
from kvflow.hints import DecodedFact, ToolFact
from tests.unit.control.test_forecast import Driver
from tests.unit.control.test_plane import Clock


@pytest.fixture
def driver() -> Driver:
    return Driver()


def waiting(driver: Driver, **expected_s: float | None) -> None:
    """Steps of one agent, each answered, and each waiting for a tool of its own by now."""
    for step_id in expected_s:
        driver.ask("w", step_id=step_id)
        driver.answer("w")
    driver.clock.now_s += 1.0
    for step_id, seconds in expected_s.items():
        driver.tool("w", "start", tool=step_id, call_id=step_id, step_id=step_id, expected_s=seconds)


def test_a_context_is_used_when_the_first_of_its_steps_goes_on(driver: Driver) -> None:
    waiting(driver, slow=300.0, fast=1.0)
    assert driver.left_s("w") == pytest.approx(1.0, abs=0.1)


def test_a_step_goes_on_when_the_last_of_its_tools_has_answered(driver: Driver) -> None:
    waiting(driver, s=300.0)
    driver.tool("w", "start", call_id="2", step_id="s", expected_s=1.0)
    assert driver.left_s("w") == pytest.approx(300.0, abs=0.1)


def test_what_is_said_of_one_tool_counts_though_nothing_is_said_of_another(driver: Driver) -> None:
    for index in range(40):
        driver.turn(f"old{index}", 2.0)
    waiting(driver, s=600.0)
    driver.tool("w", "start", verb="ls", call_id="2", step_id="s")
    assert driver.left_s("w") == pytest.approx(600.0, abs=0.1)
    driver.clock.now_s += 60.0
    driver.expire()
    assert (driver.left_s("w"), driver.claims["w"]["coder"].probability > 0.5) == (pytest.approx(540.0, abs=0.1), True)


def test_an_agent_that_asks_while_one_of_its_steps_waits_is_back_as_ever(driver: Driver) -> None:
    for index in range(40):
        driver.turn(f"old{index}", 2.0)
        driver.turn(f"old{index}", 2.0)
    waiting(driver, slow=300.0)
    driver.clock.now_s += 10.0
    driver.ask("w", step_id="other")
    driver.answer("w")
    assert driver.left_s("w") < 10.0


def test_an_agent_that_joins_others_waits_for_the_longest(driver: Driver) -> None:
    graph = AgentStepGraph("t").edge(START, "plan").fan_out("plan", ["web", "papers"], join="write").edge("write", END)
    driver.plane.graphs.declare("t", to_dict(graph))
    took_s = {"papers": 2.0, "web": 60.0}
    for index in range(20):
        for agent in ("plan", "web", "papers"):
            driver.ask(f"old{index}", agent, step_id=agent)
        for agent in ("plan", "papers", "web"):
            driver.clock.now_s += took_s.get(agent, 1.0) - (2.0 if agent == "web" else 0.0)
            driver.answer(f"old{index}", agent)
            driver.step_end(f"old{index}", agent, step_id=agent)
        driver.end(f"old{index}")
    driver.ask("w", "plan", step_id="plan")
    driver.answer("w", "plan")
    driver.step_end("w", "plan", step_id="plan")
    for agent in ("web", "papers"):
        driver.ask("w", agent, step_id=agent)
    left_s = driver.left_s("w", "write")
    assert 30.0 < left_s < 70.0
    driver.clock.now_s += 2.0
    driver.answer("w", "papers")
    driver.step_end("w", "papers", step_id="papers")
    assert driver.left_s("w", "write") == pytest.approx(left_s - 2.0, abs=5.0)


def test_what_a_tool_has_taken_is_taken_at_its_word(driver: Driver) -> None:
    """A client that could not post for a while tells of the start and the end at once."""
    for index in range(40):
        driver.ask(f"w{index}")
        driver.answer(f"w{index}")
        driver.tool(f"w{index}", "start", verb="slow")
        driver.tool(f"w{index}", "end", verb="slow", took_s=20.0)
    assert driver.plane.forecaster.tools.of("bash", "slow").residual_s(0.0) == pytest.approx(20.0, rel=0.3)


def lives_on(plane: ControlPlane, clock: Clock, prompt: list[int], pause_s: float) -> bool:
    """One turn of a client that says nothing, and the silence after it; whether it is expected to come back then."""
    step = plane.threads.asks(prompt, "")
    assert step is not None
    plane.take([DecodedFact(action_id="", action_type="kvflow.step", fact=step)], with_request=True)
    clock.now_s += 2.0
    plane.answered(step.workflow_id, step.agent)
    for _ in range(int(pause_s)):
        clock.now_s += 1.0
        plane.expire()
    return step.workflow_id in [each["workflow_id"] for each in plane.view()]


def test_pauses_after_which_an_inferred_workflow_was_let_go_are_learned() -> None:
    clock = Clock()
    plane = ControlPlane(Settings(), clock)
    quick, slow = [7] * 80, [8] * 80
    for _ in range(40):
        quick = [*quick, *[9] * 70]
        assert lives_on(plane, clock, quick, 2.0)
    expected = []
    for _ in range(12):
        slow = [*slow, *[9] * 70]
        expected.append(lives_on(plane, clock, slow, 180.0))
    assert not expected[0], "nobody knew of such pauses"
    assert all(expected[-3:])


def test_what_is_kept_of_workflows_that_were_let_go_is_bounded() -> None:
    clock = Clock()
    plane = ControlPlane(Settings.model_validate({"intake": {"max_workflows": 3}}), clock)
    driver = Driver()
    driver.plane, driver.clock = plane, clock
    for index in range(9):
        driver.ask(f"w{index}")
        driver.answer(f"w{index}")
    assert (len(plane), len(plane._let_go)) == (3, 3)


def test_a_tool_may_not_have_taken_less_than_nothing() -> None:
    with pytest.raises(ValueError, match="took_s"):
        ToolFact(workflow_id="w", agent="a", tool="t", event="end", took_s=-1.0)
