"""Requests that share a fixed prompt which is not cached: the first computes it, the others wait for that."""

from __future__ import annotations

from kvflow.engine import PromptClaim
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
