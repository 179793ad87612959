"""Growing prompts: every prompt is as long as it was counted, and keeps what the count allows."""

from __future__ import annotations

import random

import pytest

from kvflow.trace.importers.base import estimated_tokens
from kvflow.trace.importers.conversation import Conversation, text_part, unseen_part

TEXT = "x" * 350  # 100 tokens by its length


def started(counted: int | None = 100, output: int = 10) -> Conversation:
    conversation = Conversation("w")
    conversation.add(text_part(0, TEXT))
    assert conversation.ask("c0", counted).tokens == (counted or 100)
    conversation.answer(text_part(1, "a" * 35, output))
    return conversation


def test_texts_have_a_token_per_three_and_a_half_characters_and_at_least_one() -> None:
    assert [estimated_tokens("y" * n) for n in (0, 1, 7, 350)] == [1, 1, 2, 100]


def test_what_is_new_gets_the_rest_of_the_count() -> None:
    conversation = started()
    conversation.add(text_part(2, "b" * 70))
    conversation.add(text_part(3, "c" * 35))
    prompt = conversation.ask("c1", 170)
    assert (prompt.base, prompt.keep_tokens) == ("c0", 110)
    assert [piece.tokens for piece in prompt.add] == [40, 20]


def test_an_answer_that_counted_hidden_reasoning_is_new_as_far_as_it_can_be_read() -> None:
    conversation = started(output=500)
    conversation.add(text_part(2, "b" * 35))
    prompt = conversation.ask("c1", 130)
    assert (prompt.keep_tokens, prompt.tokens) == (100, 130)
    assert [piece.tokens for piece in prompt.add] == [15, 15]


def test_a_prompt_that_shrank_keeps_its_head() -> None:
    conversation = started(counted=1000)
    conversation.add(text_part(2, "b" * 35))
    prompt = conversation.ask("c1", 300)
    assert (prompt.keep_tokens, prompt.tokens) == (280, 300)


def test_a_count_too_small_for_the_messages_is_still_met() -> None:
    conversation = started()
    for key in range(2, 9):
        conversation.add(text_part(key, TEXT))
    assert conversation.ask("c1", 3).tokens == 3


def test_a_count_with_nothing_new_to_see_is_unseen() -> None:
    prompt = started().ask("c1", 125)
    assert (prompt.keep_tokens, prompt.add) == (110, (unseen_part("w/c1/unseen", 15).piece(),))


def test_without_counts_lengths_decide() -> None:
    conversation = started(counted=None)
    conversation.add(text_part(2, TEXT))
    prompt = conversation.ask("c1", None)
    assert (prompt.keep_tokens, [piece.tokens for piece in prompt.add]) == (110, [100])


def test_a_rewritten_history_keeps_its_unchanged_head_and_moves_what_it_knows() -> None:
    conversation = started()
    conversation.add(text_part(2, TEXT))
    later = conversation.ask("c1", 260).add[0]
    conversation.replace([text_part(0, TEXT), text_part("summary", "s" * 70), text_part(2, TEXT)])
    assert conversation.context_tokens == 100
    prompt = conversation.ask("c2", None)
    assert (prompt.base, prompt.keep_tokens) == ("c1", 100)
    assert prompt.add[1] == later


def test_equal_texts_counted_alike_are_one_content_and_counted_differently_are_not() -> None:
    def first(counted: int) -> str:
        conversation = Conversation("w")
        conversation.add(text_part(0, TEXT))
        return conversation.ask("c", counted).add[0].content

    assert first(90) == first(90)
    assert first(90) != first(91)


def test_a_copy_goes_its_own_way() -> None:
    conversation = started()
    other = conversation.copy()
    other.add(text_part(2, TEXT))
    other.ask("c1", None)
    assert conversation.context_tokens == 110
    assert conversation.shared_tokens([0, 1, 2]) == 110
    assert other.shared_tokens([0, 1, 2]) == 210
    assert other.head_tokens(2) == 110


@pytest.mark.parametrize("seed", range(20))
def test_any_counts_are_met_and_nothing_is_kept_that_was_not_there(seed: int) -> None:
    chance = random.Random(seed)
    conversation = Conversation("w")
    context = 0
    for number in range(30):
        for key in range(chance.randrange(0, 4)):
            preset = chance.choice([None, None, chance.randrange(1, 300)])
            conversation.add(text_part((number, key), "z" * chance.randrange(0, 2000), preset))
        counted = chance.choice([None, chance.randrange(1, 3000), context + chance.randrange(1, 900)])
        if not (conversation.new_tokens or conversation.asked or counted):
            continue
        prompt = conversation.ask(f"c{number}", counted)
        assert prompt.keep_tokens <= context
        assert counted is None or prompt.tokens == counted
        assert all(piece.tokens >= 1 for piece in prompt.add)
        if prompt.tokens == 0:
            continue
        output = chance.choice([0, chance.randrange(1, 500)])
        conversation.answer(text_part(("answer", number), "q" * chance.randrange(0, 500), output))
        context = prompt.tokens + output
