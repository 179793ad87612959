"""Reuse from end to end, on a model small enough to check it token by token."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from kvflow.reuse import KV, Mode, Plan, Prompt, Reuse
from kvflow.reuse.anchors import Anchor
from kvflow.reuse.segments import Segment
from tests.unit.reuse.toy import (
    CPU,
    FLOAT32_ROUNDING,
    OTHER,
    QUESTION,
    ROLE,
    TEXT,
    THIRD,
    Text,
    critics,
    error,
    exact,
    knowing,
    made,
    prefill,
    prompt,
    reading,
    serve,
    spans,
    taught,
    words,
)


def test_a_text_is_put_in_at_its_new_position() -> None:
    reuse = made()
    serve(reuse, prompt("planner", words(20, 10), ("document", TEXT), words(21, 5)))
    asked = prompt("critic", words(22, 33), ("document", TEXT), words(23, 9))
    plan = reuse.plan(asked, 0)
    assert spans(plan) == [(33, 97)]
    assert (plan.exact_tokens, plan.missing, plan.lessons) == (33, (), ())
    filled, expected = reuse.fill(asked, plan.grafts[0], CPU), exact(asked).span(33, 97)
    first = [KV(kv.keys[:1], kv.values[:1]) for kv in (filled, expected)]  # depends on token and position alone
    assert error(*first) < FLOAT32_ROUNDING
    assert torch.equal(first[0].values, first[1].values)
    assert error(filled, expected) > 0.01, "another context makes other KV in the second layer"


@pytest.mark.parametrize("mode", [Mode.NAIVE, Mode.ROTATE])
def test_at_its_old_position_a_text_has_its_kv_bit_for_bit(mode: Mode) -> None:
    reuse = made()
    _, before = serve(reuse, prompt("planner", words(20, 33), ("document", TEXT)))
    asked = prompt("critic", words(22, 33), ("document", TEXT), QUESTION, mode=mode)
    (graft,) = reuse.plan(asked, 0).grafts
    filled = reuse.fill(asked, graft, CPU)
    assert torch.equal(filled.keys, before.keys[:, 33:97])
    assert torch.equal(filled.values, before.values[:, 33:97])


def test_naive_reuse_leaves_keys_at_their_old_position() -> None:
    reuse = made()
    _, before = serve(reuse, prompt("planner", words(20, 10), ("document", TEXT)))
    asked = prompt("critic", words(22, 33), ("document", TEXT), mode=Mode.NAIVE)
    (graft,) = reuse.plan(asked, 0).grafts
    assert torch.equal(reuse.fill(asked, graft, CPU).keys, before.keys[:, 10:74])


def test_a_part_of_a_text_comes_from_the_middle_of_what_is_known() -> None:
    reuse = made()
    serve(reuse, prompt("planner", words(20, 10), ("document", TEXT)))
    asked = prompt("critic", words(22, 40), ("document", TEXT[12:60]), QUESTION)
    (graft,) = reuse.plan(asked, 0).grafts
    assert (graft.start, graft.end, graft.offset) == (40, 88, 12)
    filled, expected = reuse.fill(asked, graft, CPU), exact(asked).span(40, 88)
    assert error(KV(filled.keys[:1], filled.values[:1]), KV(expected.keys[:1], expected.values[:1])) < FLOAT32_ROUNDING


def test_the_first_tokens_are_computed_if_they_are_to_be_repaired() -> None:
    reuse = made()
    serve(reuse, prompt("planner", words(20, 10), ("document", TEXT)))
    (graft,) = reuse.plan(prompt("critic", words(22, 33), ("document", TEXT), repair_tokens=7), 0).grafts
    assert (graft.start, graft.end, graft.offset) == (40, 97, 7)


def test_texts_are_not_shared_across_namespaces() -> None:
    reuse = made()
    serve(reuse, prompt("planner", ROLE, ("document", TEXT), namespace="a"))
    plan, _ = serve(reuse, prompt("critic", ("document", TEXT), namespace="b"))
    assert plan.grafts == ()
    assert len(plan.missing) == 1


def test_short_slots_are_computed_and_not_remembered() -> None:
    reuse = made()
    for _ in range(2):
        plan, _ = serve(reuse, prompt("planner", ROLE, ("document", TEXT[:31]), QUESTION))
        assert plan.grafts == ()
    assert len(reuse.segments) == 0


THREE = [("first", TEXT), ("second", OTHER), ("third", THIRD)]


def known_but_for_the_second() -> Reuse:
    """Every slot of a critic has examples but the second, whose text is known."""
    reuse = made()
    for seed in (0, 40):
        texts = [text if seed == 0 else words(seed + index, len(text)) for index, (_, text) in enumerate(THREE)]
        slots = [(name, text) for (name, _), text in zip(THREE, texts, strict=True)]
        for slot in slots:
            serve(reuse, prompt("planner", words(20, 10), slot, mode=Mode.KVCOMM))
        middle = texts[1] if seed == 0 else words(99, 64)
        serve(reuse, prompt("critic", ROLE, slots[0], middle, slots[2], QUESTION, mode=Mode.KVCOMM))
    return reuse


def test_what_stands_before_a_text_that_has_to_be_computed_is_computed_too() -> None:
    reuse = known_but_for_the_second()
    asked = prompt("critic", ROLE, *THREE, QUESTION, mode=Mode.KVCOMM)
    plan = reuse.plan(asked, 0)
    second, third = asked.slots[1:]
    assert [graft.start for graft in plan.grafts] == [third.start, third.end]
    assert plan.exact_tokens == third.start
    (lesson,) = plan.lessons
    assert (lesson.found.match.start, lesson.found.match.end) == (second.start, second.end)
    learned = reuse.counters.learned
    serve(reuse, asked)
    assert reuse.counters.learned == learned + 1


def test_a_copy_for_the_gate_has_put_in_what_can_be_and_teaches_and_counts_nothing() -> None:
    """What its prompt has brought meanwhile is known by then; computing all before it would leave nothing to judge."""
    reuse = known_but_for_the_second()
    asked = prompt("critic", ROLE, *THREE, QUESTION, mode=Mode.KVCOMM)
    counted = replace(reuse.counters, dense=dict(reuse.counters.dense))
    plan = reuse.plan(replace(asked, trial=True), 0)
    first, _, third = asked.slots
    assert {graft.start for graft in plan.grafts} >= {first.start, third.start}
    assert plan.lessons == ()
    assert reuse.counters == counted


def test_without_it_the_others_are_put_in() -> None:
    reuse = known_but_for_the_second()
    asked = prompt("critic", ROLE, THREE[0], OTHER, THREE[2], QUESTION, mode=Mode.KVCOMM)
    assert [graft.start for graft in reuse.plan(asked, 0).grafts] == [21, 85, 149, 229]


def test_an_answer_is_at_hand_for_the_next_agent() -> None:
    reuse = made()
    asked = prompt("planner", ROLE, ("document", TEXT))
    plan, _ = serve(reuse, asked)
    answer = words(50, 45)
    whole = asked.tokens.tolist() + answer
    reuse.answered(asked, plan, torch.tensor(whole), reading(prefill(whole)))
    quoting = prompt("critic", words(51, 60), ("plan", answer), QUESTION)
    plan = reuse.plan(quoting, 0)
    (graft,) = plan.grafts
    assert (graft.start, graft.end) == (60, 105)
    assert graft.segment is not None
    assert (graft.segment.origin.part, graft.segment.origin.agent, graft.segment.exact) == ("answer", "planner", True)
    filled, expected = reuse.fill(quoting, graft, CPU), exact(quoting).span(60, 105)
    assert error(KV(filled.keys[:1], filled.values[:1]), KV(expected.keys[:1], expected.values[:1])) < FLOAT32_ROUNDING


def test_an_answer_of_a_few_words_is_not_remembered() -> None:
    reuse = made()
    asked = prompt("planner", ROLE, ("document", TEXT))
    whole = asked.tokens.tolist() + words(50, 31)
    reuse.answered(asked, reuse.plan(asked, 0), torch.tensor(whole), reading(prefill(whole)))
    assert len(reuse.segments) == 0


def test_a_text_that_is_larger_than_the_bound_is_not_even_copied() -> None:
    asked = prompt("planner", ("document", TEXT))
    kv, read_tokens = exact(asked), list[int]()

    def read(start: int, end: int) -> KV:
        read_tokens.append(end - start)
        return kv.span(start, end)

    tight = made(kv.nbytes - 1)
    tight.computed(asked, tight.plan(asked, 0), read)
    assert (read_tokens, len(tight.segments)) == ([1], 0)


def test_what_was_computed_after_something_put_in_is_known_not_to_be_exact() -> None:
    reuse = made()
    serve(reuse, prompt("planner", words(20, 10), ("document", TEXT)))
    serve(reuse, prompt("critic", words(22, 15), ("notes", THIRD), ("document", TEXT), ("more", OTHER)))
    held = {one.tokens.tolist()[0]: one for text in (THIRD, OTHER) for one in found(reuse, text)}
    assert [held[text[0]].exact for text in (THIRD, OTHER)] == [True, False]


def found(reuse: Reuse, text: Text) -> list[Segment]:
    return [match.segment for match in reuse.segments.find("", torch.tensor(text), 0, len(text), 32)]


@pytest.mark.parametrize(
    ("cached_tokens", "expected"),
    [
        (0, [(33, 97), (103, 183)]),
        (33, [(33, 97), (103, 183)]),
        (40, [(40, 97), (103, 183)]),
        (81, [(81, 97), (103, 183)]),
        (82, [(103, 183)]),  # 15 tokens are not worth it
        (100, [(103, 183)]),
        (150, [(150, 183)]),
        (183, []),
        (190, []),
    ],
)
def test_what_is_cached_is_not_put_in(cached_tokens: int, expected: list[tuple[int, int]]) -> None:
    reuse = made()
    serve(reuse, prompt("planner", words(20, 10), ("document", TEXT), ("notes", THIRD)))
    asked = prompt("critic", words(22, 33), ("document", TEXT), words(23, 6), ("notes", THIRD), words(24, 7))
    whole = {graft.end: (graft, reuse.fill(asked, graft, CPU)) for graft in reuse.plan(asked, 0).grafts}
    plan = reuse.plan(asked, cached_tokens)
    assert spans(plan) == expected
    assert plan.exact_tokens == (expected[0][0] if expected else 190) >= cached_tokens
    for graft in plan.grafts:
        unclipped, filled = whole[graft.end]
        left = filled.span(graft.start - unclipped.start, len(filled))
        assert error(reuse.fill(asked, graft, CPU), left) < 1e-7


def test_a_clipped_graft_gets_the_offsets_of_what_is_left_of_it() -> None:
    reuse = taught(TEXT, OTHER)
    asked = critics(TEXT)
    for cached_tokens in (0, 30, 60, 70, 90, 105):
        plan = reuse.plan(asked, cached_tokens)
        assert plan.exact_tokens >= cached_tokens
        assert plan.grafts
        for graft in plan.grafts:
            expected = exact(asked).span(graft.start, graft.end)
            assert error(reuse.fill(asked, graft, CPU), expected) < FLOAT32_ROUNDING


def test_a_prompt_found_in_the_cache_still_teaches() -> None:
    reuse = made()
    for text in (TEXT, OTHER):
        serve(reuse, prompt("planner", words(20, 10), ("document", text), mode=Mode.KVCOMM))
        serve(reuse, critics(text), cached_tokens=100)
    assert reuse.counters.learned == 2
    assert spans(reuse.plan(critics(TEXT), 0)) == [(21, 85), (85, 125)]


def test_everything_can_be_forgotten() -> None:
    reuse = taught(TEXT, OTHER)
    assert reuse.memory.used_bytes
    reuse.clear()
    assert (len(reuse.segments), reuse.pools, reuse.memory.used_bytes, len(reuse.memory)) == (0, {}, 0, 0)
    plan, _ = serve(reuse, critics(TEXT))
    assert plan.grafts == ()
    assert len(plan.missing) == 1
    assert len(reuse.plan(critics(TEXT), 0).lessons) == 1


def test_what_happened_is_counted() -> None:
    reuse = made()
    serve(reuse, prompt("planner", words(20, 10), ("document", TEXT)))
    serve(reuse, prompt("critic", words(22, 33), ("document", TEXT)), cached_tokens=43)
    counters = reuse.counters
    assert (counters.prompts, counters.spliced, counters.segments) == (2, 1, 1)
    assert (counters.slot_tokens, counters.grafted_tokens) == (64 + 54, 54)


def test_grafts_do_not_overlap_where_a_slot_holds_two_texts() -> None:
    reuse = knowing(TEXT, OTHER, words(34, 64))
    serve(reuse, critics(TEXT + OTHER))
    found = spans(reuse.plan(critics(words(34, 64) + OTHER), 0))
    assert found
    assert all(before[1] <= after[0] for before, after in pairwise(found))


Shape = tuple[object, ...]


def shape(plan: Plan) -> Shape:
    """A plan without the identity of what it refers to."""
    grafts = [
        (graft.start, graft.end, graft.offset, graft.place, [weight for _, weight in graft.anchors])
        for graft in plan.grafts
    ]
    lessons = [(lesson.pool, lesson.found.match.start, lesson.found.match.end) for lesson in plan.lessons]
    return plan.exact_tokens, grafts, lessons, plan.missing


def played(reuse: Reuse, seed: int) -> list[Shape]:
    """Agents that hand each other texts, and now and then a part of one or a new one."""
    drawn = random.Random(seed)
    shapes: list[Shape] = []
    for step in range(60):
        text = words(60 + drawn.randrange(6), 64)[drawn.choice([0, 0, 5]) :]
        agent, mode = drawn.choice([("planner", Mode.ROTATE), ("critic", Mode.KVCOMM), ("critic", Mode.KVCOMM)])
        asked = prompt(agent, ROLE, ("document", text), QUESTION[: drawn.choice([10, 40])], mode=mode)
        plan, _ = serve(reuse, asked, drawn.choice([0, 0, 30]))
        shapes.append(shape(plan))
        if step % 7 == 0:
            tokens = asked.tokens.tolist() + words(80 + drawn.randrange(3), 40)
            reuse.answered(asked, plan, torch.tensor(tokens), reading(prefill(tokens)))
        assert sum(one.nbytes for one in held(reuse)) == reuse.memory.used_bytes <= reuse.memory.max_bytes
    return shapes


def held(reuse: Reuse) -> list[Segment | Anchor]:
    return [*reuse.segments._segments, *(one for pool in reuse.pools.values() for one in pool.anchors)]


@pytest.mark.parametrize("max_bytes", [10**9, 500_000, 200_000])
def test_those_who_see_the_same_decide_the_same(max_bytes: int) -> None:
    one, two = made(max_bytes, anchors=3), made(max_bytes, anchors=3)
    assert played(one, 5) == played(two, 5)
    assert one.counters == two.counters
    assert one.memory.dropped == two.memory.dropped
    assert one.counters.spliced > 5
    assert (one.memory.dropped > 5) is (max_bytes < 10**9)


def test_what_is_done_with_a_prompt_has_a_reason_people_can_read() -> None:
    reuse, found = knowing(TEXT), ("document", TEXT)

    def reason(asked: Prompt, cached_tokens: int = 0) -> str:
        return reuse.plan(asked, cached_tokens).reason

    assert reason(critics(OTHER)) == "none of its texts is known"
    assert reason(critics(TEXT)) == "few anchors"
    assert reason(prompt("critic", ROLE, found)) == "rotate: 1 runs"
    assert reason(prompt("critic", ROLE, found), 80) == "what is known is cached, or too short"
    reuse.gate.close(("", "review", "document"))
    assert reason(prompt("critic", ROLE, found)) == "closed by the quality gate"


def test_prompts_computed_side_by_side_teach_one_text_and_one_example() -> None:
    reuse = made()
    asked = [prompt("planner", words(20 + n, 10), ("document", TEXT), mode=Mode.KVCOMM) for n in range(3)]
    for planned, plan in [(one, reuse.plan(one, 0)) for one in asked]:
        reuse.computed(planned, plan, reading(exact(planned)))
    assert (len(reuse.segments), reuse.counters.segments) == (1, 1)
    asked = [prompt("critic", words(30 + n, 12), ("document", TEXT), mode=Mode.KVCOMM) for n in range(3)]
    for planned, plan in [(one, reuse.plan(one, 0)) for one in asked]:
        assert plan.lessons
        reuse.computed(planned, plan, reading(exact(planned)))
    assert [len(pool.anchors) for pool in reuse.pools.values()] == [1]


def test_an_exact_text_is_remembered_host_memory_one_that_is_not() -> None:
    reuse = made()
    asked = prompt("planner", words(20, 10), ("document", TEXT))
    plan = reuse.plan(asked, 0)
    reuse.computed(asked, replace(plan, exact_tokens=0), reading(exact(asked)))
    reuse.computed(asked, plan, reading(exact(asked)))
    reuse.computed(asked, plan, reading(exact(asked)))
    assert sorted(segment.exact for segment in reuse.segments._segments) == [False, True]
