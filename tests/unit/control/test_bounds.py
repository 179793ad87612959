"""What large or hostile programs may take of others: claims, places in the table, generations, time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvflow.config import Settings
from kvflow.control import ControlPlane
from kvflow.control import plane as control
from kvflow.control.forecast import Forecaster
from kvflow.control.workflow import Workflow
from kvflow.graph import END, AgentStepGraph, to_dict
from kvflow.hints import Status
from kvflow.predict import ClaimPrediction
from tests.unit.control.test_plane import Clock, ask, clock, pinned, plane, step, steps_of, take, tool

__all__ = ["clock", "plane"]

AGENTS = [f"a{number:03}" for number in range(256)]


def workflow_ids(plane: ControlPlane) -> list[str]:
    return [workflow.workflow_id for workflow in plane._workflows]


def claims_sent(plane: ControlPlane) -> int:
    return sum(len(workflow.sent.claims) for workflow in plane._workflows if workflow.sent is not None)


def test_of_a_large_graph_those_who_hold_something_and_the_soonest_are_predicted(plane: ControlPlane) -> None:
    ring = AgentStepGraph("review").chain("START", *AGENTS, "END").edge(AGENTS[-1], AGENTS[0])
    plane.graphs.declare("review", to_dict(ring))
    ask(plane, AGENTS[0], step_id="0")
    plane.answered("w", AGENTS[0])
    take(plane, step(AGENTS[0], step_id="0", event="end"))
    update = ask(plane, AGENTS[100], step_id="1")
    assert steps_of(update).keys() == {AGENTS[0], AGENTS[100], *AGENTS[1:33], *AGENTS[101:133]}
    assert steps_of(update)[AGENTS[0]] == 156, "it has a context, however late it comes"
    take(plane, step(AGENTS[50], step_id="2"), step(AGENTS[50], step_id="2", event="end"))
    _, [update] = take(plane, tool("start", agent=AGENTS[50]))
    assert pinned(update) == {AGENTS[50]}
    assert len(update.claims) == 64 + 3


def test_of_the_workflow_that_comes_next_the_soonest_are_announced(plane: ControlPlane) -> None:
    plane.graphs.declare("review", to_dict(AgentStepGraph("review").chain("START", *AGENTS, "END")))
    announced = []
    for number in range(4):
        _, updates = take(plane, step(AGENTS[0], f"w{number}"), with_request=True)
        announced += [update for update in updates if update.expected]
        plane.answered(f"w{number}", AGENTS[0])
    assert announced
    assert steps_of(announced[-1]).keys() == {*AGENTS[:64]}


def test_claims_of_all_workflows_are_bounded_and_contexts_come_first(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_MOST_CLAIMS", 40)
    for number in range(100):
        _, updates = take(plane, step("plan", f"w{number}"), with_request=True)
        [update] = [each for each in updates if each.workflow_id == f"w{number}"]
        assert steps_of(update).keys() >= {"plan"}
        assert claims_sent(plane) == plane._claims <= 40
        assert len(plane) >= min(number + 1, 25), "nobody is dropped for the sake of agents that hold nothing"
    assert workflow_ids(plane)[-1] == "w99"
    take(plane, *(step(END, name) for name in workflow_ids(plane)))
    assert plane._claims == 0
    assert len(ask(plane, "plan", "new").claims) == 4, "there is room again"


def test_predictions_are_made_again_a_few_at_a_time_and_everybody_has_a_turn(
    plane: ControlPlane, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"w{number}" for number in range(20)]
    take(plane, *(step("plan", name) for name in names))
    made: list[str] = []
    claims = Forecaster.claims

    def slow(self: Forecaster, workflow: Workflow, *args: object) -> tuple[ClaimPrediction, ...]:
        clock.now_s += 0.02
        made.append(workflow.workflow_id)
        return claims(self, workflow, *args)

    monkeypatch.setattr(Forecaster, "claims", slow)
    monkeypatch.setattr(control, "_revisit_s", lambda *_, **__: 0.0)  # all of them are overdue at any time
    clock.now_s = 100.0
    counts = []
    for _ in range(14):
        before = len(made)
        plane.expire()
        counts.append(len(made) - before)
    assert max(counts) == 3
    assert sorted(made) == sorted([*names, *names])


def test_a_client_that_has_a_type_for_each_workflow_pushes_nobody_out() -> None:
    plane = ControlPlane(Settings.model_validate({"intake": {"max_workflows": 20}}), Clock())
    for number in range(100):
        take(plane, step("a", "one"), step("a", "two"), step("a", f"w{number}", workflow_type=f"t{number}"))
    assert {"one", "two"} <= set(workflow_ids(plane))


def test_prompts_of_which_nobody_tells_push_no_others_out() -> None:
    plane = ControlPlane(Settings.model_validate({"intake": {"max_workflows": 20}}), Clock())
    told = {f"told {number}" for number in range(5)}
    take(plane, *(step("a", workflow) for workflow in sorted(told)))
    for number in range(100):
        take(plane, step("a", f"w{number}", workflow_type=f"inferred/{number}"))
    assert told <= set(workflow_ids(plane))


def test_where_nobody_has_many_those_at_work_stay() -> None:
    plane = ControlPlane(Settings.model_validate({"intake": {"max_workflows": 20}}), Clock())
    ask(plane, "a", "works", workflow_type="own")
    for number in range(100):
        take(plane, step("a", f"w{number}", workflow_type=f"t{number}"))
    assert workflow_ids(plane)[0] == "works"


@pytest.mark.parametrize("parents_first", [False, True])
def test_no_more_than_so_many_workflows_are_part_of_each_other(plane: ControlPlane, parents_first: bool) -> None:
    names = [f"w{number}" for number in range(100)]
    parts = [*pairwise(names)]
    for child, parent in reversed(parts) if parents_first else parts:
        [outcome], _ = take(plane, step("plan", child, parent_workflow_id=parent))
        assert outcome.status is Status.ACCEPTED
        workflow = plane._workflows.get(child)
        assert workflow is not None
        assert ("32 workflows" in outcome.reason) == (workflow.parent_id is None)
    take(plane, step("plan", names[-1]))
    assert max(len([*plane._workflows._with_parents(name)]) for name in names) == 32
    assert plane.program_of(names[0]) != names[-1]


def test_the_view_is_of_those_heard_of_last(plane: ControlPlane) -> None:
    take(plane, *(step("plan", f"w{number}") for number in range(5)), step("code", "w1"))
    assert [each["workflow_id"] for each in plane.view(2)] == ["w1", "w4"]
    assert plane.view(0) == []
    assert len(plane.view()) == 5
