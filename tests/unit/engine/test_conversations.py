"""Contexts that have text in common take its room once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import pytest

from kvflow.engine.conversations import Context, Tail, common_units, live_tokens, told_apart
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.test_programs import Table

UNIT = 10


def own(tails: Sequence[Tail]) -> dict[object, tuple[int, object]]:
    return {tail.key: (tail.own_tokens, tail.behind) for tail in tails}


def live(contexts: Mapping[Hashable, Context], likelihood: Mapping[Hashable, float] | None = None) -> float:
    return live_tokens(told_apart(contexts, UNIT), likelihood or dict.fromkeys(contexts, 1.0))


def test_contexts_without_common_text_take_all_of_theirs() -> None:
    contexts = {"a": Context(25, digests=[1, 2]), "b": Context(18, digests=[3])}
    assert own(told_apart(contexts, UNIT)) == {"a": (25, None), "b": (18, None)}
    assert live(contexts) == 43


def test_who_has_read_a_part_of_a_conversation_takes_nothing_of_its_own() -> None:
    contexts = {
        "b": Context(18, digests=[1]),
        "a": Context(55, digests=[1, 2, 3, 4, 5]),
        "c": Context(37, digests=[1, 2, 9]),
    }
    assert own(told_apart(contexts, UNIT)) == {"a": (55, None), "c": (17, "a"), "b": (0, "a")}
    assert live(contexts) == 72


def test_what_a_fixed_prompt_has_counts_elsewhere() -> None:
    contexts = {"a": Context(45, 30, [1, 2, 3, 4]), "b": Context(38, 30, [1, 2, 3])}
    assert own(told_apart(contexts, UNIT)) == {"a": (15, None), "b": (0, "a")}
    contexts = {"a": Context(45, 30, [1, 2, 3, 4]), "b": Context(42, 30, [1, 2, 3, 9])}
    assert own(told_apart(contexts, UNIT)) == {"a": (15, None), "b": (12, None)}


def test_common_text_is_as_likely_to_be_used_as_by_the_likeliest_of_them() -> None:
    contexts = {"a": Context(20, digests=[1, 2]), "b": Context(10, digests=[1])}
    assert live(contexts, {"a": 0.25, "b": 0.5}) == 10
    assert live({"a": contexts["a"]}, {"a": 0.25}) == 5


def test_contexts_of_which_nothing_is_known_but_their_length_take_all_of_it() -> None:
    contexts = {"a": Context(30), "b": Context(12), "c": Context(9, digests=[])}
    assert live(contexts) == 51


@pytest.mark.parametrize(("known", "units"), [([1, 2, 9], 2), ([], 0), ([1, 2, 3, 4], 3), ({1: "a", 2: "b"}, 2)])
def test_units_that_contexts_begin_with_alike(known: Mapping[int, object] | Sequence[int], units: int) -> None:
    assert common_units([1, 2, 3], known) == units


def talk(table: Table, *agents: str, tokens: int = 30_000) -> list[int]:
    """A program whose agents have one conversation, of which nothing is in the cache."""
    said = list(range(1, tokens // 64 + 1))
    for agent in agents:
        key = table.ask("talk", tokens, agent=agent, key=f"talk {agent}", digests=said)
        assert table.allowed(key) == [key]
        table.programs.started(key)
        table.programs.left(key, 10, said)
    claims = tuple(ClaimPrediction(agent=agent, steps=number, due_s=1.0) for number, agent in enumerate(agents))
    table.coordinator.apply(WorkflowUpdate(workflow_id="talk", workflow_type="t", claims=claims))
    for held in (table.coordinator.claims.of("talk") or {}).values():
        held.context_tokens = held.tail_tokens = tokens
    return said


def test_a_program_whose_agents_share_a_conversation_leaves_room_for_others() -> None:
    table = Table()
    talk(table, "a", "b", "c")
    assert table.allowed(table.ask("other", 50_000)) == ["other"], "30,000 and 50,000 on 100,000"
    assert table.allowed(table.ask("third", 50_000)) == []


def test_an_agent_that_joins_a_conversation_brings_only_what_is_new() -> None:
    table = Table()
    said = talk(table, "a", "b")
    table.start("other", 50_000)
    key = table.ask("talk", 40_000, agent="new", key="talk new", digests=[*said, *range(10_000, 10_150)])
    assert table.allowed(key) == [key], "30,000 of which 10,000 are new, and 50,000 on 100,000"


def test_a_request_takes_the_place_of_its_agents_context() -> None:
    table = Table()
    talk(table, "a")
    table.start("other", 50_000)
    key = table.ask("talk", 40_000, agent="a", key="again", digests=list(range(20_000, 20_625)))
    assert table.allowed(key) == [key], "40,000 of other text, and 50,000 on 100,000"
