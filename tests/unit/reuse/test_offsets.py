"""Offsets of examples, from end to end, on a model small enough to check them token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvflow.reuse import KV, Mode
from tests.unit.reuse.toy import (
    CPU,
    FLOAT32_ROUNDING,
    OTHER,
    QUESTION,
    ROLE,
    TEXT,
    THIRD,
    critics,
    error,
    exact,
    knowing,
    made,
    prompt,
    serve,
    spans,
    taught,
    words,
)


def test_an_offset_gives_a_text_back_what_its_context_made_of_it() -> None:
    reuse = taught(TEXT, OTHER)
    asked = critics(TEXT)
    plan = reuse.plan(asked, 0)
    assert spans(plan) == [(21, 85), (85, 125)], "the text, and what follows it"
    for graft in plan.grafts:
        assert sum(weight for _, weight in graft.anchors) == pytest.approx(1.0)
        assert error(reuse.fill(asked, graft, CPU), exact(asked).span(graft.start, graft.end)) < FLOAT32_ROUNDING
    position_alone = prompt("critic", ROLE, ("document", TEXT), QUESTION)
    (plain,) = reuse.plan(position_alone, 0).grafts
    assert error(reuse.fill(position_alone, plain, CPU), exact(asked).span(21, 85)) > 0.01


def test_an_offset_of_nothing_leaves_every_bit_at_the_old_position() -> None:
    reuse, role = made(), words(20, 33)
    serve(reuse, prompt("planner", role, ("document", TEXT), mode=Mode.KVCOMM))
    asked = critics(TEXT, role=role)
    _, computed = serve(reuse, asked)
    graft, *_ = reuse.plan(asked, 0).grafts
    ((anchor, weight),) = graft.anchors
    assert (graft.start, graft.end, weight) == (33, 97, 1.0)
    assert not anchor.offset.keys.any()
    assert not anchor.offset.values.any()
    filled = reuse.fill(asked, graft, CPU)
    assert torch.equal(filled.keys, computed.keys[:, 33:97])
    assert torch.equal(filled.values, computed.values[:, 33:97])


def test_what_is_computed_after_true_offsets_is_what_would_have_been_computed() -> None:
    reuse = taught(OTHER, TEXT, question=QUESTION[:8])
    asked = critics(TEXT, QUESTION[:8])
    plan, kv = serve(reuse, asked)
    assert spans(plan) == [(21, 85)], "what follows is too short to be kept"
    assert error(kv, exact(asked)) < FLOAT32_ROUNDING


def test_the_beginning_of_a_text_is_served_by_examples_of_the_whole() -> None:
    reuse = taught(TEXT, OTHER)
    asked = critics(TEXT[:40], words(30, 50))
    (graft,) = reuse.plan(asked, 0).grafts
    assert (graft.start, graft.end) == (21, 61)
    assert error(reuse.fill(asked, graft, CPU), exact(asked).span(21, 61)) < FLOAT32_ROUNDING


def test_a_middle_part_is_served_by_what_examples_know_of_it() -> None:
    reuse = made()
    for text in (THIRD, OTHER):
        serve(reuse, prompt("planner", words(20, 10), ("document", text), mode=Mode.KVCOMM))
        serve(reuse, critics(text))
    asked = critics(words(31, 16) + THIRD[16:])
    (graft, _) = reuse.plan(asked, 0).grafts
    assert (graft.start, graft.end, graft.offset, graft.place) == (37, 101, 16, 16)
    plain = prompt("critic", ROLE, ("document", words(31, 16) + THIRD[16:]), QUESTION)
    (alone,) = reuse.plan(plain, 0).grafts
    expected = exact(asked).span(37, 101)
    assert error(reuse.fill(asked, graft, CPU), expected) < error(reuse.fill(plain, alone, CPU), expected)


def test_offsets_hold_where_only_the_end_of_a_slot_is_known() -> None:
    reuse = knowing(TEXT, OTHER)
    for text in (TEXT, OTHER):
        serve(reuse, critics(words(33, 19) + text))
    asked = critics(words(33, 19) + TEXT)
    plan = reuse.plan(asked, 0)
    assert spans(plan) == [(40, 104), (104, 144)]
    for graft in plan.grafts:
        assert error(reuse.fill(asked, graft, CPU), exact(asked).span(graft.start, graft.end)) < FLOAT32_ROUNDING


def test_several_examples_count_by_their_weight() -> None:
    reuse = taught(TEXT, OTHER)
    asked = critics(TEXT)
    (pool,) = reuse.pools.values()
    for graft in reuse.plan(asked, 0).grafts:
        one, two = (reuse.fill(asked, replace(graft, anchors=((anchor, 1.0),)), CPU) for anchor in pool.anchors)
        both = replace(graft, anchors=((pool.anchors[0], 0.3), (pool.anchors[1], 0.7)))
        expected = KV(0.3 * one.keys + 0.7 * two.keys, 0.3 * one.values + 0.7 * two.values)
        assert error(one, two) > 0.01
        assert error(reuse.fill(asked, both, CPU), expected) < FLOAT32_ROUNDING


def test_what_follows_is_put_in_as_far_as_it_is_the_same() -> None:
    reuse = taught(TEXT, OTHER)
    asked = critics(TEXT, QUESTION[:30] + words(32, 10))
    plan = reuse.plan(asked, 0)
    assert spans(plan) == [(21, 85), (85, 115)]
    assert error(reuse.fill(asked, plan.grafts[1], CPU), exact(asked).span(85, 115)) < FLOAT32_ROUNDING
    assert spans(reuse.plan(critics(TEXT, words(33, 40)), 0)) == [(21, 85)]


def test_examples_of_one_agent_and_slot_say_nothing_of_another() -> None:
    reuse = taught(TEXT, OTHER)
    for asked in (
        prompt("writer", ROLE, ("document", TEXT), QUESTION, mode=Mode.KVCOMM),
        prompt("critic", ROLE, ("notes", TEXT), QUESTION, mode=Mode.KVCOMM),
    ):
        plan = reuse.plan(asked, 0)
        assert plan.grafts == ()
        assert len(plan.lessons) == 1


def test_a_text_longer_than_every_example_is_computed_and_learned() -> None:
    reuse = taught(TEXT, OTHER)
    serve(reuse, prompt("planner", words(20, 10), ("document", THIRD), mode=Mode.KVCOMM))
    plan, _ = serve(reuse, critics(THIRD))
    assert plan.grafts == ()
    assert reuse.counters.dense == {"few anchors": 2, "longer than all anchors": 1}
    assert spans(reuse.plan(critics(THIRD), 0)) == [(21, 101), (101, 141)]


def test_examples_are_learned_from_exact_kv_alone() -> None:
    reuse = knowing(TEXT, OTHER, words(35, 64))
    for seed, second in enumerate((OTHER, words(35, 64))):
        serve(reuse, critics(words(45 + seed, 64) + second))
    asked = critics(TEXT + OTHER)
    plan, kv = serve(reuse, asked)
    assert spans(plan)[0] == (85, 149), "the second text; of the first there is no example"
    assert error(kv.span(85, 189), exact(asked).span(85, 189)) > 0.01
    learned = [one for pool in reuse.pools.values() for one in pool.anchors if one.start == 0]
    assert all(one.following is None for one in learned)


def test_examples_that_are_used_outlive_those_that_are_not() -> None:
    reuse = taught(TEXT, OTHER)
    ((used, _),) = reuse.plan(critics(TEXT), 0).grafts[0].anchors
    (pool,) = reuse.pools.values()
    assert pool.anchors[0] is used
    reuse.memory.max_bytes = reuse.memory.used_bytes
    for seed in range(70, 76):
        if len(pool.anchors) == 2:
            serve(reuse, prompt("planner", words(20, 10), ("document", words(seed, 64))))
    assert pool.anchors == [used]


def test_a_pool_that_loses_its_last_example_for_a_new_one_keeps_the_new_one() -> None:
    reuse = taught(TEXT)
    (pool,) = reuse.pools.values()
    (example,) = pool.anchors
    reuse.memory.max_bytes = reuse.memory.used_bytes  # every new one has to take the place of another
    serve(reuse, prompt("planner", words(20, 10), ("document", OTHER), mode=Mode.KVCOMM))
    for segment in list(reuse.segments._segments):
        reuse.memory.touch(segment)
    serve(reuse, critics(OTHER))
    assert [one for pool in reuse.pools.values() for one in pool.anchors if one is example] == []


def test_an_example_follows_its_text_to_another_base() -> None:
    """The text has been forgotten, and another prompt has brought it anew: offsets from the old one say nothing."""
    reuse = taught(TEXT)
    for segment in list(reuse.segments._segments):
        reuse.memory.release(segment)
    reuse.segments.clear()
    serve(reuse, prompt("planner", words(77, 45), ("document", TEXT), mode=Mode.KVCOMM))
    plan, _ = serve(reuse, critics(TEXT))
    assert plan.grafts == (), "its values are not those of the example"
    asked = critics(TEXT)
    (graft, *_) = reuse.plan(asked, 0).grafts
    assert error(reuse.fill(asked, graft, CPU), exact(asked).span(21, 85)) < FLOAT32_ROUNDING
    (pool,) = reuse.pools.values()
    assert len(pool.anchors) == 1, "not twice"


def test_a_text_that_was_seen_behind_approximations_is_remembered_again_when_it_is_computed() -> None:
    reuse = made()
    serve(reuse, prompt("planner", words(20, 10), ("document", TEXT)))
    both = prompt("critic", words(22, 33), ("document", TEXT), ("notes", OTHER))
    serve(reuse, both)
    (match,) = reuse.segments.find("", both.tokens, 97, 161, 32)
    assert not match.segment.exact
    plan, computed = serve(reuse, prompt("writer", words(23, 20), ("notes", OTHER)), cached_tokens=84)
    assert plan.grafts == ()
    (match,) = reuse.segments.find("", both.tokens, 97, 161, 32)
    assert match.segment.exact
    assert torch.equal(match.segment.kv.values, computed.values[:, 20:84])
