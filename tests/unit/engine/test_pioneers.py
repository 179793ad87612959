"""Requests that share a fixed prompt which is not cached: the first computes it, the others wait for that."""

from __future__ import annotations

from kvflow.engine import Programs, PromptClaim
from kvflow.policy import ProgramAdmission, ServingCosts
from tests.unit.engine.test_claims import FakeNode
from tests.unit.engine.test_programs import Table, sibling


def test_who_shares_a_prompt_that_another_request_computes_waits_until_it_is_there() -> None:
    table = Table()
    keys = [sibling(table, name) for name in "abc"]
    assert table.allowed(*keys) == ["a"]
    table.programs.started("a")
    assert table.allowed("b", "c") == []
    node = FakeNode(key=range(6_000))
    claim = PromptClaim(workflow_id="a", workflow_type="t", agent="a")
    table.coordinator.tag(claim, [(FakeNode(key=range(1_000), parent=node), 6_000), (node, 5_000)], 5_000)
    assert table.allowed("b", "c") == ["b", "c"]


def test_a_prompt_of_several_chunks_is_waited_for_until_the_last_of_them() -> None:
    table = Table()
    keys = [sibling(table, name) for name in "abc"]
    assert table.allowed(*keys) == ["a"]
    table.programs.started("a")
    claim = PromptClaim(workflow_id="a", workflow_type="t", agent="a")
    first = FakeNode(key=range(2_000))
    table.coordinator.tag(claim, [(first, 2_000)], 5_000)
    assert table.allowed("b", "c") == []
    second = FakeNode(key=range(2_990), parent=first)
    table.coordinator.tag(claim, [(second, 4_990), (first, 2_000)], 5_000, first=False)
    assert table.allowed("b", "c") == ["b", "c"], "what is missing of the last page does not count"


def test_who_brings_another_prompt_for_the_same_role_does_not_wait_for_its_pioneer() -> None:
    table = Table()
    keys = [sibling(table, name, digest=digest) for name, digest in (("a", 1), ("b", 2), ("c", 2))]
    assert table.allowed(*keys) == ["a", "b"]


def test_a_pioneer_that_gives_up_is_followed_by_the_next_one() -> None:
    table = Table()
    keys = [sibling(table, name) for name in "ab"]
    table.allowed(*keys)
    table.programs.started("a")
    assert table.allowed("b") == []
    table.programs.left("a", 0)
    assert table.allowed("b") == ["b"]


def test_nobody_waits_for_a_prompt_of_unknown_length() -> None:
    table = Table()
    keys = [sibling(table, name, fixed_tokens=None) for name in "abc"]
    assert table.allowed(*keys) == ["a", "b", "c"]


def losing() -> tuple[Table, list[FakeNode]]:
    """A table whose cache has lost some nodes, and the list of these."""
    table, gone = Table(), [FakeNode()]
    table.programs = Programs(
        table.coordinator.claims, ProgramAdmission(ServingCosts()), cached=lambda node: node not in gone
    )
    return table, gone


def test_a_few_lost_tokens_are_computed_side_by_side() -> None:
    table, gone = losing()
    body = FakeNode(key=range(4_992), parent=FakeNode(key=range(0)))
    tip = FakeNode(key=range(64), parent=body)
    tail = FakeNode(key=range(900), parent=tip)
    key = sibling(table, "first", 5_056, digest=7)
    assert table.allowed(key) == [key]
    table.programs.started(key)
    claim = PromptClaim(workflow_id="first", workflow_type="t", agent="a", fixed_tokens=5_056)
    table.coordinator.tag(claim, [(tail, 5_956), (tip, 5_056), (body, 4_992)], 5_056, fixed_digest=7)
    table.programs.left(key, 10)
    keys = [sibling(table, name, 5_056, digest=7) for name in "bc"]
    gone[:] = [tip, tail]
    assert table.allowed(*keys) == ["b", "c"]
    gone[:] = [tip, tail, body]
    assert table.allowed(*keys) == ["b"]


def test_what_prompts_have_shared_behind_a_declared_one_is_not_waited_for() -> None:
    table, gone = losing()
    fixed = FakeNode(key=range(5_000), parent=FakeNode(key=range(0)))
    shared = FakeNode(key=range(2_000), parent=fixed)
    for name in ("first", "second"):
        key = sibling(table, name, digest=7)
        table.programs.started(key)
        claim = PromptClaim(workflow_id=name, workflow_type="t", agent="a", fixed_tokens=5_000)
        tail = FakeNode(key=range(100), parent=shared)
        table.coordinator.tag(claim, [(tail, 7_100), (shared, 7_000), (fixed, 5_000)], 5_000, fixed_digest=7)
        table.programs.left(key, 10)
    assert table.coordinator.claims.role("t", "a").prompt.tokens == 7_000
    keys = [sibling(table, name, digest=7) for name in "bc"]
    gone[:] = [shared]
    assert table.allowed(*keys) == ["b", "c"]
    gone[:] = [shared, fixed]
    assert table.allowed(*keys) == ["b"]


def test_a_prompt_is_there_only_once_it_has_been_computed_itself() -> None:
    """Though its agent has computed another one since."""
    table = Table()
    first = sibling(table, "w", 5_000, digest=7)
    assert table.allowed(first) == [first]
    table.programs.started(first)
    again = PromptClaim(workflow_id="w", workflow_type="t", agent="a", fixed_tokens=5_000)
    table.programs.arrived("second", again, 6_000, [9])
    node = FakeNode(key=range(6_000), parent=FakeNode(key=range(0)))
    fixed = FakeNode(key=range(5_000), parent=node)
    table.coordinator.tag(again, [(fixed, 5_000)], 5_000, fixed_digest=7)
    third = sibling(table, "other", 5_000, digest=9)
    assert table.allowed("second", third) == ["second"], "both would compute the prompt with digest 9"
