"""Contexts that have text in common take its room once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import pytest

from kvflow.engine import Programs, PromptClaim
from kvflow.engine.conversations import Context, Tail, common_units, live_tokens, told_apart
from kvflow.engine.program import Program
from kvflow.policy import ProgramAdmission, ProgramView, ServingCosts
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.test_claims import FakeNode
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


def test_contexts_of_the_same_length_are_told_apart_anew_when_their_text_changes() -> None:
    program = Program(ProgramView(), 0.0, 0.0)
    alike = {"a": Context(25, digests=[1, 2]), "b": Context(25, digests=[1, 2])}
    assert [tail.own_tokens for tail in program.tails_of(alike, UNIT)] == [25, 0]
    other = {"a": Context(25, digests=[1, 2]), "b": Context(25, digests=[8, 9])}
    assert [tail.own_tokens for tail in program.tails_of(other, UNIT)] == [25, 25]


def test_what_an_agent_asks_anew_every_time_is_new() -> None:
    table = Table()
    path = [FakeNode(key=range(1_984), parent=FakeNode(key=range(0)))]
    for number in range(300):
        digests = [*range(31), *range(1_000 * number + 100, 1_000 * number + 115)]
        key = table.ask("w", 3_000, key=str(number), digests=digests)
        table.allowed(key)
        table.programs.started(key)
        tail = FakeNode(key=range(1_016), parent=path[0])
        claim = PromptClaim(workflow_id="w", workflow_type="t", agent="a")
        table.coordinator.tag(claim, [(tail, 3_000), (path[0], 1_984)], 1_984)
        table.programs.left(key, 64, digests)
    assert table.programs._typical.step.new_tokens == pytest.approx(1_016, rel=0.2)


def test_what_goes_on_from_a_context_is_known_to_its_last_token() -> None:
    table = Table()
    for number in range(3):
        tokens = 1_000 + 50 * number
        digests = list(range(tokens // 64))
        key = table.ask("w", tokens, key=str(number), digests=digests)
        table.allowed(key)
        table.programs.started(key)
        claim = PromptClaim(workflow_id="w", workflow_type="t", agent="a")
        table.coordinator.tag(claim, [(FakeNode(key=range(tokens)), tokens)], 0)
        table.programs.left(key, 10, digests)
    assert table.programs._typical.step.new_tokens < 1_000 * 0.98**2 + 50


def test_a_request_is_measured_with_its_own_fixed_prompt() -> None:
    table = Table()
    key = table.ask("w", 9_000)
    assert table.allowed(key) == [key]
    table.programs.started(key)
    node = FakeNode(key=range(8_000), parent=FakeNode(key=range(0)))
    tail = FakeNode(key=range(1_000), parent=node)
    claim = PromptClaim(workflow_id="w", workflow_type="t", agent="a", fixed_tokens=8_000)
    table.coordinator.tag(claim, [(tail, 9_000), (node, 8_000)], 8_000)
    view = table.programs._programs["w"].view
    table.coordinator.tick(1.0)
    table.ask("big", 99_000)
    table.allowed("big")
    assert view.live_tokens + sum(view.fixed_tokens.values()) >= 9_000, "the fixed part is not declared, and counts"
    table.programs.left(key, 10)
    table.programs.arrived("next", replace(claim, fixed_tokens=500), 9_000, [5])
    table.coordinator.tick(2.0)
    table.allowed("next", "big")
    assert view.live_tokens + sum(view.fixed_tokens.values()) >= 9_000, "of which 500 are another fixed part"


def test_text_that_another_agent_has_brought_back_is_not_missed() -> None:
    table, gone = Table(), [FakeNode()]
    table.programs = Programs(
        table.coordinator.claims, ProgramAdmission(ServingCosts()), cached=lambda node: node not in gone
    )
    said = talk(table, "a", "b")
    claims = table.coordinator.claims.of("talk") or {}
    root = FakeNode(key=range(0))
    lost = FakeNode(key=range(30_000), parent=root)
    gone[:] = [lost]
    for held in claims.values():
        held.tip = lost
    table.programs._programs["talk"].view.admitted = True
    key = table.ask("talk", 30_000, agent="b", key="b", digests=said)
    before = table.programs._margin.share
    assert before > 0.05, "it has been computed again"
    table.allowed(key)
    table.programs.started(key)
    claims["b"].tip = FakeNode(key=range(30_000), parent=root)
    table.programs.left(key, 10, said)
    table.coordinator.tick(1.0)
    before = table.programs._margin.share
    table.ask("talk", 30_000, agent="a", key="a", digests=said)
    assert table.programs._margin.share == before


def test_asking_how_many_programs_are_under_way_changes_nothing() -> None:
    table = Table()
    table.start("a", 1_000)
    looked_s = table.programs._programs["a"].looked_s
    assert table.programs.under_way == 1
    assert table.programs._programs["a"].looked_s == looked_s
    table.answer("a")
    table.end("a")
    assert table.programs.under_way == 0


def test_conversations_that_an_agent_has_side_by_side_all_take_room() -> None:
    table, texts = Table(), [list(range(1_000 * number, 1_000 * number + 468)) for number in range(3)]
    claim = PromptClaim(workflow_id="w", workflow_type="t", agent="a")

    def predict(**fields: float) -> None:
        prediction = ClaimPrediction(agent="a", steps=0, **fields)
        table.coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=(prediction,)))

    for text in texts:
        table.ask("w", 30_000, key=str(text[0]), digests=text)
    predict(since_s=0.0, requests=3)
    for key, text in ((str(text[0]), text) for text in texts):
        assert table.allowed(key) == [key]
        table.programs.started(key)
        table.coordinator.tag(claim, [(FakeNode(key=range(30_000)), 30_000)], 0, digests=text)
    for text in texts:
        table.programs.left(str(text[0]), 10, [*text, text[0] + 500])
    predict(due_s=1.0)
    view = table.programs._programs["w"].view
    table.allowed(table.ask("other", 30_000))
    assert 89_000 < view.live_tokens < 91_000
    table.programs.left("other", 0)
    goes_on = table.ask("w", 31_000, key="next", digests=[*texts[1], *range(5_000, 5_016)])
    assert table.allowed(goes_on) == [goes_on]
    table.programs.started(goes_on)
    table.coordinator.tick(1.0)
    table.allowed(table.ask("another", 30_000))
    assert 88_000 < view.live_tokens < 94_000, "it takes the place of one of the three"
