"""Contexts that have text in common take its room once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvflow.engine.claim import Claim
from kvflow.engine.conversations import Tail, live_tokens, told_apart
from kvflow.engine.roles import Role
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.test_claims import FakeNode
from tests.unit.engine.test_programs import Table


def path(*sizes: int, behind: FakeNode | None = None) -> list[FakeNode]:
    """Nodes of so many tokens, each below the one before."""
    nodes: list[FakeNode] = []
    for size in sizes:
        behind = FakeNode(key=range(size), parent=behind or FakeNode())
        nodes.append(behind)
    return nodes


def claim(tip: FakeNode | None, tail_tokens: int, probability: float = 1.0) -> Claim:
    return Claim(Role("agent"), tip=tip, tail_tokens=tail_tokens, steps=1, probability=probability)


def own(tails: Sequence[Tail]) -> dict[object, tuple[int, object]]:
    return {tail.key: (tail.own_tokens, tail.behind) for tail in tails}


def test_contexts_without_common_text_take_all_of_theirs() -> None:
    claims = {"a": claim(path(100, 50)[-1], 150), "b": claim(path(80)[-1], 80)}
    assert own(told_apart(claims)) == {"a": (150, None), "b": (80, None)}
    assert live_tokens(told_apart(claims), claims, {}) == 230


def test_who_has_read_a_part_of_a_conversation_takes_nothing_of_its_own() -> None:
    heard, more = path(100, 50)
    answer = path(30, behind=heard)[0]
    claims = {"b": claim(heard, 100), "a": claim(more, 150), "c": claim(answer, 130)}
    assert own(told_apart(claims)) == {"a": (150, None), "c": (30, "a"), "b": (0, "a")}
    assert live_tokens(told_apart(claims), claims, {}) == 180


def test_what_a_fixed_prompt_has_is_not_looked_at() -> None:
    fixed = path(1000)[0]
    claims = {"a": claim(path(50, behind=fixed)[0], 50), "b": claim(path(40, behind=fixed)[0], 40)}
    assert own(told_apart(claims)) == {"a": (50, None), "b": (40, None)}


def test_common_text_is_as_likely_to_be_used_as_by_the_likeliest_of_them() -> None:
    heard, more = path(100, 100)
    claims = {"a": claim(more, 200, 0.25), "b": claim(heard, 100, 0.5)}
    assert live_tokens(told_apart(claims), claims, {}) == 100
    alone = {"a": claims["a"]}
    assert live_tokens(told_apart(alone), alone, {}) == 50


@pytest.mark.parametrize(("asked_tokens", "tokens"), [(250, 250), (120, 200)])
def test_a_request_takes_what_it_brings_beyond_its_context(asked_tokens: int, tokens: int) -> None:
    claims = {"a": claim(path(200)[0], 200, 0.1)}
    assert live_tokens(told_apart(claims), claims, {"a": asked_tokens}) == tokens


def test_requests_of_agents_without_a_context_take_all_that_they_bring() -> None:
    assert live_tokens([], {}, {"a": 30, "b": 12}) == 42


def test_nodes_that_were_taken_out_of_the_tree_count_as_far_as_they_are_known() -> None:
    claims = {"a": claim(None, 70), "b": claim(path(20)[0], 50)}
    assert live_tokens(told_apart(claims), claims, {}) == 120


def test_a_program_whose_agents_share_a_conversation_leaves_room_for_others() -> None:
    table = Table()
    table.start("talk", 30_000)
    claims = tuple(ClaimPrediction(agent=agent, steps=number, due_s=1.0) for number, agent in enumerate("abc"))
    table.coordinator.apply(WorkflowUpdate(workflow_id="talk", workflow_type="t", claims=claims))
    conversation = path(30_000)[0]
    for held in (table.coordinator.claims.of("talk") or {}).values():
        held.tip, held.context_tokens, held.tail_tokens = conversation, 30_000, 30_000
    assert table.allowed(table.ask("other", 50_000)) == ["other"], "30,000 and 50,000 on 100,000"
    assert table.allowed(table.ask("third", 50_000)) == []
