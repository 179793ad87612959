"""Conversations of one agent side by side in one workflow: which of their contexts are kept."""

from __future__ import annotations

from itertools import count

import pytest

from kvflow.engine import Coordinator
from kvflow.policy import EvictionClass
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.test_claims import FakeNode, claim, class_of, coordinator, retire

__all__ = ["coordinator"]


class Talk:
    """A conversation of the agent `worker` of the workflow `w`; every prompt is a node longer."""

    _numbers = count()

    def __init__(self, coordinator: Coordinator, *begins_with: FakeNode, fixed_tokens: int = 0) -> None:
        self.coordinator = coordinator
        self.nodes = list(begins_with)
        self.digests = [id(node) for node in begins_with]
        self.fixed_tokens = fixed_tokens

    @property
    def tip(self) -> FakeNode:
        return self.nodes[-1]

    def ask(self, requests: int = 1, *, whole_unit: bool = True) -> None:
        """Go on by a node, of a whole unit or less; ``requests`` are under way then."""
        self.nodes.append(FakeNode(parent=self.nodes[-1] if self.nodes else None))
        self.digests += [next(self._numbers)] if whole_unit else []
        prediction = ClaimPrediction(agent="worker", steps=0, since_s=1.0, requests=requests)
        self.coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="review", claims=(prediction,)))
        self.enter()

    def enter(self, *, first: bool = True) -> None:
        """What it has asked with is in the tree; ``first`` before it is answered."""
        ends = [(node, 64 * (place + 1)) for place, node in enumerate(self.nodes)]
        self.coordinator.tag(claim("w", "worker"), ends[::-1], self.fixed_tokens, first=first, digests=self.digests)

    def evicted(self) -> None:
        """All of it has left the cache, and comes back under other nodes."""
        self.nodes = [FakeNode() for _ in self.nodes]
        for upper, lower in zip(self.nodes, self.nodes[1:], strict=False):
            lower.parent = upper

    @property
    def kept(self) -> bool:
        return class_of(self.coordinator, self.tip) not in (EvictionClass.SUPERSEDED, EvictionClass.UNCLAIMED)


def test_a_new_conversation_replaces_the_one_before(coordinator: Coordinator) -> None:
    first, second = Talk(coordinator), Talk(coordinator)
    first.ask()
    second.ask()
    assert not first.kept
    assert second.kept


@pytest.mark.parametrize("width", [2, 4])
def test_contexts_of_requests_under_way_at_once_are_all_kept(coordinator: Coordinator, width: int) -> None:
    talks = [Talk(coordinator) for _ in range(width)]
    for _ in range(3):
        for number, talk in enumerate(talks):
            talk.ask(requests=number + 1)
        for talk in reversed(talks):  # they are answered in another order
            talk.enter(first=False)
        assert all(talk.kept for talk in talks)


def test_no_more_are_kept_than_there_were_at_once(coordinator: Coordinator) -> None:
    talks = [Talk(coordinator) for _ in range(10)]
    for number, talk in enumerate(talks):
        talk.ask(requests=min(number + 1, 3))
    assert [talk.kept for talk in talks] == [False] * 7 + [True] * 3


@pytest.mark.parametrize("evicted", [False, True])
def test_one_that_goes_on_after_it_was_taken_for_replaced_is_kept_from_then_on(
    coordinator: Coordinator, evicted: bool
) -> None:
    first, second = Talk(coordinator), Talk(coordinator)
    first.ask()
    second.ask()
    if evicted:
        first.evicted()
    first.ask()
    assert second.kept
    for _ in range(3):
        second.ask()
        first.ask()
        assert first.kept
        assert second.kept


def test_an_answer_that_is_told_otherwise_afterwards_does_not_begin_another(coordinator: Coordinator) -> None:
    first, second = Talk(coordinator), Talk(coordinator)
    first.ask()
    second.ask(requests=2)
    said = FakeNode(parent=first.tip)
    first.nodes.append(said)
    first.enter(first=False)
    first.nodes.pop()  # what the model has thought is left out of its next prompt
    first.ask()
    assert class_of(coordinator, said) is EvictionClass.SUPERSEDED
    assert first.kept
    assert second.kept


def test_what_a_kept_one_has_in_common_with_a_replaced_one_is_kept(coordinator: Coordinator) -> None:
    task = FakeNode()
    talks = [Talk(coordinator, task) for _ in range(3)]
    for talk in talks:
        talk.ask(requests=2)
    assert [talk.kept for talk in talks] == [False, True, True]
    other = Talk(coordinator)
    other.ask()
    assert [talk.kept for talk in talks] == [False, False, True]
    assert class_of(coordinator, task) is not EvictionClass.SUPERSEDED


@pytest.mark.parametrize("fixed_tokens", [0, 64])
def test_prompts_that_differ_in_less_than_a_unit_are_told_apart(coordinator: Coordinator, fixed_tokens: int) -> None:
    begins = FakeNode()
    talks = [Talk(coordinator, begins, fixed_tokens=fixed_tokens) for _ in range(3)]
    for number, talk in enumerate(talks):
        talk.ask(requests=number + 1, whole_unit=False)
    for talk in talks:
        talk.enter(first=False)
    assert all(talk.kept for talk in talks)


def test_a_short_prompt_is_not_taken_for_what_was_asked_before_it(coordinator: Coordinator) -> None:
    long, short = Talk(coordinator), Talk(coordinator)
    long.ask(requests=2)
    short.ask(requests=2, whole_unit=False)
    long.ask()
    assert short.kept
    assert long.kept


def test_fewer_are_kept_once_there_are_fewer_at_once(coordinator: Coordinator) -> None:
    for number in range(16):
        Talk(coordinator).ask(requests=number + 1)
    talks = [Talk(coordinator) for _ in range(40)]
    for talk in talks:
        talk.ask(requests=2)
    assert [talk.kept for talk in talks] == [False] * 38 + [True] * 2


def test_each_is_the_less_likely_to_be_used_next_the_more_there_are(coordinator: Coordinator) -> None:
    rates = []
    for width in (1, 4):
        talks = [Talk(coordinator) for _ in range(width)]
        for talk in talks:
            talk.ask(requests=width)
        prediction = ClaimPrediction(agent="worker", steps=0, due_s=10.0)
        coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="review", claims=(prediction,)))
        tail_probability = coordinator.claims.role("review", "worker").tail_probability
        rates.append(coordinator.standing(talks[-1].tip).rate_hz / tail_probability)
    assert rates[1] == pytest.approx(rates[0] / 4)


def test_of_several_on_its_path_a_prompt_goes_on_from_the_deepest(coordinator: Coordinator) -> None:
    upper = Talk(coordinator)
    upper.ask(requests=2)
    lower = Talk(coordinator, *upper.nodes)
    lower.digests = [*upper.digests]
    lower.ask(requests=2)
    upper.enter(first=False)
    lower.ask(requests=2)
    claims = coordinator.claims.of("w")
    assert claims is not None
    assert [branch.tip for branch in claims["worker"].branches.others] == [upper.tip]


def test_what_comes_back_of_one_that_is_not_the_latest_does_not_replace_that(coordinator: Coordinator) -> None:
    old, new = Talk(coordinator), Talk(coordinator)
    old.ask()
    lost = old.tip
    new.ask()
    claims = coordinator.claims.of("w")
    assert claims is not None
    coordinator.found(claims["worker"], lost, [(FakeNode(), 64)])
    assert new.kept
    assert claims["worker"].tip is new.tip


def test_side_by_side_too_each_tail_is_judged_by_itself(coordinator: Coordinator) -> None:
    goes_on = Talk(coordinator)
    for _ in range(30):
        goes_on.ask()
        Talk(coordinator).ask()
    role = coordinator.claims.role("review", "worker")
    assert role.tails_wasted == pytest.approx(role.tails_reused, rel=0.2)
    assert goes_on.kept


def test_side_by_side_too_tails_that_nobody_extends_are_found_useless(coordinator: Coordinator) -> None:
    for _ in range(20):
        Talk(coordinator).ask(requests=2)
    assert not coordinator.claims.role("review", "worker").reuses_tails


def test_side_by_side_too_tails_that_are_extended_are_found_useful(coordinator: Coordinator) -> None:
    talks = [Talk(coordinator) for _ in range(3)]
    for _ in range(10):
        for talk in talks:
            talk.ask(requests=3)
    role = coordinator.claims.role("review", "worker")
    assert role.reuses_tails
    assert role.tail_probability > 0.9


def test_when_its_workflow_ends_all_of_them_may_go(coordinator: Coordinator) -> None:
    ended: list[object] = []
    coordinator.claims.on_ended = ended.append
    talks = [Talk(coordinator) for _ in range(3)]
    for talk in talks:
        talk.ask(requests=3)
    retire(coordinator, "w")
    assert {id(node) for node in ended} == {id(talk.tip) for talk in talks}
    assert {class_of(coordinator, talk.tip) for talk in talks} == {EvictionClass.RETIRED}


def test_a_flush_forgets_them(coordinator: Coordinator) -> None:
    talks = [Talk(coordinator) for _ in range(2)]
    for talk in talks:
        talk.ask(requests=2)
    coordinator.flushed()
    claims = coordinator.claims.of("w")
    assert claims is not None
    assert claims["worker"].branches.others == []
