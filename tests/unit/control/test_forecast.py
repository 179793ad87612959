"""Forecasts of the control plane: when every context is used next, and whether at all."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvflow.config import Settings
from kvflow.control import ControlPlane
from kvflow.graph import END, AgentStepGraph, to_dict
from kvflow.hints import DecodedFact, StepFact, ToolFact
from kvflow.predict import ClaimPrediction, DurationModel


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Driver:
    """A client of the control plane that keeps what was sent last about every workflow."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.plane = ControlPlane(Settings(), self.clock)
        self.claims: dict[str, dict[str, ClaimPrediction]] = {}

    def ask(self, workflow: str, agent: str = "coder", **fields: object) -> None:
        fact = StepFact(workflow_id=workflow, workflow_type="t", agent=agent, **fields)
        self._take(fact, with_request=True)

    def answer(self, workflow: str, agent: str = "coder") -> None:
        self.plane.answered(workflow, agent)
        self.expire()

    def tool(self, workflow: str, event: str, tool: str = "bash", **fields: object) -> None:
        self._take(ToolFact(workflow_id=workflow, agent="coder", tool=tool, event=event, **fields))

    def step_end(self, workflow: str, agent: str, step_id: str | None = None) -> None:
        self._take(StepFact(workflow_id=workflow, workflow_type="t", agent=agent, step_id=step_id, event="end"))

    def end(self, workflow: str) -> None:
        self._take(StepFact(workflow_id=workflow, agent=END))

    def turn(self, workflow: str, tool_s: float, verb: str = "ls") -> None:
        """One call and one tool."""
        self.ask(workflow)
        self.clock.now_s += 2.0
        self.answer(workflow)
        self.tool(workflow, "start", verb=verb)
        self.clock.now_s += tool_s
        self.tool(workflow, "end", verb=verb)

    def expire(self) -> None:
        self._keep(self.plane.expire())

    def left_s(self, workflow: str, agent: str = "coder") -> float:
        due_s = self.claims[workflow][agent].due_s
        assert due_s is not None
        return due_s - self.clock.now_s

    def _take(self, fact: StepFact | ToolFact, *, with_request: bool = False) -> None:
        item = DecodedFact(action_id="", action_type="kvflow.step", fact=fact)
        self._keep(self.plane.take([item], with_request=with_request).updates)

    def _keep(self, updates: list) -> None:
        for update in updates:
            if not update.expected:
                self.claims[update.workflow_id] = {claim.agent: claim for claim in update.claims}


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_a_request_in_flight_counts_from_its_arrival_until_it_is_answered(driver: Driver) -> None:
    driver.ask("w")
    assert driver.claims["w"]["coder"].since_s == 100.0
    driver.clock.now_s += 3
    driver.answer("w")
    assert driver.claims["w"]["coder"].since_s is None
    driver.plane.answered("w", "coder")  # once
    assert driver.plane.expire() == []


def test_a_context_is_due_when_such_tool_calls_usually_end(driver: Driver) -> None:
    for index in range(40):
        driver.turn(f"old{index}", 30.0 if index % 2 else 0.5, verb="pytest" if index % 2 else "ls")
    left_s = {}
    for verb in ("pytest", "ls"):
        driver.ask(verb)
        driver.answer(verb)
        driver.tool(verb, "start", verb=verb)
        left_s[verb] = driver.left_s(verb)
    assert 15 < left_s["pytest"] < 60
    assert left_s["ls"] < 5


def test_until_a_tool_is_told_of_a_context_is_due_when_such_contexts_have_returned(driver: Driver) -> None:
    for _ in range(40):
        driver.turn("w", 0.1)
    driver.ask("w")
    driver.answer("w")
    assert driver.left_s("w") < 1


def test_what_is_overdue_is_expected_later_still(driver: Driver) -> None:
    for index in range(40):
        driver.turn(f"old{index}", 1.0)
    driver.ask("w")
    driver.answer("w")
    driver.tool("w", "start", verb="ls")
    at_once = driver.left_s("w")
    driver.clock.now_s += 60
    driver.expire()
    assert driver.left_s("w") > 4 * at_once


def test_what_the_client_expects_of_a_tool_counts_until_it_has_passed(driver: Driver) -> None:
    driver.ask("w")
    driver.answer("w")
    driver.tool("w", "start", expected_s=44.0)
    assert driver.left_s("w") == pytest.approx(44, abs=0.1)
    driver.clock.now_s += 45.0
    driver.expire()
    assert driver.left_s("w") > 0


def test_a_parent_is_kept_while_its_sub_workflow_runs(driver: Driver) -> None:
    for index in range(20):
        driver.turn(f"old{index}", 1.0)
    for parent in ("waits", "alone"):
        driver.ask(parent)
        driver.answer(parent)
    driver.ask("child", agent="searcher", parent_workflow_id="waits")
    driver.clock.now_s += 300
    driver.ask("child", agent="searcher", parent_workflow_id="waits")
    driver.expire()
    assert driver.claims["waits"]["coder"].probability > driver.claims["alone"]["coder"].probability


def test_who_asks_again_after_a_request_was_given_up_has_not_returned(driver: Driver) -> None:
    """SDKs that give up repeat a request at once; contexts are not used again sooner, or more often, by that."""
    for number in range(20):
        driver.ask(f"w{number}")
        driver.answer(f"w{number}")
        driver.clock.now_s += 30.0
        for _ in range(3):
            driver.ask(f"w{number}")
            driver.clock.now_s += 60.0
            driver.plane.answered(f"w{number}", "coder", given_up=True)
            driver.clock.now_s += 0.5
        driver.ask(f"w{number}")
        driver.answer(f"w{number}")
        driver.end(f"w{number}")
    driver.ask("now")
    driver.answer("now")
    assert driver.left_s("now") == pytest.approx(30.0, rel=0.2)
    driver.clock.now_s += 30.0
    driver.ask("now")
    driver.answer("now")
    assert driver.claims["now"]["coder"].probability < 0.5, "twice is all"


def test_a_declared_graph_knows_who_never_returns(driver: Driver) -> None:
    graph = AgentStepGraph("t").chain("START", "plan", "coder", "END")
    driver.plane.graphs.declare("t", to_dict(graph))
    driver.ask("w", agent="plan")
    driver.answer("w", agent="plan")
    driver.ask("w", agent="coder")
    assert "plan" not in driver.claims["w"]


PAUSE_S = 3.0


def play(driver: Driver, workflow: str, *steps: tuple[str, float]) -> None:
    """Agents ask one after the other, and say when their step ends."""
    for agent, seconds in steps:
        driver.ask(workflow, agent=agent)
        driver.clock.now_s += seconds
        driver.answer(workflow, agent=agent)
        driver.step_end(workflow, agent)
        driver.clock.now_s += PAUSE_S


def fading(driver: Driver, agent: str) -> list[float]:
    """How likely an agent's next use is while nobody says anything."""
    found = []
    for _ in range(300):
        driver.clock.now_s += 2.0
        driver.expire()
        claim = driver.claims["w"].get(agent)
        found.append(claim.probability if claim is not None else 0.0)
    return found


@pytest.mark.parametrize("declared", [False, True])
def test_what_has_faded_in_silence_stays_so(driver: Driver, declared: bool) -> None:
    if declared:
        graph = AgentStepGraph("t").chain("START", "planner", "coder")
        graph.edge("coder", "planner", probability=0.9)
        graph.edge("coder", "END", probability=0.1)
        driver.plane.graphs.declare("t", to_dict(graph))
    for index in range(20):
        play(driver, f"old{index}", *[("planner", 1.0), ("coder", 1.0)] * 6)
        driver.end(f"old{index}")
    play(driver, "w", *[("planner", 1.0), ("coder", 1.0)] * 2)
    probabilities = [driver.claims["w"]["planner"].probability, *fading(driver, "planner")]
    assert probabilities[0] > 0.3
    assert probabilities[-1] < 0.05
    assert all(later <= earlier + 0.02 for earlier, later in pairwise(probabilities))


def test_a_long_step_delays_what_follows_it_and_not_itself(driver: Driver) -> None:
    graph = AgentStepGraph("t").chain("START", "a", "b", "c", "END")
    driver.plane.graphs.declare("t", to_dict(graph))
    for index in range(20):
        play(driver, f"old{index}", ("a", 1.0), ("b", 60.0), ("c", 1.0))
        driver.end(f"old{index}")
    driver.ask("w", agent="a")
    assert driver.left_s("w", "b") < 5
    assert driver.left_s("w", "c") > 20


def test_a_long_step_delays_nobody_who_runs_before_it(driver: Driver) -> None:
    graph = AgentStepGraph("t").chain("START", "a", "b", "c", "d", "END")
    driver.plane.graphs.declare("t", to_dict(graph))
    for index in range(20):
        play(driver, f"old{index}", ("a", 1.0), ("b", 1.0), ("c", 1.0), ("d", 100.0))
        driver.end(f"old{index}")
    driver.ask("w", agent="a")
    assert driver.left_s("w", "c") < 20, "after two short steps and what lies between"


def test_a_gap_that_is_always_there_is_no_sign_of_death(driver: Driver) -> None:
    """Between two agents the client does something else for a minute, of which nobody is told."""
    graph = AgentStepGraph("t").chain("START", "planner", "coder", "END")
    driver.plane.graphs.declare("t", to_dict(graph))
    for index in range(20):
        play(driver, f"old{index}", ("planner", 1.0))
        driver.clock.now_s += 60.0
        play(driver, f"old{index}", ("coder", 1.0))
        driver.end(f"old{index}")
    play(driver, "w", ("planner", 1.0))
    driver.clock.now_s += 50.0
    driver.expire()
    assert driver.claims["w"]["coder"].probability > 0.9
    driver.clock.now_s += 300.0
    driver.expire()
    assert driver.claims["w"]["coder"].probability < 0.7


def test_a_step_that_has_begun_and_asked_for_nothing_is_about_to(driver: Driver) -> None:
    graph = AgentStepGraph("t").chain("START", "planner", "coder", "END")
    driver.plane.graphs.declare("t", to_dict(graph))
    play(driver, "w", ("planner", 1.0))
    driver._take(StepFact(workflow_id="w", workflow_type="t", agent="coder", step_id="s"))
    assert driver.claims["w"]["coder"].probability > 0.9
    assert driver.left_s("w", "coder") < 1.0


def test_what_lies_between_steps_delays_what_comes_later(driver: Driver) -> None:
    graph = AgentStepGraph("t").chain("START", "a", "b", "c", "d", "END")
    driver.plane.graphs.declare("t", to_dict(graph))
    for index in range(20):
        for agent in "abcd":
            play(driver, f"old{index}", (agent, 1.0))
            driver.clock.now_s += 10.0
        driver.end(f"old{index}")
    driver.ask("w", agent="a")
    assert driver.left_s("w", "b") == pytest.approx(1.0, abs=1.0)
    assert driver.left_s("w", "d") == pytest.approx(1.0 + 2 * (11.0 + PAUSE_S), abs=3.0)


def test_whether_there_are_tools_is_asked_once_a_prediction(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    original = DurationModel.of
    agents = [f"a{n}" for n in range(30)]
    driver.plane.graphs.declare("t", to_dict(AgentStepGraph("t").chain("START", "coder", *agents, "END")))
    driver.ask("w")
    driver.answer("w")
    monkeypatch.setattr(DurationModel, "of", lambda *args, **more: asked.append(args) or original(*args, **more))
    for call in range(20):
        driver.tool("w", "start", call_id=str(call))
    assert len(asked) < 20 * 20 * 5, "and not once for every agent"


def test_what_an_agent_did_before_says_nothing_of_the_request_it_makes_now(driver: Driver) -> None:
    for index in range(30):
        for _ in range(3):
            driver.turn(f"old{index}", tool_s=1.0)
        driver.ask(f"old{index}")
        driver.answer(f"old{index}")
        driver.end(f"old{index}")
    for _ in range(3):
        driver.turn("w", tool_s=1.0)
    driver.ask("w")
    assert driver.claims["w"]["coder"].probability < 0.3, "the fourth is the last one, though a tool came before it"


def test_what_follows_a_step_that_has_ended_is_due_now(driver: Driver) -> None:
    graph = AgentStepGraph("t").chain("START", "a", "b", "END")
    driver.plane.graphs.declare("t", to_dict(graph))
    for index in range(20):
        play(driver, f"old{index}", ("a", 60.0), ("b", 1.0))
        driver.end(f"old{index}")
    play(driver, "w", ("a", 60.0))
    assert driver.left_s("w", "b") < 5


def test_a_tool_that_takes_as_long_as_was_said_makes_nobody_doubt(driver: Driver) -> None:
    for index in range(40):
        driver.turn(f"old{index}", 1.0)
    driver.ask("w")
    driver.answer("w")
    driver.tool("w", "start", verb="ls", expected_s=600.0)
    driver.clock.now_s += 60.0
    driver.ask("w", agent="another")
    assert driver.claims["w"]["coder"].probability > 0.5
    assert driver.left_s("w") == pytest.approx(540, abs=0.1)


def test_a_tool_that_goes_on_after_its_step_is_waited_for(driver: Driver) -> None:
    for index in range(10):
        play(driver, f"old{index}", *[("coder", 1.0)] * 5)
        driver.end(f"old{index}")
    play(driver, "w", *[("coder", 1.0)] * 3)
    driver.tool("w", "start", expected_s=600.0)
    assert driver.left_s("w") == pytest.approx(600, abs=0.1)
    driver.clock.now_s += 300.0
    driver.expire()
    assert driver.left_s("w") == pytest.approx(300, abs=0.1)


def test_tools_of_an_agent_that_has_not_run_teach_how_long_they_take(driver: Driver) -> None:
    for index in range(40):
        driver.ask(f"w{index}", agent="another")
        driver.tool(f"w{index}", "start", verb="slow")
        driver.clock.now_s += 100.0
        driver.tool(f"w{index}", "end", verb="slow")
    driver.ask("w")
    driver.answer("w")
    driver.tool("w", "start", verb="slow")
    assert 50 < driver.left_s("w") < 200


def test_a_tool_whose_step_goes_on_teaches_how_long_it_took(driver: Driver) -> None:
    for index in range(40):
        driver.ask(f"w{index}", step_id="s")
        driver.answer(f"w{index}")
        driver.tool(f"w{index}", "start", verb="slow", step_id="s")
        driver.clock.now_s += 100.0
        driver.ask(f"w{index}", step_id="s")
        driver.tool(f"w{index}", "end", verb="slow", step_id="s")
    assert driver.plane.forecaster.tools.of("bash", "slow").residual_s(0.0) == pytest.approx(100, rel=0.3)


def test_a_workflow_to_come_is_expected_later_the_longer_it_fails_to(driver: Driver) -> None:
    play(driver, "before", ("coder", 1.0))
    expected = []
    for workflow in ("one", "two"):
        driver.clock.now_s += 4.0
        play(driver, workflow, ("coder", 1.0))
        driver.end(workflow)
    for _ in range(100):
        driver.clock.now_s += 0.5
        expected += [update for update in driver.plane.expire() if update.expected]
        due_s = expected[-1].claims[0].due_s if expected else None
        assert due_s is None or due_s > driver.clock.now_s - 0.5
    assert expected
    last_s = expected[-1].claims[0].due_s
    assert last_s is not None
    assert last_s > driver.clock.now_s + 5
