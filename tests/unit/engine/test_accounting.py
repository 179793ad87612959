"""Counting hits, recomputes and evictions."""

from __future__ import annotations

from kvflow.engine import Accounting, Tier, digest_of_head, digests, unit_tokens
from kvflow.engine.accounting import GhostPages
from kvflow.policy import EvictionClass

PROMPT = list(range(150))


def test_computing_the_same_units_again_is_a_recompute() -> None:
    accounting = Accounting(unit_tokens=64)
    accounting.prompt(150, digests(PROMPT, "", 64), {})
    assert accounting.prompt(150, digests(PROMPT, "", 64), {Tier.DEVICE: 64}) == 64
    counters = accounting.counters
    assert counters.computed_tokens == 150 + 86
    assert counters.recomputed_tokens == 64  # the second unit; the last tokens fill none
    assert counters.hit_tokens == {"device": 64, "host": 0, "storage": 0}


def test_equal_tokens_in_another_namespace_are_not_a_recompute() -> None:
    accounting = Accounting(unit_tokens=64)
    accounting.prompt(150, digests(PROMPT, "a", 64), {})
    accounting.prompt(150, digests(PROMPT, "\ud800", 64), {})  # a client may send any text
    assert accounting.counters.recomputed_tokens == 0


def test_an_answer_is_a_recompute_when_the_next_prompt_repeats_it() -> None:
    accounting = Accounting(unit_tokens=64)
    prompt, whole = digests(PROMPT[:64], "", 64), digests(PROMPT, "", 64)
    accounting.prompt(64, prompt, {})
    accounting.cached(whole[len(prompt) :])
    assert accounting.prompt(150, whole, {Tier.DEVICE: 64}) == 64


def test_a_unit_counts_with_everything_before_it() -> None:
    assert digests([1, 2, 3, 4], "", 2)[1] != digests([9, 9, 3, 4], "", 2)[1]
    assert digests([1, 2, 3, 4, 5], "", 2) == digests([1, 2, 3, 4], "", 2)


def test_a_chain_of_digests_can_be_continued() -> None:
    whole = digests(PROMPT, "n", 16)
    for known in (0, 1, 5, 9):
        assert digests(PROMPT, "n", 16, known=whole[:known]) == whole
    assert digests(PROMPT[:40], "n", 16, known=whole) == whole[:2]


def test_units_are_whole_pages_of_at_least_64_tokens() -> None:
    assert [unit_tokens(page) for page in (1, 16, 48, 64, 100)] == [64, 64, 96, 64, 100]


def test_remembered_units_are_bounded_and_hits_keep_them() -> None:
    ghost = GhostPages(1, 3)
    for digest in (1, 2, 1, 3, 4):  # the second 1 was found in the cache
        ghost.remember([digest])
    assert ghost.known([1], 0) == 1
    assert ghost.known([2], 0) == 0


def test_prompts_of_one_batch_have_not_lost_what_they_share() -> None:
    accounting = Accounting(unit_tokens=64)
    prompt = digests(PROMPT, "", 64)
    known = [accounting.known(prompt, 0) for _ in range(2)]
    for recomputed in known:
        accounting.prompt(150, prompt, {}, recomputed)
    assert accounting.counters.recomputed_tokens == 0
    assert accounting.prompt(150, prompt, {}) == 128


def test_prompts_that_begin_alike_have_one_digest_of_that_and_short_ones_none() -> None:
    one, other = digests([*PROMPT, 1], "", 64), digests([*PROMPT[:128], *range(500)], "", 64)
    assert digest_of_head(one, 130, 64) == digest_of_head(other, 128, 64) == one[1]
    assert digest_of_head(one, 63, 64) is None
    assert digest_of_head([], 500, 64) is None


def test_a_flush_is_not_an_eviction() -> None:
    accounting = Accounting(unit_tokens=64)
    accounting.prompt(150, digests(PROMPT, "", 64), {})
    accounting.forget_pages()
    accounting.prompt(150, digests(PROMPT, "", 64), {})
    assert accounting.counters.recomputed_tokens == 0


def test_evictions_are_counted_by_tier_and_class() -> None:
    accounting = Accounting(unit_tokens=64)
    accounting.evicted(Tier.HOST, EvictionClass.SUPERSEDED, 32)
    assert accounting.counters.evicted_tokens["host/superseded"] == 32
    assert sum(accounting.counters.evicted_tokens.values()) == 32
