"""Reuse from end to end, on a model of two layers small enough to check it token by token."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from kvflow.reuse import KV, Graft, HostMemory, Method, Mode, Plan, Prompt, Reuse, Rotary, Slot
from kvflow.reuse.anchors import Anchor
from kvflow.reuse.reuse import Read
from kvflow.reuse.segments import Segment

LAYERS, HEADS, HEAD_DIM, VOCABULARY = 2, 4, 8, 50
DIM = HEADS * HEAD_DIM
CPU = torch.device("cpu")
FREQUENCIES = 100.0 ** -(torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
ANGLES = torch.arange(1000, dtype=torch.float64)[:, None] * FREQUENCIES
_generator = torch.Generator().manual_seed(1)
EMBEDDING = torch.randn(VOCABULARY, DIM, generator=_generator, dtype=torch.float64)
QUERY, KEY, VALUE, OUT = torch.randn(4, LAYERS, DIM, DIM, generator=_generator, dtype=torch.float64) / DIM**0.5

Text = list[int]
Part = Text | tuple[str, Text]
"""Of a prompt: what is always computed, or a slot with its name."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Numbers this small are added up faster alone than by threads that wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rotated(heads: torch.Tensor) -> torch.Tensor:
    half = HEAD_DIM // 2
    turned = torch.complex(heads[..., :half], heads[..., half:]) * torch.exp(1j * ANGLES[: len(heads), None])
    return torch.cat((turned.real, turned.imag), dim=-1)


def prefill(tokens: Sequence[int], grafted: Sequence[tuple[Graft, KV]] = ()) -> KV:
    """Keys and values of a prompt, in float32; those of grafts are taken as they come, in every layer."""
    state = EMBEDDING[torch.tensor(tokens)]
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in range(LAYERS):
        query, key, value = ((state @ made[layer]).view(-1, HEADS, HEAD_DIM) for made in (QUERY, KEY, VALUE))
        query, key = rotated(query), rotated(key)
        for graft, kv in grafted:
            key[graft.start : graft.end], value[graft.start : graft.end] = kv.keys[layer], kv.values[layer]
        scores = torch.einsum("ihd,jhd->hij", query, key) / HEAD_DIM**0.5
        ahead = torch.ones(len(tokens), len(tokens)).triu(1).bool()
        weights = scores.masked_fill(ahead, -torch.inf).softmax(dim=-1)
        state = state + torch.einsum("hij,jhd->ihd", weights, value).flatten(1) @ OUT[layer]
        kept.append((key.float(), value.float()))
    keys, values = (torch.stack(parts) for parts in zip(*kept, strict=True))
    return KV(keys, values)


def words(seed: int, length: int) -> Text:
    return random.Random(seed).choices(range(VOCABULARY), k=length)


def made(max_bytes: int = 10**9, entropy: float = 0.3, anchors: int = 20) -> Reuse:
    rotary = Rotary(torch.cat((ANGLES.cos(), ANGLES.sin()), dim=1).float(), neox=True)
    return Reuse(rotary, HostMemory(max_bytes), min_tokens=32, entropy=entropy, anchors=anchors)


def prompt(agent: str, *parts: Part, mode: Mode = Mode.ROTATE, namespace: str = "", repair_tokens: int = 0) -> Prompt:
    tokens: Text = []
    slots: list[Slot] = []
    for part in parts:
        text = part[1] if isinstance(part, tuple) else part
        if isinstance(part, tuple):
            slots.append(Slot(start=len(tokens), end=len(tokens) + len(text), name=part[0]))
        tokens += text
    return Prompt(
        namespace=namespace,
        workflow_type="review",
        agent=agent,
        tokens=torch.tensor(tokens),
        slots=tuple(slots),
        method=Method(mode=mode, repair_tokens=repair_tokens),
    )


def reading(kv: KV) -> Read:
    def read(start: int, end: int) -> KV:
        part = kv.span(start, end)
        return KV(part.keys.clone(), part.values.clone())

    return read


def exact(asked: Prompt) -> KV:
    return prefill(asked.tokens.tolist())


def serve(reuse: Reuse, asked: Prompt, cached_tokens: int = 0) -> tuple[Plan, KV]:
    """Do for a prompt what a server does; returns what was planned, and its KV."""
    plan = reuse.plan(asked, cached_tokens)
    kv = prefill(asked.tokens.tolist(), [(graft, reuse.fill(asked, graft, CPU)) for graft in plan.grafts])
    reuse.computed(asked, plan, reading(kv))
    return plan, kv


def spans(plan: Plan) -> list[tuple[int, int]]:
    return [(graft.start, graft.end) for graft in plan.grafts]


def error(got: KV, expected: KV) -> float:
    """How far KV is from other KV, in parts of the largest number in it."""
    pairs = ((got.keys, expected.keys), (got.values, expected.values))
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


FLOAT32_ROUNDING = 2e-6
TEXT, OTHER, THIRD = words(1, 64), words(2, 64), words(3, 80)
ROLE, QUESTION = words(10, 21), words(11, 40)


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


def knowing(*texts: Text) -> Reuse:
    """A planner has handed out texts, in prompts of their own."""
    reuse = made()
    for text in texts:
        serve(reuse, prompt("planner", words(20, 10), ("document", text), mode=Mode.KVCOMM))
    return reuse


def taught(*texts: Text, question: Text = QUESTION) -> Reuse:
    """A critic has seen what a planner has handed it, twice or more often."""
    reuse = knowing(*texts)
    for text in texts:
        plan, _ = serve(reuse, critics(text, question))
        assert plan.grafts == (), "examples are computed"
    return reuse


def critics(text: Text, question: Text = QUESTION, role: Text = ROLE) -> Prompt:
    return prompt("critic", role, ("document", text), question, mode=Mode.KVCOMM)


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


def test_without_it_the_others_are_put_in() -> None:
    reuse = known_but_for_the_second()
    asked = prompt("critic", ROLE, THREE[0], OTHER, THREE[2], QUESTION, mode=Mode.KVCOMM)
    assert [graft.start for graft in reuse.plan(asked, 0).grafts] == [21, 85, 149, 229]


def test_an_answer_is_at_hand_for_the_next_agent() -> None:
    reuse = made()
    asked = prompt("planner", ROLE, ("document", TEXT))
    serve(reuse, asked)
    answer = words(50, 45)
    whole = asked.tokens.tolist() + answer
    reuse.answered(asked, torch.tensor(whole), True, reading(prefill(whole)))
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
    reuse.answered(asked, torch.tensor(whole), True, reading(prefill(whole)))
    assert len(reuse.segments) == 0


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
            reuse.answered(asked, torch.tensor(tokens), not plan.grafts, reading(prefill(tokens)))
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
