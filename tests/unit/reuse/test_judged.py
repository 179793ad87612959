"""What reuse does with slots that the quality gate, or applications, have judged."""

from __future__ import annotations

from dataclasses import replace

from kvflow.reuse import Mode, Plan, SlotKey
from kvflow.reuse.gate import Door
from tests.unit.reuse.toy import (
    OTHER,
    QUESTION,
    ROLE,
    TEXT,
    critics,
    knowing,
    made,
    prompt,
    serve,
    taught,
    words,
)


def test_slots_are_computed_once_applications_complain() -> None:
    reuse = knowing(TEXT)

    def asked(workflow: int) -> Plan:
        found = prompt("critic", ROLE, ("document", TEXT))
        return reuse.plan(replace(found, workflow_id=f"w{workflow}"), 0)

    plans: list[Plan] = []
    closed: list[SlotKey] = []
    while not closed:
        plans.append(asked(len(plans)))
        closed = reuse.feedback(f"w{len(plans) - 1}", 0.0 if plans[-1].grafts else 1.0)
        assert len(plans) < 200
    assert closed == [("", "review", "document")]
    assert {plan.reason for plan in plans} == {"rotate: 1 runs", "for other workflows to be compared with"}
    assert asked(1000).grafts == ()
    (slot,) = reuse.report()
    assert (slot["door"], slot["outcome_computed"]) == ("closed", 1.0)


def test_an_outcome_of_a_program_is_one_of_all_its_workflows() -> None:
    reuse = knowing(TEXT)
    asked = prompt("critic", ROLE, ("document", TEXT))
    for workflow_id in ("inner 1", "inner 2"):
        reuse.plan(replace(asked, workflow_id=workflow_id, program_id="outer"), 0)
    reuse.feedback("outer", 0.5)
    assert reuse.outcomes.means(("", "review", "document"))["outcome_reused"] == 0.5
    compared = {program for program in map(str, range(40)) if reuse.outcomes.compares(program, "review")}
    for program in map(str, range(40)):
        plan = reuse.plan(replace(asked, workflow_id="inner", program_id=program), 0)
        assert (plan.grafts == ()) is (program in compared), "all of a program, or nothing"
    assert 0 < len(compared) < 40


def test_only_slots_that_something_was_put_into_are_judged() -> None:
    reuse = taught(TEXT, OTHER)
    unseen = ("second", OTHER)
    asked = prompt("critic", ROLE, ("document", TEXT), words(40, 40), unseen, mode=Mode.KVCOMM)
    plan = reuse.plan(replace(asked, workflow_id="w"), 0)
    assert (plan.grafts, plan.slots) == ((), ()), "what stands before a lesson is computed"
    asked = prompt("critic", unseen, ROLE, ("document", TEXT), mode=Mode.KVCOMM)
    plan = reuse.plan(replace(asked, workflow_id="w"), 0)
    assert plan.slots == (("", "review", "document"),)
    reuse.feedback("w", 0.5)
    outcomes = {state["slot"]: state["outcome_reused"] for state in reuse.report()}
    assert outcomes == {"document": 0.5, "second": None}


def test_prompts_computed_for_comparison_teach_as_others_do() -> None:
    reuse = knowing(TEXT)
    reuse.outcomes.served("w", [("", "review", "document")], [("", "review", "document")])
    reuse.feedback("w", 1.0)
    compared = next(name for name in map(str, range(100)) if reuse.outcomes.compares(name, "review"))
    plan, _ = serve(reuse, replace(critics(TEXT), workflow_id=compared))
    assert plan.reason == "for other workflows to be compared with"
    assert [lesson.reason for lesson in plan.lessons] == ["few anchors"]
    assert reuse.counters.learned == 1


def test_a_slot_on_trial_does_not_close_those_that_are_open() -> None:
    reuse = made()
    serve(reuse, prompt("planner", words(20, 10), ("a", TEXT), ("b", OTHER)))
    reuse.gate.door(("", "review", "a"))
    reuse.gate.close(("", "review", "a"))
    asked = prompt("critic", words(22, 33), ("a", TEXT), ("b", OTHER), QUESTION)
    cached_tokens = 33 + len(TEXT)
    while reuse.gate.door(("", "review", "a")) is not Door.TRIAL:
        pass
    assert set(reuse.plan(asked, cached_tokens).slots) == {("", "review", "b")}, "nothing of the other is at stake"
    assert reuse.plan(asked, 0).grafts == ()


def test_slots_are_tried_one_at_a_time() -> None:
    reuse = made()
    serve(reuse, prompt("planner", words(20, 10), ("a", TEXT), ("b", OTHER)))
    a, b = ("", "review", "a"), ("", "review", "b")
    for slot in (a, b, b):  # the second has failed before
        reuse.gate.door(slot)
        reuse.gate.close(slot)
        while reuse.gate.door(slot) is not Door.TRIAL:
            pass
    asked = prompt("critic", words(22, 33), ("a", TEXT), ("b", OTHER), QUESTION)
    assert reuse.plan(asked, 0).check == (a,), "the one that rests for a shorter time"


def test_what_one_tenant_sees_closes_nothing_for_another() -> None:
    reuse = made()
    for namespace in ("a", "b"):
        serve(reuse, prompt("planner", words(20, 10), ("document", TEXT), namespace=namespace))
    reuse.gate.close(("a", "review", "document"))
    reuse.distrust(("a", "review", "document"))
    asked = [prompt("critic", ROLE, ("document", TEXT), namespace=namespace) for namespace in ("a", "b")]
    assert [bool(reuse.plan(one, 0).grafts) for one in asked] == [False, True]


def test_workflows_that_are_computed_for_other_reasons_are_not_compared_with() -> None:
    """As texts longer than all examples are: whether they succeed says nothing of the others."""
    reuse = knowing(TEXT)
    asked = prompt("critic", ROLE, ("document", TEXT), mode=Mode.KVCOMM)
    assert reuse.plan(replace(asked, workflow_id="w"), 0).reason == "few anchors"
    reuse.feedback("w", 0.0)
    assert reuse.outcomes.means(("", "review", "document"))["outcome_computed"] is None
