"""Loads in the background that requests wait for in the queue."""

from __future__ import annotations

import pytest

from kvflow.engine import Load, LoadRetry
from tests.unit.engine.load_table import Node, Table


def ask(table: Table, *retries: LoadRetry) -> Load | None:
    """Requests that wait for what agent b's fixed prompt has left on the host."""
    return table.prefetcher.asked([(retry, table.fixed["b"]) for retry in retries], table.room(), table.device)


@pytest.fixture
def table() -> Table:
    return Table()


def test_what_a_request_waits_for_needs_room_but_no_budget_and_counts_apart() -> None:
    table = Table()
    table.evict("a", "b")
    table.say("w", a=0.1)
    table.free_tokens = 150
    load = ask(table, LoadRetry())
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
    assert ask(table, LoadRetry()) is None, "all else is needed sooner"


def test_a_request_without_room_asks_again_once_there_is_more(table: Table) -> None:
    retry = LoadRetry()
    table.evict("b")
    for agent in "acdef":
        table.fixed[agent].locked = True
    table.free_tokens = 80
    assert ask(table, retry) is None
    assert not retry.due(80)
    table.free_tokens = 120
    assert retry.due(table.room().available_tokens)
    assert ask(table, retry) is not None
    assert retry.due(0), "that has been forgotten: part of the context may still be missing"


def test_all_that_ask_in_one_pass_are_told_and_nobody_in_the_pause_behind_it(table: Table) -> None:
    first, second, later = LoadRetry(), LoadRetry(), LoadRetry()
    table.say("v", a=0.05, c=0.05, d=0.05, e=0.05, f=0.05)
    table.evict("b")
    assert ask(table, first, second) is None
    available = table.room().available_tokens
    assert not first.due(available)
    assert not second.due(available)
    table.time(10.003)  # five leaves have been looked at twice, of the 256 for which there would be a tenth of a second
    assert ask(table, later) is None
    assert later.due(available)
    table.time(10.005)
    assert ask(table, later) is None
    assert not later.due(available)


def test_who_comes_behind_one_without_room_gets_his_load(table: Table) -> None:
    large, small, next_one = LoadRetry(), LoadRetry(), LoadRetry()
    table.evict("b", "c")
    for agent in "adef":
        table.fixed[agent].locked = True
    table.fixed["b"].tokens = 500
    table.free_tokens = 120
    asking = [(large, table.fixed["b"]), (small, table.fixed["c"]), (next_one, table.fixed["c"])]
    load = table.prefetcher.asked(asking, table.room(), table.device)
    assert load is not None
    assert load.anchor is table.fixed["c"]
    available = table.room().available_tokens
    assert (large.due(available), next_one.due(available)) == (False, True)
    assert (small.loads, next_one.loads) == (1, 0)


def test_one_pass_does_not_look_through_many_leaves_for_everybody(table: Table) -> None:
    table.evict("b")
    for _ in range(300):
        Node(100, table.root)
    table.coordinator.set_policy("lru")  # into what is free alone
    first, second = LoadRetry(), LoadRetry()
    assert ask(table, first, second) is None
    available = table.room().available_tokens
    assert (first.due(available), second.due(available)) == (False, True)


def test_what_does_not_come_in_four_loads_a_request_loads_itself(table: Table) -> None:
    retry = LoadRetry()
    table.free_tokens = 150
    table.evict("b")
    for _ in range(4):
        assert retry.due(0)
        assert ask(table, retry) is not None
    assert not retry.due(10_000)


def test_what_a_request_asked_for_and_gave_up_is_wasted_once_it_leaves(table: Table) -> None:
    table.free_tokens = 150
    table.evict("b")
    load = ask(table, LoadRetry())
    assert load is not None
    table.prefetcher.begun(load)
    table.prefetcher.ended(load)
    assert (table.counters.background_used_tokens, table.counters.background_wasted_tokens) == (0, 0)
    for _ in range(2):
        table.prefetcher.left(table.fixed["b"])
    table.prefetcher.used([table.fixed["b"]])
    assert (table.counters.background_used_tokens, table.counters.background_wasted_tokens) == (0, 100)
    assert table.counters.prefetch_wasted_tokens == 0
