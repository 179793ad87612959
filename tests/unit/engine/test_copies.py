"""What a full host gives up before it loses anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from kvflow.engine import Coordinator, PromptClaim, given_up_first, is_exclusive
from kvflow.engine.owners import Pin
from kvflow.policy import ServingCosts
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.load_table import Node


class Table:
    """Contexts on device and host, one of each workflow, behind a common fixed prompt."""

    def __init__(self) -> None:
        self.coordinator = Coordinator("cost", ServingCosts(load_token_s=1e-6))
        self.root = Node()
        self.fixed = Node(100, self.root)
        self.tails: dict[str, Node] = {}
        for workflow, due_s in {"soon": 1.0, "late": 50.0, "ended": 1.0}.items():
            self.expect(workflow, due_s)
            self.tails[workflow] = Node(100, self.fixed)
            claim = PromptClaim(workflow_id=workflow, workflow_type="t", agent="a")
            self.coordinator.tag(claim, [(self.tails[workflow], 200), (self.fixed, 100)], 100)
        self.coordinator.apply(WorkflowUpdate(workflow_id="ended", workflow_type="t", retired=True))

    def expect(self, workflow: str, due_s: float) -> None:
        claims = (ClaimPrediction(agent="a", steps=0, due_s=due_s),)
        self.coordinator.apply(WorkflowUpdate(workflow_id=workflow, workflow_type="t", claims=claims))

    def given_up(
        self,
        copies: Sequence[Node],
        leaves: Sequence[Node] = (),
        *,
        in_use: Node | None = None,
        copied: Node | None = None,
    ) -> list[Node]:
        """Clear everything that is given up, in its order."""
        return list(self._clear(copies, leaves, in_use, copied))

    def _clear(
        self, copies: Sequence[Node], leaves: Sequence[Node], in_use: Node | None, copied: Node | None
    ) -> Iterator[Node]:
        for node in given_up_first(
            self.coordinator,
            leaves,
            {id(node): node for node in reversed(copies)},
            order=self.coordinator.priority,
            droppable=lambda node: node.backuped and not node.evicted and node is not in_use,
            locked=lambda node: node.locked,
            copied=copied,
        ):
            yield node
            node.backuped = False


def test_copies_go_by_how_long_the_device_keeps_their_contexts() -> None:
    table = Table()
    soon, late, ended = table.tails.values()
    assert table.given_up([ended, late, soon, table.fixed]) == [soon, late, ended, table.fixed]


def test_two_that_wait_for_long_do_not_take_each_others_copies() -> None:
    table = Table()
    soon, late, _ = table.tails.values()
    table.expect("later", 90.0)
    later = table.tails["later"] = Node(100, table.fixed, backuped=False)
    claim = PromptClaim(workflow_id="later", workflow_type="t", agent="a")
    table.coordinator.tag(claim, [(later, 200), (table.fixed, 100)], 100)
    assert table.given_up([late, soon], copied=later) == [soon, late], "both stay on the device for longer"
    late.backuped, soon.backuped, later.backuped = False, True, True
    assert table.given_up([later, soon], copied=late) == [soon]


def test_contexts_that_requests_compute_with_come_first_and_whole() -> None:
    table = Table()
    late = table.tails["late"]
    end = Node(10, late, locked=True)
    table.coordinator.tag(
        PromptClaim(workflow_id="late", workflow_type="t", agent="a"),
        [(end, 210), (late, 200), (table.fixed, 100)],
        100,
    )
    late.locked = table.fixed.locked = True
    assert table.given_up([table.tails["soon"], end])[:2] == [end, late]


def test_what_is_above_a_copy_keeps_its_own() -> None:
    table = Table()
    soon, late, ended = table.tails.values()
    soon.evicted = True
    assert table.given_up([table.fixed, late, ended], in_use=late) == [ended]


def test_leaves_of_ended_workflows_go_before_any_copy() -> None:
    table = Table()
    soon, late, ended = table.tails.values()
    ended.evicted = late.evicted = True
    assert table.given_up([soon], [late, ended]) == [ended, soon], "what is still wanted is not given up"


@pytest.mark.parametrize("kept", ["unclaimed", "pinned"])
def test_what_nobody_claims_or_somebody_has_pinned_keeps_its_copy(kept: str) -> None:
    table = Table()
    node = table.tails["soon"]
    if kept == "unclaimed":
        node.owners = None
    else:
        assert node.owners is not None
        node.owners.pins["tenant", "host"] = Pin(until_s=100.0, priority=50, on_device=False)
    assert table.given_up([node]) == []


def test_a_context_is_worth_more_once_its_copy_is_gone() -> None:
    table = Table()
    node = table.tails["soon"]
    before = table.coordinator.rank(node)
    table.given_up([node])
    assert table.coordinator.rank(node) > before


def test_it_is_exclusive_where_a_chunk_is_a_small_part_of_the_device() -> None:
    assert is_exclusive("auto", 8192 * 24, 8192)
    assert not is_exclusive("auto", 8192 * 23, 8192)
    assert not is_exclusive("auto", 10**9, 0), "prompts are computed whole"
    assert is_exclusive("always", 1, 8192)
    assert not is_exclusive("never", 10**9, 1)


def test_what_has_left_a_tier_is_no_copy_and_is_forgotten() -> None:
    table = Table()
    soon, late, ended = table.tails.values()
    late.evicted = True
    copies = {id(node): node for node in (ended, late, soon)}
    first = next(
        given_up_first(
            table.coordinator,
            (),
            copies,
            order=table.coordinator.priority,
            droppable=lambda _: True,
            locked=lambda _: False,
        )
    )
    assert first is soon
    assert list(copies.values()) == [ended, soon]
