"""Learning where the fixed part of a prompt ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvflow.engine.boundary import FixedPromptBoundary, common_prefix

ROLE = ("review", "critic")


def test_nothing_is_fixed_until_two_workflows_were_seen() -> None:
    boundary = FixedPromptBoundary()
    assert boundary.observe(ROLE, "w1", [1, 2, 3, 4]) == 0
    assert boundary.observe(ROLE, "w1", [1, 2, 3, 4, 5, 6]) == 0
    assert boundary.observe(ROLE, "w2", [1, 2, 3, 9, 9]) == 3


def test_a_growing_conversation_does_not_move_the_boundary() -> None:
    boundary = FixedPromptBoundary()
    boundary.observe(ROLE, "w1", [1, 2, 3, 4])
    boundary.observe(ROLE, "w2", [1, 2, 3, 9])
    assert boundary.observe(ROLE, "w2", [1, 2, 3, 9, 8, 7]) == 3


def test_roles_are_bounded_least_recently_used_first() -> None:
    boundary = FixedPromptBoundary()
    for index in range(257):
        for workflow in ("w1", "w2"):
            boundary.observe(("review", str(index)), workflow, [1, 2])
    assert boundary.observe(("review", "0"), "w3", [1, 2]) == 0
    assert boundary.observe(("review", "256"), "w3", [1, 2]) == 2


def test_roles_of_a_single_workflow_do_not_make_others_forgotten() -> None:
    boundary = FixedPromptBoundary()
    for workflow in ("w1", "w2"):
        boundary.observe(ROLE, workflow, [1, 2])
    for index in range(1000):
        boundary.observe(("inferred", str(index)), str(index), [1, 2])
    assert boundary.observe(ROLE, "w3", [1, 2]) == 2
    assert boundary.observe(("inferred", "999"), "again", [1, 2]) == 2
    assert boundary.observe(("inferred", "0"), "again", [1, 2]) == 0


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix_is_the_longest_one(left: list[int], right: list[int]) -> None:
    expected = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        expected += 1
    assert common_prefix(left, right) == expected
