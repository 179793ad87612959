"""The control plane: facts in, predictions out, with time under our control."""

from __future__ import annotations

from typing import Any

import pytest

from kvflow.config import Settings
from kvflow.control import ControlPlane
from kvflow.errors import GraphError
from kvflow.graph import END, AgentStepGraph, to_dict
from kvflow.hints import DecodedFact, FeedbackFact, Outcome, Status, StepFact, ToolFact
from kvflow.predict import ClaimPrediction, WorkflowUpdate

GRAPH = AgentStepGraph("review").chain("START", "plan", "code", "test", "write", "END").edge("test", "code")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plane(clock: Clock) -> ControlPlane:
    plane = ControlPlane(Settings(), clock)
    plane.graphs.declare("review", to_dict(GRAPH))
    return plane


def take(
    plane: ControlPlane, *facts: StepFact | ToolFact, with_request: bool = False
) -> tuple[list[Outcome], list[WorkflowUpdate]]:
    items = [DecodedFact(action_id=str(i), action_type="kvflow.step", fact=fact) for i, fact in enumerate(facts)]
    intake = plane.take(items, with_request=with_request)
    return intake.outcomes, intake.updates


def ask(plane: ControlPlane, agent: str, workflow: str = "w", **fields: Any) -> WorkflowUpdate:
    """A request of an agent; returns what is predicted of its workflow then."""
    _, updates = take(plane, step(agent, workflow, **fields), with_request=True)
    return updates[-1]


def answer(plane: ControlPlane, agent: str, workflow: str = "w") -> list[WorkflowUpdate]:
    """A request of an agent has been answered; returns what is told of its workflow when nothing else is heard."""
    plane.answered(workflow, agent)
    return [update for update in plane.expire() if update.workflow_id == workflow]


def claim_of(update: WorkflowUpdate, agent: str) -> ClaimPrediction:
    return next(claim for claim in update.claims if claim.agent == agent)


def step(agent: str, workflow: str = "w", **fields: Any) -> StepFact:
    return StepFact(**{"workflow_id": workflow, "workflow_type": "review", "agent": agent, **fields})


def tool(event: str, agent: str = "code", **fields: Any) -> ToolFact:
    return ToolFact(**{"workflow_id": "w", "agent": agent, "tool": "pytest", "event": event, **fields})


def steps_of(update: WorkflowUpdate) -> dict[str, float | None]:
    return {claim.agent: claim.steps for claim in update.claims}


def pinned(update: WorkflowUpdate) -> set[str]:
    return {claim.agent for claim in update.claims if claim.pinned}


def test_a_step_predicts_every_agent_that_may_still_run(plane: ControlPlane) -> None:
    _, updates = take(plane, step("plan"), step("code"))
    assert steps_of(updates[-1]) == {"code": 0, "test": 1, "write": 2}


def test_an_unchanged_prediction_is_not_sent_again(plane: ControlPlane) -> None:
    take(plane, step("code", step_id="s1"))
    assert take(plane, step("code", step_id="s1"))[1] == []


def test_a_finished_step_brings_its_successor_closer(plane: ControlPlane) -> None:
    take(plane, step("code", step_id="s1"))
    _, [update] = take(plane, step("code", step_id="s1", event="end"))
    assert steps_of(update)["test"] == 1
    assert steps_of(update)["code"] == 2  # through test, round the loop


def test_an_agent_that_asks_no_model_has_run_once_its_step_has_ended(clock: Clock) -> None:
    plane = ControlPlane(Settings(), clock)
    graph = AgentStepGraph("review").chain("START", "plan", "retrieve", "write", "review", "END")
    plane.graphs.declare("review", to_dict(graph))
    for agent in graph.agents:
        if agent != "retrieve":
            ask(plane, agent, step_id=agent)
            plane.answered("w", agent)
        _, updates = take(plane, step(agent, step_id=agent, event="end"))
        if agent == "retrieve":
            assert steps_of(updates[-1]) == {"write": 1, "review": 2}
    assert updates[-1].claims == ()


def test_expected_steps_are_sent_when_asked_for(clock: Clock) -> None:
    plane = ControlPlane(Settings(eviction={"prediction": "expected"}), clock)
    graph = AgentStepGraph("review").chain("START", "a", "b", "END").edge("b", "b", probability=0.5)
    plane.graphs.declare("review", to_dict(graph))
    _, [update] = take(plane, step("a"))
    assert steps_of(update)["b"] == 1


def test_a_workflow_ends_with_its_end_fact_and_is_then_unknown(plane: ControlPlane) -> None:
    take(plane, step("write"))
    outcomes, [update] = take(plane, step(END, final=True))
    assert outcomes[0].status is Status.ACCEPTED
    assert update.retired
    assert len(plane) == 0
    assert take(plane, step(END, final=True))[0][0].status is Status.MISSING


def test_a_final_step_retires_when_it_ends(plane: ControlPlane) -> None:
    take(plane, step("write", final=True))
    assert len(plane) == 1
    _, updates = take(plane, step("write", event="end", final=True))
    assert updates[-1].retired


def test_a_final_step_that_failed_does_not_end_the_workflow(plane: ControlPlane) -> None:
    ask(plane, "write", step_id="7", final=True)
    assert not take(plane, step("write", event="end", step_id="7", final=False))[1][-1].retired
    ask(plane, "write", step_id="8", final=True)
    assert take(plane, step("write", event="end", step_id="8"))[1][-1].retired


def test_a_named_step_that_began_as_the_final_one_ends_the_workflow(plane: ControlPlane) -> None:
    ask(plane, "write", step_id="7", final=True)
    plane.answered("w", "write")
    ask(plane, "code", step_id="8")
    assert not take(plane, step("code", event="end", step_id="8"))[1][-1].retired
    assert take(plane, step("write", event="end", step_id="7"))[1][-1].retired


def test_late_facts_do_not_revive_an_ended_workflow(plane: ControlPlane) -> None:
    outcomes, updates = take(plane, step("code", event="end"), tool("start"), tool("end"))
    assert {outcome.status for outcome in outcomes} == {Status.MISSING}
    assert updates == []
    assert len(plane) == 0


def test_a_program_is_the_workflow_at_the_root_of_its_sub_workflows(plane: ControlPlane) -> None:
    take(plane, step("plan", "root"))
    take(plane, step("search", "child", parent_workflow_id="root"))
    take(plane, step("read", "grandchild", parent_workflow_id="child"))
    take(plane, step("a", "one", parent_workflow_id="other"), step("b", "other", parent_workflow_id="one"))
    assert plane.program_of("grandchild") == plane.program_of("root") == "root"
    assert plane.program_of("unheard of") == "unheard of"
    assert plane.program_of("one") == plane.program_of("other") == "other"


def test_an_idle_workflow_is_taken_for_dead_but_a_living_child_keeps_its_parent(
    plane: ControlPlane, clock: Clock
) -> None:
    take(plane, step("plan", "parent"), step("plan", "lonely"))
    clock.now_s = 1700
    take(plane, step("code", "child", parent_workflow_id="parent"))
    clock.now_s = 1900
    assert [update.workflow_id for update in plane.expire() if update.retired] == ["lonely"]
    assert len(plane) == 2


def test_a_workflow_that_waits_for_an_answer_is_not_idle_however_long_it_takes(
    plane: ControlPlane, clock: Clock
) -> None:
    take(plane, step("plan", "parent"))
    ask(plane, "code", "asks", parent_workflow_id="parent")
    clock.now_s = 10_000
    assert [update for update in plane.expire() if update.retired] == []
    plane.answered("asks", "code")
    clock.now_s = 20_000
    retired = [update.workflow_id for _ in range(2) for update in plane.expire() if update.retired]
    assert sorted(retired) == ["asks", "parent"]


def test_a_workflow_is_not_idle_while_a_tool_takes_no_longer_than_was_said(plane: ControlPlane, clock: Clock) -> None:
    take(plane, step("code"), tool("start", expected_s=7200.0))
    clock.now_s = 7199.0
    assert not any(update.retired for update in plane.expire())
    clock.now_s = 7201.0
    assert [update.retired for update in plane.expire() if not update.expected] == [True]


def test_too_many_workflows_drop_the_one_idle_for_longest(clock: Clock) -> None:
    plane = ControlPlane(Settings(intake={"max_workflows": 2}), clock)
    take(plane, step("a", "w1"), step("a", "w2"), step("b", "w1"))
    _, updates = take(plane, step("a", "w3"))
    assert [update.workflow_id for update in updates if update.retired] == ["w2"]


def test_too_many_agents_are_rejected_with_the_reason(clock: Clock) -> None:
    plane = ControlPlane(Settings(intake={"max_agents": 2}), clock)
    outcomes, _ = take(plane, step("a"), step("b"), step("c"))
    assert outcomes[-1].status is Status.REJECTED
    assert "max_agents" in outcomes[-1].reason


def test_without_a_graph_nothing_is_claimed_but_the_running_agent(clock: Clock) -> None:
    plane = ControlPlane(Settings(graph={"learn": False}), clock)
    _, [update] = take(plane, step("a", "w1"))
    assert steps_of(update) == {"a": 0}


def test_a_graph_is_learned_from_runs_and_used_for_the_next(clock: Clock) -> None:
    plane = ControlPlane(Settings(), clock)
    for run in range(3):
        for agent in ("a", "b", "c"):
            take(plane, step(agent, f"w{run}", step_id=agent), step(agent, f"w{run}", step_id=agent, event="end"))
        take(plane, step(END, f"w{run}", final=True))
    _, updates = take(plane, step("a", "new"))
    assert steps_of(updates[-1]) == {"a": 0, "b": 1, "c": 2}
    known = plane.graphs.find("review")
    assert known is not None
    assert not known.declared


def test_clients_that_name_no_steps_move_the_cursor_when_another_agent_has_run(plane: ControlPlane) -> None:
    take(plane, step("code"))
    take(plane, step("code"))
    take(plane, step("test"))
    _, [update] = take(plane, step("code"))
    assert steps_of(update)["test"] == 1
    assert plane.view()[0]["steps_taken"] == {"code": 2, "test": 1}


def test_a_malformed_graph_is_refused_and_the_old_one_stays(plane: ControlPlane) -> None:
    with pytest.raises(GraphError):
        plane.graphs.declare("review", {"agents": 3})
    known = plane.graphs.find("review")
    assert known is not None
    assert known.graph == GRAPH


def test_a_graph_that_is_declared_again_is_the_same_and_what_follows_from_it_is_kept(plane: ControlPlane) -> None:
    take(plane, step("plan"))
    known = plane.graphs.find("review")
    assert known is not None
    flow = known.graph.flow
    assert plane.graphs.declare("review", to_dict(GRAPH)) is known.graph
    again = plane.graphs.find("review")
    assert again is not None
    assert again.graph.flow is flow
    assert plane.graphs.declare("review", to_dict(GRAPH.copy().edge("code", "write"))) is not known.graph


def test_updates_survive_the_wire() -> None:
    update = WorkflowUpdate(workflow_id="w", workflow_type="t", retired=True)
    assert WorkflowUpdate.from_wire(update.to_wire()) == update


def test_an_agent_the_graph_does_not_have_still_holds_its_context_while_it_runs(plane: ControlPlane) -> None:
    take(plane, step("plan"))
    _, updates = take(plane, step("newcomer"))
    assert steps_of(updates[-1])["newcomer"] == 0
    assert plane.view()[0]["running"] == ["newcomer", "plan"]


def test_the_next_workflow_of_a_type_is_expected_from_the_second_one_on(plane: ControlPlane, clock: Clock) -> None:
    _, first = take(plane, step("plan", "w1"))
    assert not any(update.expected for update in first)
    take(plane, step("code", "w1"), step("test", "w1"), step("write", "w1"))
    _, updates = take(plane, step("plan", "w2"))
    [expected] = [update for update in updates if update.expected]
    assert steps_of(expected) == {"plan": 5, "code": 6, "test": 7, "write": 8}  # four steps later, and then its own
    take(plane, step(END, "w1", final=True), step(END, "w2", final=True))
    assert plane.expire() == []
    clock.now_s = 61
    [gone] = plane.expire()
    assert gone.expected
    assert gone.retired


def test_a_workflow_whose_last_request_was_answered_ends_everywhere(plane: ControlPlane) -> None:
    take(plane, step("write", final=True))
    assert [update.retired for update in plane.finish("w")] == [True]
    assert plane.finish("w") == []
    assert len(plane) == 0


def test_many_facts_at_once_send_each_workflow_once(plane: ControlPlane) -> None:
    facts = [step(agent, step_id=f"{agent}{turn}") for turn in range(10) for agent in ("code", "test")]
    assert len(take(plane, step("plan"), *facts)[1]) == 1
    _, updates = take(plane, step(END, final=True), step("plan"))
    assert [(update.workflow_id, update.retired) for update in updates if not update.expected] == [
        ("w", True),
        ("w", False),
    ]


def test_a_graph_declared_during_a_run_is_followed_from_then_on(clock: Clock) -> None:
    plane = ControlPlane(Settings(), clock)
    take(plane, step("plan", step_id="1"))
    plane.graphs.declare("review", to_dict(GRAPH))
    _, [update] = take(plane, step("plan", step_id="1", event="end"))
    assert steps_of(update)["code"] == 1
    longer = GRAPH.copy().chain("write", "publish", "END")
    plane.graphs.declare("review", to_dict(longer))
    _, updates = take(plane, step("code"))
    assert steps_of(updates[-1])["publish"] == 3


def test_runs_that_follow_another_declared_graph_stay_with_it(plane: ControlPlane) -> None:
    take(plane, step("plan", "old"))
    other = AgentStepGraph("review").chain("START", "plan", "search", "write", "END")
    plane.graphs.declare("review", to_dict(other))
    _, updates = take(plane, step("code", "old"))
    assert steps_of(updates[-1])["test"] == 1
    _, updates = take(plane, step("plan", "new"))
    assert steps_of(updates[-1])["search"] == 1


def test_the_view_tells_when_each_context_is_used_next(plane: ControlPlane, clock: Clock) -> None:
    ask(plane, "code")
    view = plane.view()[0]["next_use"]
    assert view["code"] == {"probability": 1.0, "in_s": 0.0, "asked": True}
    plane.answered("w", "code")
    clock.now_s += 0.5
    view = plane.view()[0]["next_use"]
    assert set(view) >= {"code", "test", "write"}
    assert not view["code"]["asked"]
    assert view["write"]["in_s"] > 0
    clock.now_s += 10_000.0
    assert all(use["in_s"] == 0.0 for use in plane.view()[0]["next_use"].values())  # overdue, not negative


@pytest.mark.parametrize(("mode", "status", "passed_on"), [("rotate", "accepted", 1), ("off", "unsupported", 0)])
def test_outcomes_are_for_reuse(mode: str, status: str, passed_on: int) -> None:
    plane = ControlPlane(Settings.model_validate({"reuse": {"mode": mode}}), lambda: 0.0)
    fact = FeedbackFact(workflow_id="over", outcome=0.5)
    intake = plane.take([DecodedFact(action_id="a", action_type="kvflow.feedback", fact=fact)])
    assert [outcome.status for outcome in intake.outcomes] == [status]
    assert intake.feedback == [("over", 0.5)] * passed_on
    assert plane.outcome_counts["kvflow.feedback", status] == 1


def test_a_workflow_is_its_programs_tenants_or_else_of_the_first_that_a_step_of_it_names(plane: ControlPlane) -> None:
    take(plane, StepFact(workflow_id="w", workflow_type="review", agent="plan"))
    assert plane.tenant_of("w") == ""
    take(plane, StepFact(workflow_id="w", workflow_type="review", agent="code", tenant="one"))
    take(plane, StepFact(workflow_id="w", workflow_type="review", agent="test"))
    take(plane, StepFact(workflow_id="child", workflow_type="review", agent="plan", parent_workflow_id="w"))
    assert (plane.tenant_of("w"), plane.tenant_of("child"), plane.tenant_of("nobody")) == ("one", "one", "")


def test_a_workflow_that_calls_itself_its_parent_has_none(plane: ControlPlane, clock: Clock) -> None:
    take(plane, step("plan", "w", parent_workflow_id="w"))
    clock.now_s += 10 * plane._settings.intake.workflow_idle_s
    plane.expire()
    assert len(plane) == 0


def test_workflows_that_call_each_other_their_parent_expire(plane: ControlPlane, clock: Clock) -> None:
    for name, parent in ("a", "b"), ("b", "c"), ("c", "a"):
        take(plane, step("plan", name, parent_workflow_id=parent))
    for _ in range(3):
        clock.now_s += 10 * plane._settings.intake.workflow_idle_s
        plane.expire()
    assert len(plane) == 0
    assert plane._workflows._children == {}


def test_a_silent_workflow_is_predicted_ever_more_rarely(plane: ControlPlane, clock: Clock) -> None:
    take(plane, *(step("plan", f"w{n}") for n in range(3)), step("test", "w0"))
    sent = []
    for _ in range(3):
        count = 0
        for _ in range(400):
            clock.now_s += 0.25
            count += len(plane.expire())
        sent.append(count)
    assert sent[2] < sent[1] < 3 * 30, "two a workflow and second, otherwise"


def test_actions_that_nobody_knows_are_counted_together(plane: ControlPlane) -> None:
    outcomes = [Outcome(action_id="", action_type=f"kvflow.{name}", status=Status.UNSUPPORTED) for name in "abc"]
    plane.count(outcomes)
    assert plane.outcome_counts == {("other", Status.UNSUPPORTED): 3}
