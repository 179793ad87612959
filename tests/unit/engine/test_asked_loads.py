"""Loads in the background that requests wait for in the queue."""

from __future__ import annotations

import pytest

from kvflow.engine import LoadRetry
from tests.unit.engine.load_table import Table


@pytest.fixture
def table() -> Table:
    return Table()


def test_what_a_request_waits_for_needs_room_but_no_budget_and_counts_apart() -> None:
    table = Table()
    table.evict("a", "b")
    table.say("w", a=0.1)
    table.free_tokens = 150
    load = table.prefetcher.asked(LoadRetry(), table.fixed["b"], table.room(), table.device)
    assert load is not None
    assert load.asked
    table.prefetcher.begun(load)
    assert (table.counters.background_loads, table.counters.background_load_tokens) == (1, 100)
    assert table.counters.prefetches == 0
    table.prefetcher.ended(load)
    for _ in range(2):
        table.prefetcher.used([table.fixed["b"]])
    table.prefetcher.left(table.fixed["b"])
    assert (table.counters.background_used_tokens, table.counters.background_wasted_tokens) == (100, 0)
    assert table.counters.prefetch_used_tokens == table.counters.prefetch_wasted_tokens == 0
    table.say("v", a=0.05, c=0.05, d=0.05, e=0.05, f=0.05)
    table.free_tokens = 50
    assert table.prefetcher.asked(LoadRetry(), table.fixed["b"], table.room(), table.device) is None, (
        "all else is needed sooner"
    )


def test_a_request_without_room_asks_again_once_there_is_more(table: Table) -> None:
    retry = LoadRetry()
    table.evict("b")
    for agent in "acdef":
        table.fixed[agent].locked = True
    table.free_tokens = 80
    assert table.prefetcher.asked(retry, table.fixed["b"], table.room(), table.device) is None
    assert not retry.due(80)
    table.free_tokens = 120
    assert retry.due(table.room().available_tokens)
    assert table.prefetcher.asked(retry, table.fixed["b"], table.room(), table.device) is not None
    assert retry.due(0), "that has been forgotten: part of the context may still be missing"


def test_a_request_is_not_refused_while_nothing_is_tried(table: Table) -> None:
    refused, other = LoadRetry(), LoadRetry()
    table.say("v", a=0.05, c=0.05, d=0.05, e=0.05, f=0.05)
    table.evict("b")
    assert table.prefetcher.asked(refused, table.fixed["b"], table.room(), table.device) is None
    assert table.prefetcher.asked(other, table.fixed["b"], table.room(), table.device) is None
    assert not refused.due(table.room().available_tokens)
    assert other.due(table.room().available_tokens)
    table.time(10.15)
    assert table.prefetcher.asked(other, table.fixed["b"], table.room(), table.device) is None
    assert not other.due(table.room().available_tokens)


def test_what_does_not_come_in_four_loads_a_request_loads_itself(table: Table) -> None:
    retry = LoadRetry()
    table.free_tokens = 150
    table.evict("b")
    for _ in range(4):
        assert retry.due(0)
        assert table.prefetcher.asked(retry, table.fixed["b"], table.room(), table.device) is not None
    assert not retry.due(10_000)


def test_what_a_request_asked_for_and_gave_up_is_wasted_once_it_leaves(table: Table) -> None:
    table.free_tokens = 150
    table.evict("b")
    load = table.prefetcher.asked(LoadRetry(), table.fixed["b"], table.room(), table.device)
    assert load is not None
    table.prefetcher.begun(load)
    table.prefetcher.ended(load)
    assert (table.counters.background_used_tokens, table.counters.background_wasted_tokens) == (0, 0)
    for _ in range(2):
        table.prefetcher.left(table.fixed["b"])
    table.prefetcher.used([table.fixed["b"]])
    assert (table.counters.background_used_tokens, table.counters.background_wasted_tokens) == (0, 100)
    assert table.counters.prefetch_wasted_tokens == 0
