"""The next turn of a conversation goes on with the KV that the turn before has left, and nobody else does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvflow.reuse import KV, Method, Mode, Plan, Prompt, Reuse
from tests.unit.reuse.toy import (
    CPU,
    OTHER,
    QUESTION,
    ROLE,
    TEXT,
    Text,
    made,
    prefill,
    prompt,
    reading,
    serve,
    spans,
    words,
)

ANSWER, RESULT = words(50, 40), words(51, 36)


def first_turn(workflow_id: str = "w", agent: str = "critic", mode: Mode = Mode.ROTATE) -> Prompt:
    return replace(prompt(agent, ROLE, ("document", TEXT), QUESTION, mode=mode), workflow_id=workflow_id)


def next_turn(before: Prompt, *, answer: Text = ANSWER, text: Text | None = None, question: Text = RESULT) -> Prompt:
    """What was asked before, the answer, a text if there is a new one, and what the agent is told now."""
    history = [*before.tokens.tolist(), *answer]
    later = prompt(before.agent, history, *([("tool", text)] if text else []), question)
    return replace(later, workflow_id=before.workflow_id, slots=before.slots + later.slots, method=before.method)


def play(reuse: Reuse, asked: Prompt, answer: Text = ANSWER, cached_tokens: int = 0) -> tuple[Plan, KV]:
    """Plan, compute and answer a prompt as a server does; returns the plan, and the KV of prompt and answer."""
    plan = reuse.plan(asked, cached_tokens)
    tokens = [*asked.tokens.tolist(), *answer]
    kv = prefill(tokens, [(graft, reuse.fill(asked, graft, CPU)) for graft in plan.grafts])
    reuse.computed(asked, plan, reading(kv.span(0, len(asked.tokens))))
    reuse.answered(asked, plan, torch.tensor(tokens), reading(kv))
    return plan, kv


def conversing(max_bytes: int = 10**9) -> Reuse:
    """The text of a document is known, and that critics are asked again."""
    reuse = made(max_bytes)
    serve(reuse, prompt("planner", words(20, 10), ("document", TEXT)))
    play(reuse, first_turn("earlier"))
    plan, _ = play(reuse, next_turn(first_turn("earlier")))
    assert plan.continued_tokens == 0, "of the first conversation nothing is kept: it might have been over"
    return reuse


def held_bytes(reuse: Reuse) -> int:
    return sum(nbytes for nbytes, _ in reuse.memory._entries.values())


def test_the_next_turn_has_the_kv_of_the_turn_before_bit_for_bit() -> None:
    reuse = conversing()
    plan, before = play(reuse, first_turn())
    assert [(graft.start, graft.as_it_was) for graft in plan.grafts] == [(len(ROLE), False)]
    asked = next_turn(first_turn())
    plan = reuse.plan(asked, len(ROLE))
    end = len(first_turn().tokens) + len(ANSWER)
    assert spans(plan) == [(len(ROLE), len(first_turn().tokens)), (len(first_turn().tokens), end)]
    assert (plan.exact_tokens, plan.continued_tokens) == (len(ROLE), end)
    assert plan.slots == (("", "review", "document"),)
    for graft in plan.grafts:
        filled = reuse.fill(asked, graft, CPU)
        assert torch.equal(filled.keys, before.keys[:, graft.start : graft.end])
        assert torch.equal(filled.values, before.values[:, graft.start : graft.end])


def test_a_conversation_of_many_turns_keeps_what_is_new_of_each() -> None:
    reuse = conversing()
    asked = first_turn()
    play(reuse, asked)
    for turn in range(4):
        asked = next_turn(asked, question=words(60 + turn, 50))
        plan, kv = play(reuse, asked, words(70 + turn, 45))
        ends = [graft.end for graft in plan.grafts]
        assert [graft.start for graft in plan.grafts] == [len(ROLE), *ends[:-1]], "pieces without gaps"
        assert len(plan.grafts) == 2 * (turn + 1)
        asked = next_turn(asked, answer=words(70 + turn, 45), question=[])
    again = reuse.plan(asked, 0)
    for graft in again.grafts:
        assert torch.equal(reuse.fill(asked, graft, CPU).values, kv.values[:, graft.start : graft.end])
    assert reuse.memory.used_bytes == held_bytes(reuse)


def test_an_answer_that_is_rendered_differently_is_used_as_far_as_it_is_the_same() -> None:
    reuse = conversing()
    play(reuse, first_turn())
    asked = next_turn(first_turn(), answer=[*ANSWER[:25], ANSWER[25] ^ 1, *ANSWER[26:]])
    assert reuse.plan(asked, 0).continued_tokens == len(first_turn().tokens) + 25


def test_what_the_prefix_cache_has_is_not_put_in() -> None:
    reuse = conversing()
    play(reuse, first_turn())
    plan = reuse.plan(next_turn(first_turn()), 90)
    assert plan.grafts[0].start == 90
    assert plan.exact_tokens == 90


STRANGERS = {
    "workflow": {"workflow_id": "another"},
    "no workflow": {"workflow_id": ""},
    "agent": {"agent": "writer"},
    "tenant": {"namespace": "b"},
    "mode": {"method": Method(mode=Mode.NAIVE)},
}


@pytest.mark.parametrize("who", STRANGERS)
def test_nobody_else_goes_on_with_it(who: str) -> None:
    reuse = conversing()
    play(reuse, first_turn())
    stranger = replace(next_turn(first_turn()), **STRANGERS[who])
    assert reuse.plan(stranger, 0).continued_tokens == 0
    assert reuse.plan(next_turn(first_turn()), 0).continued_tokens > 0


def test_another_history_is_not_taken_for_it() -> None:
    reuse = conversing()
    play(reuse, first_turn())
    asked = next_turn(first_turn())
    asked.tokens[len(ROLE) - 1] ^= 1
    assert reuse.plan(asked, 0).continued_tokens == 0


def test_texts_that_are_new_are_put_in_behind_it_and_judged_with_it() -> None:
    reuse = conversing()
    serve(reuse, prompt("planner", words(21, 10), ("document", OTHER)))
    play(reuse, first_turn())
    asked = next_turn(first_turn(), text=OTHER)
    plan = reuse.plan(asked, 0)
    assert [graft.as_it_was for graft in plan.grafts] == [True, True, False]
    assert plan.grafts[2].end - plan.grafts[2].start == len(OTHER)
    assert plan.slots == (("", "review", "document"), ("", "review", "tool"))
    reuse.put(asked, plan)
    assert reuse.counters.continued_tokens == plan.continued_tokens - len(ROLE)


def test_where_an_example_is_wanted_all_is_computed() -> None:
    reuse = conversing()
    for seed in (0, 1):  # offsets of the document are known, those of what the tool says are not
        serve(reuse, first_turn(f"{seed}", mode=Mode.KVCOMM))
    play(reuse, first_turn("k", mode=Mode.KVCOMM))
    asked = next_turn(first_turn("k", mode=Mode.KVCOMM))
    assert reuse.plan(asked, 0).continued_tokens > 0
    serve(reuse, prompt("planner", words(21, 10), ("document", OTHER)))
    asked = next_turn(first_turn("k", mode=Mode.KVCOMM), text=OTHER)
    plan, _ = play(reuse, asked)
    assert (plan.grafts, len(plan.lessons)) == ((), 1)
    later = next_turn(asked)
    assert reuse.plan(later, len(asked.tokens)).grafts == (), "what was computed is in the prefix cache"
    assert reuse.plan(later, 0).continued_tokens == 0, "and nothing is kept beside it"


def test_a_slot_that_is_closed_ends_conversations_that_have_its_texts() -> None:
    reuse = conversing()
    play(reuse, first_turn())
    reuse.gate.close(("", "review", "document"))
    reuse.distrust(("", "review", "document"))
    assert reuse.plan(next_turn(first_turn()), 0).grafts == ()
    assert len(reuse.conversations) == 0
    assert reuse.memory.used_bytes == held_bytes(reuse)


def test_copies_made_for_checks_go_on_with_it_and_leave_nothing() -> None:
    reuse = conversing()
    asked = first_turn()
    play(reuse, asked)
    with_answer = torch.cat((asked.tokens, torch.tensor(ANSWER[:10])))
    copy = replace(asked, tokens=with_answer, trial=True)
    held, counters = held_bytes(reuse), replace(reuse.counters)
    plan, _ = play(reuse, copy)
    assert plan.continued_tokens == len(with_answer)
    assert (held_bytes(reuse), reuse.counters) == (held, counters)


def test_agents_whose_conversations_do_not_go_on_have_none_kept() -> None:
    reuse = conversing()
    for number in range(12):
        play(reuse, first_turn(f"{number}"))
    assert len(reuse.conversations) == 8, "of the first seven, and of the one that went on before"
    assert reuse.plan(next_turn(first_turn("11")), 0).continued_tokens == 0
    play(reuse, first_turn("another"))
    assert reuse.plan(next_turn(first_turn("another")), 0).continued_tokens > 0, "since one has gone on again"


def test_another_answer_to_the_same_prompt_is_not_taken_for_the_one_that_went_on() -> None:
    """Two samples of one prompt; the client goes on with the first, and the second comes while it does."""
    reuse = conversing()
    play(reuse, first_turn())
    asked = next_turn(first_turn())
    plan = reuse.plan(asked, 0)
    other = words(52, 30)
    play(reuse, first_turn(), other)
    tokens = [*asked.tokens.tolist(), *words(53, 40)]
    kv = prefill(tokens, [(graft, reuse.fill(asked, graft, CPU)) for graft in plan.grafts])
    reuse.answered(asked, plan, torch.tensor(tokens), reading(kv))
    later = next_turn(asked, answer=words(53, 40))
    for graft in reuse.plan(later, 0).grafts:
        filled = reuse.fill(later, graft, CPU)
        assert torch.equal(filled.values, kv.values[:, graft.start : graft.end])


def test_what_was_put_in_before_a_slot_closed_is_not_put_in_after() -> None:
    reuse = conversing()
    asked = first_turn()
    plan = reuse.plan(asked, 0)
    reuse.gate.close(("", "review", "document"))
    reuse.distrust(("", "review", "document"))
    tokens = [*asked.tokens.tolist(), *ANSWER]
    kv = prefill(tokens, [(graft, reuse.fill(asked, graft, CPU)) for graft in plan.grafts])
    reuse.answered(asked, plan, torch.tensor(tokens), reading(kv))
    assert reuse.plan(next_turn(asked), 0).grafts == ()


def test_an_answer_without_its_reasoning_costs_no_more_than_itself() -> None:
    reuse = conversing()
    play(reuse, first_turn())
    asked = next_turn(first_turn(), answer=ANSWER[20:])
    assert reuse.plan(asked, 0).continued_tokens == len(first_turn().tokens)
    read = [0]
    plan = reuse.plan(asked, 0)
    kv = prefill(asked.tokens.tolist())

    def counting(start: int, end: int) -> KV:
        read[0] += end - start
        return kv.span(start, end)

    reuse.answered(asked, plan, asked.tokens, counting)
    assert read[0] == len(asked.tokens) - len(first_turn().tokens) + 1, "and one to see how large they are"


def test_turns_that_only_go_on_are_judged_by_what_comes_of_them() -> None:
    reuse = conversing()
    play(reuse, first_turn())
    reuse.feedback("w", 1.0)
    play(reuse, next_turn(first_turn()))
    reuse.feedback("w", 0.5)
    assert reuse.outcomes.means(("", "review", "document"))["outcome_reused"] == 0.75


def test_parallel_conversations_of_an_agent_are_told_apart() -> None:
    reuse = conversing()
    questions = [[*QUESTION, number] for number in range(3)]
    turns = [next_turn(first_turn(), question=question) for question in questions]
    play(reuse, first_turn())
    for number, turn in enumerate(turns):
        play(reuse, turn, words(80 + number, 33))
    for number, turn in enumerate(turns):
        asked = next_turn(turn, answer=words(80 + number, 33))
        assert reuse.plan(asked, 0).continued_tokens == len(turn.tokens) + 33


def test_memory_is_bounded_and_the_beginning_is_used_as_long_as_it_is_there() -> None:
    reuse = conversing()
    one = reuse.segments.find("", first_turn().tokens, 0, len(first_turn().tokens), 32)[0].segment
    token_bytes = one.kv.nbytes // len(one.tokens)
    asked, lengths = first_turn(), []
    reuse.memory.max_bytes = 600 * token_bytes
    play(reuse, asked)
    for turn in range(8):
        asked = next_turn(asked, question=words(60 + turn, 50))
        plan, _ = play(reuse, asked)
        lengths.append(plan.continued_tokens)
        assert reuse.memory.used_bytes <= reuse.memory.max_bytes
        assert reuse.memory.used_bytes == held_bytes(reuse)
    assert all(lengths), "the beginning is the last to go"
    assert len(asked.tokens) > 600, "more than there is room for"
