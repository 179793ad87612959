"""What is not known of a workflow fades: agents it has not run, and ends that nobody tells of."""

from __future__ import annotations

import random

import pytest

from kvflow.config import Settings
from kvflow.control import ControlPlane, Quotes
from kvflow.hints import DecodedFact
from kvflow.reuse.fingerprints import marks_of
from tests.unit.control.test_forecast import Clock, Driver

_random = random.Random()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test draws the same texts, whichever others have run."""
    _random.seed(3)


def text(length: int) -> list[int]:
    return _random.choices(range(100_000), k=length)


SYSTEM = {name: random.Random(name).choices(range(100_000), k=128) for name in "abc"}


class Silent:
    """Clients that send no hints, and never say that they are done."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.plane = ControlPlane(Settings(), self.clock, Quotes(marks_of))

    def ask(self, prompt: list[int], answer: list[int]) -> str:
        step = self.plane.threads.asks(prompt, "")
        assert step is not None
        self.plane.take([DecodedFact(action_id="", action_type="kvflow.step", fact=step)], with_request=True)
        self.wait(2)
        self.plane.answered(step.workflow_id, step.agent)
        self.plane.threads.said(step.workflow_id, step.agent, answer)
        self.wait(1)
        return step.workflow_id

    def wait(self, seconds: float) -> None:
        for _ in range(round(4 * seconds)):
            self.clock.now_s += 0.25
            self.plane.expire()


def test_that_all_were_lost_sight_of_makes_nobody_immortal() -> None:
    clients = Silent()
    for _ in range(12):
        prompt = [*SYSTEM["a"], *text(40)]
        for _ in range(8):
            prompt = [*prompt, *text(70)]
            last = clients.ask(prompt, [])
    assert last in [each["workflow_id"] for each in clients.plane.view()]
    clients.wait(60)
    assert len(clients.plane) == 0


def test_who_never_says_that_workflows_end_teaches_it_by_silence() -> None:
    driver = Driver()
    for number in range(20):
        for _ in range(4):
            driver.ask(f"w{number}")
            driver.clock.now_s += 2.0
            driver.answer(f"w{number}")
        driver.clock.now_s += 3600.0
        driver.expire()
    again = [driver.plane.forecaster.survival.again("t", "coder", turns) for turns in (1, 2, 3, 4)]
    assert min(again[:3]) > 0.8
    assert again[3] < 0.3


def test_who_waits_for_a_tool_for_long_may_come_back() -> None:
    driver = Driver()
    for number in range(20):
        driver.ask(f"w{number}")
        driver.answer(f"w{number}")
        driver.tool(f"w{number}", "start", "approval")
        driver.clock.now_s += 3600.0
        driver.expire()
    assert len(driver.plane) == 0
    assert driver.plane.forecaster.survival.again("t", "coder", 1) > 0.8


def test_who_may_still_run_for_the_first_time_keeps_no_guess_alive() -> None:
    clients, foreseen = Silent(), False
    for number in range(20):
        said, names = text(60), "abc" if number == 0 else "ab"
        for name in names:
            answer = text(60)
            clients.ask([*SYSTEM[name], *said], answer)
            said = answer
        foreseen |= any(len(each["next_use"]) > len(each["steps_taken"]) for each in clients.plane.view())
    assert foreseen, "nobody expected who ran in the first workflow only"
    clients.wait(450)
    assert len(clients.plane) == 0


def test_an_agent_that_has_not_run_yet_fades_with_its_workflow() -> None:
    driver = Driver()

    def run(workflow: str, *agents: str) -> None:
        for agent in agents:
            driver.ask(workflow, agent)
            driver.clock.now_s += 2.0
            driver.answer(workflow, agent)
            driver.step_end(workflow, agent)

    for number in range(6):
        run(f"w{number}", "planner", "coder", "tester")
        driver.end(f"w{number}")
    run("dies", "planner", "coder")
    assert driver.claims["dies"]["tester"].probability > 0.9
    for _ in range(600):
        driver.clock.now_s += 1.0
        driver.expire()
    assert driver.claims["dies"]["tester"].probability < 0.1


def test_nothing_more_is_to_be_told_of_an_answer_of_which_nobody_tells() -> None:
    clients = Silent()
    step = clients.plane.threads.asks([*SYSTEM["a"], *text(40)], "")
    assert step is not None
    clients.plane.take([DecodedFact(action_id="", action_type="kvflow.step", fact=step)], with_request=True)
    clients.wait(1)
    clients.plane.answered(step.workflow_id, step.agent)
    workflow = clients.plane._workflows.get(step.workflow_id)
    assert workflow is not None
    assert not workflow.is_untold(clients.clock.now_s)
