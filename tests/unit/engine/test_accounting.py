"""Counting hits, recomputes and evictions."""

from __future__ import annotations

from kvflow.engine import Accounting, Tier
from kvflow.engine.accounting import GhostPages
from kvflow.policy import EvictionClass


def test_computing_the_same_pages_again_is_a_recompute() -> None:
    accounting = Accounting(page_tokens=16)
    accounting.prompt(list(range(150)), "", {})
    accounting.prompt(list(range(150)), "", {Tier.DEVICE: 64})
    counters = accounting.counters
    assert counters.computed_tokens == 150 + 86
    assert counters.recomputed_tokens == 64  # the second run of 64; the last tokens fill none
    assert counters.hit_tokens == {"device": 64, "host": 0, "storage": 0}


def test_equal_tokens_in_another_namespace_are_not_a_recompute() -> None:
    accounting = Accounting(page_tokens=16)
    accounting.prompt(list(range(64)), "a", {})
    accounting.prompt(list(range(64)), "\ud800", {})  # a client may send any text
    assert accounting.counters.recomputed_tokens == 0


def test_a_page_counts_with_everything_before_it() -> None:
    ghost = GhostPages(2, 100)
    ghost.observe([1, 2, 3, 4], "", computed_from=0)
    assert ghost.observe([9, 9, 3, 4], "", computed_from=0) == 0
    assert ghost.observe([1, 2, 3, 4], "", computed_from=2) == 2


def test_remembered_pages_are_bounded_and_hits_keep_them() -> None:
    ghost = GhostPages(1, 3)
    ghost.observe([1], "", computed_from=0)
    ghost.observe([2], "", computed_from=0)
    ghost.observe([1], "", computed_from=1)  # found in the cache
    ghost.observe([3], "", computed_from=0)
    ghost.observe([4], "", computed_from=0)
    assert ghost.observe([1], "", computed_from=0) == 1
    assert ghost.observe([2], "", computed_from=0) == 0


def test_a_flush_is_not_an_eviction() -> None:
    accounting = Accounting(page_tokens=64)
    accounting.prompt(list(range(64)), "", {})
    accounting.forget_pages()
    accounting.prompt(list(range(64)), "", {})
    assert accounting.counters.recomputed_tokens == 0


def test_evictions_are_counted_by_tier_and_class() -> None:
    accounting = Accounting(page_tokens=1)
    accounting.evicted(Tier.HOST, EvictionClass.TAIL, 32)
    assert accounting.counters.evicted_tokens["host/tail"] == 32
    assert sum(accounting.counters.evicted_tokens.values()) == 32
