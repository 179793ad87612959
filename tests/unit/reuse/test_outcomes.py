"""Reuse is judged by what applications say of it."""

from __future__ import annotations

import random

from kvflow.reuse import Outcomes, SlotKey

SLOT: SlotKey = ("", "fix", "document")


def report(outcomes: Outcomes, *, reused: float, computed: float, workflows: int = 200, seed: int = 1) -> int | None:
    """Report workflows that succeed so often; returns how many it took until reuse was stopped."""
    rng = random.Random(seed)
    for number in range(workflows):
        workflow = f"w{number}"
        spliced = not outcomes.compares(workflow, SLOT[1])
        outcomes.served(workflow, [SLOT], [SLOT] if spliced else [])
        success = float(rng.random() < (reused if spliced else computed))
        if outcomes.report(workflow, success):
            return number
    return None


def test_reuse_that_makes_workflows_fail_is_stopped() -> None:
    stopped = report(Outcomes(every=4), reused=0.3, computed=0.9)
    assert stopped is not None
    assert stopped < 60


def test_reuse_that_does_no_harm_goes_on() -> None:
    stopped = [report(Outcomes(every=4), reused=0.7, computed=0.7, seed=seed) for seed in range(20)]
    assert stopped.count(None) >= 17


def test_nothing_is_computed_for_comparison_before_outcomes_are_reported() -> None:
    outcomes = Outcomes(every=1)
    assert not outcomes.compares("w", "fix")
    outcomes.served("w", [SLOT], [SLOT])
    outcomes.report("w", 1.0)
    assert outcomes.compares("other", "fix")
    assert not outcomes.compares("other", "review")


def test_one_workflow_in_so_many_is_computed() -> None:
    outcomes = Outcomes(every=8)
    outcomes.served("w", [SLOT], [SLOT])
    outcomes.report("w", 1.0)
    compared = sum(outcomes.compares(f"workflow {n}", "fix") for n in range(4000))
    assert 400 < compared < 600


def test_a_workflow_counts_as_reused_if_any_of_its_prompts_was_spliced() -> None:
    outcomes = Outcomes()
    for spliced in (False, True, False):
        outcomes.served("w", [SLOT], [SLOT] if spliced else [])
    outcomes.report("w", 0.25)
    outcomes.served("v", [SLOT], [])
    outcomes.report("v", 0.75)
    assert outcomes.means(SLOT) == {"outcome_reused": 0.25, "outcome_computed": 0.75}


def test_an_outcome_of_an_unknown_workflow_changes_nothing() -> None:
    outcomes = Outcomes()
    assert outcomes.report("unknown", 0.0) == []
    assert outcomes.means(SLOT) == {"outcome_reused": None, "outcome_computed": None}


def test_names_from_clients_are_bounded() -> None:
    outcomes = Outcomes()
    for number in range(5000):
        slots = [("", "t", str(number))]
        outcomes.served(f"w{number}", slots, slots)
    assert outcomes.report("w0", 1.0) == []
    outcomes.report("w4999", 0.5)
    assert outcomes.means(("", "t", "4999"))["outcome_reused"] == 0.5


def test_slots_of_one_workflow_are_bounded() -> None:
    outcomes = Outcomes()
    for number in range(1000):
        slots = [("", "t", str(number))]
        outcomes.served("long", slots, slots)
    outcomes.report("long", 1.0)
    assert outcomes.means(("", "t", "0"))["outcome_reused"] is None
    assert outcomes.means(("", "t", "999"))["outcome_reused"] == 1.0


def test_one_verdict_is_not_repeated_by_what_was_spliced_before_it() -> None:
    outcomes = Outcomes()
    for number in range(8):
        outcomes.served(f"computed {number}", [SLOT], [])
        outcomes.report(f"computed {number}", 1.0)
    for number in range(100):
        outcomes.served(f"spliced {number}", [SLOT], [SLOT])
    verdicts = [outcomes.report(f"spliced {number}", 0.0) for number in range(100)]
    assert verdicts.count([SLOT]) == 1


def test_a_slot_into_which_nothing_was_put_is_not_judged_by_the_others_of_its_workflow() -> None:
    outcomes = Outcomes()
    other: SlotKey = ("fix", "answer")
    outcomes.served("w", [SLOT, other], [SLOT])
    outcomes.report("w", 0.25)
    assert outcomes.means(SLOT)["outcome_reused"] == 0.25
    assert outcomes.means(other) == {"outcome_reused": None, "outcome_computed": None}
