"""Counting hits, recomputes and evictions."""

from __future__ import annotations

from kvflow.engine import Accounting, Tier
from kvflow.policy import EvictionClass


def test_computing_the_same_pages_again_is_a_recompute() -> None:
    accounting = Accounting(page_tokens=4)
    accounting.prompt(list(range(10)), "", {})
    accounting.prompt(list(range(10)), "", {Tier.DEVICE: 4})
    counters = accounting.counters
    assert counters.computed_tokens == 16
    assert counters.recomputed_tokens == 4  # the second page; the last two tokens fill no page
    assert counters.hit_tokens == {"device": 4, "host": 0, "storage": 0}


def test_equal_tokens_in_another_namespace_are_not_a_recompute() -> None:
    accounting = Accounting(page_tokens=4)
    accounting.prompt(list(range(8)), "a", {})
    accounting.prompt(list(range(8)), "b", {})
    assert accounting.counters.recomputed_tokens == 0


def test_a_page_counts_with_everything_before_it() -> None:
    accounting = Accounting(page_tokens=2)
    accounting.prompt([1, 2, 3, 4], "", {})
    accounting.prompt([9, 9, 3, 4], "", {})
    assert accounting.counters.recomputed_tokens == 0


def test_remembered_pages_are_bounded() -> None:
    accounting = Accounting(page_tokens=1, ghost_pages=3)
    accounting.prompt([1], "", {})
    accounting.prompt([2, 3, 4], "", {})
    accounting.prompt([1], "", {})
    assert accounting.counters.recomputed_tokens == 0


def test_a_flush_is_not_an_eviction() -> None:
    accounting = Accounting(page_tokens=1)
    accounting.prompt([1, 2], "", {})
    accounting.forget_pages()
    accounting.prompt([1, 2], "", {})
    assert accounting.counters.recomputed_tokens == 0


def test_evictions_are_counted_by_tier_and_class() -> None:
    accounting = Accounting(page_tokens=1)
    accounting.evicted(Tier.HOST, EvictionClass.TAIL, 32)
    assert accounting.counters.evicted_tokens["host/tail"] == 32
    assert sum(accounting.counters.evicted_tokens.values()) == 32
