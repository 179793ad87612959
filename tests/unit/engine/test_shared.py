"""What workflows share, what they leave behind, and what is learned from both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvflow.engine import Coordinator
from kvflow.engine.roles import Role
from kvflow.policy import EvictionClass
from tests.unit.engine.test_claims import FakeNode, announce, claim, class_of, retire


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator("steps")


def visit(coordinator: Coordinator, workflow: str, *path: FakeNode, fixed_tokens: int = 0) -> None:
    """A workflow's critic asks with a prompt of these nodes, 64 tokens each, first to last."""
    announce(coordinator, workflow, {"critic": 2})
    ends = [(node, 64 * number) for number, node in enumerate(path, start=1)]
    coordinator.tag(claim(workflow, "critic"), ends[::-1], fixed_tokens)


def test_what_two_workflows_use_belongs_to_the_agent_wherever_the_boundary_is(coordinator: Coordinator) -> None:
    task, first, second = FakeNode(), FakeNode(), FakeNode()
    visit(coordinator, "w1", task, first)
    retire(coordinator, "w1")
    assert class_of(coordinator, task) is EvictionClass.RETIRED
    visit(coordinator, "w2", task, second)
    retire(coordinator, "w2")
    announce(coordinator, "w3", {"critic": 2})
    assert class_of(coordinator, task) is EvictionClass.FIXED
    assert class_of(coordinator, second) < EvictionClass.TAIL


def test_what_a_sub_workflow_leaves_is_kept_longer_than_what_ended_programs_leave_until_its_own_ends(
    coordinator: Coordinator,
) -> None:
    left, foreign, unheard = FakeNode(), FakeNode(), FakeNode()
    announce(coordinator, "program", {"planner": 1})
    for workflow, program_id, node in (
        ("program/worker", "program", left),
        ("other", "other", foreign),
        ("lost/worker", "lost", unheard),
    ):
        announce(coordinator, workflow, {"critic": 2})
        coordinator.tag(replace(claim(workflow, "critic"), program_id=program_id), [(node, 64)], 0)
        retire(coordinator, workflow)
    assert class_of(coordinator, left) is EvictionClass.UNCLAIMED
    assert class_of(coordinator, foreign) is class_of(coordinator, unheard) is EvictionClass.RETIRED
    retire(coordinator, "program")
    assert class_of(coordinator, left) is EvictionClass.RETIRED


def test_what_was_everybodys_leaves_once_nobody_uses_it_any_more(coordinator: Coordinator) -> None:
    old, new = FakeNode(), FakeNode()
    for number in range(3):
        visit(coordinator, f"old{number}", old, fixed_tokens=64)
        retire(coordinator, f"old{number}")
    for number in range(20):
        visit(coordinator, f"new{number}", new, fixed_tokens=64)
        retire(coordinator, f"new{number}")
    announce(coordinator, "next", {"critic": 2})
    assert class_of(coordinator, new) is EvictionClass.FIXED
    assert class_of(coordinator, old) is EvictionClass.UNCLAIMED
    retire(coordinator, "next")
    assert class_of(coordinator, old) is EvictionClass.RETIRED


def test_a_part_that_every_fourth_prompt_uses_is_expected_a_fourth_as_often() -> None:
    coordinator = Coordinator("cost")
    always, tasks = FakeNode(), [FakeNode() for _ in range(4)]
    for number in range(40):
        visit(coordinator, f"w{number}", always, tasks[number % 4], fixed_tokens=64)
        retire(coordinator, f"w{number}")
    announce(coordinator, "next", {"critic": 2})
    everywhere = coordinator.standing(always)
    latest = coordinator.standing(tasks[39 % 4])
    assert latest.rate_hz == pytest.approx(everywhere.rate_hz / 4, rel=0.1)
    assert latest.fixed_steps is None
    assert everywhere.fixed_steps == 2


def test_what_ended_workflows_leave_is_kept_like_the_unclaimed_once_others_have_found_much_of_it(
    coordinator: Coordinator,
) -> None:
    """An agent that is started again and again on the same task: between two of them nobody claims the task."""
    for number in range(3):
        task = FakeNode()
        for again in range(2):
            visit(coordinator, f"w{number}.{again}", task)
            retire(coordinator, f"w{number}.{again}")
    alone = FakeNode()
    visit(coordinator, "w", alone)
    retire(coordinator, "w")
    assert class_of(coordinator, alone) is EvictionClass.UNCLAIMED


def role_of(coordinator: Coordinator, agent: str = "critic") -> Role:
    return coordinator.claims.role("review", agent)


def test_tails_that_were_evicted_before_anyone_could_extend_them_teach_nothing(coordinator: Coordinator) -> None:
    for _ in range(10):
        tail = FakeNode()
        visit(coordinator, "w", tail)
        tail.evicted, tail.owners = True, None
    role = role_of(coordinator)
    assert (role.tails_reused, role.tails_wasted) == (0, 0)
    assert role.reuses_tails


def test_tails_that_were_there_and_not_extended_are_waste(coordinator: Coordinator) -> None:
    for _ in range(10):
        visit(coordinator, "w", FakeNode())
    assert role_of(coordinator).tails_wasted == 9
    assert not role_of(coordinator).reuses_tails


def test_a_flush_teaches_nothing(coordinator: Coordinator) -> None:
    for number in range(5):
        visit(coordinator, f"w{number}", FakeNode())
    coordinator.flushed()
    for number in range(5):
        visit(coordinator, f"w{number}", FakeNode())
    assert role_of(coordinator).tails_wasted == 0
    coordinator.flushed()
    for number in range(5):
        retire(coordinator, f"w{number}")
    assert role_of(coordinator).ended_tokens == 0


def test_what_is_shared_counts_once_as_found_again(coordinator: Coordinator) -> None:
    task = FakeNode()
    for number in range(30):
        visit(coordinator, f"w{number}", task, *(FakeNode() for _ in range(9)))
        retire(coordinator, f"w{number}")
    assert role_of(coordinator).revived_tokens == len(task.key)
    assert role_of(coordinator).ends_for_good


def test_a_node_that_live_workflows_share_does_not_leave_like_what_has_ended(coordinator: Coordinator) -> None:
    old = FakeNode()
    for name in ("w1", "w2", "w3"):
        visit(coordinator, name, old)
    retire(coordinator, "w1")
    for number in range(20):
        visit(coordinator, f"new{number}", FakeNode())
    assert class_of(coordinator, old) is EvictionClass.UNCLAIMED
