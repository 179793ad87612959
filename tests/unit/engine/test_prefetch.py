"""What is loaded ahead, into whose memory, and what became of it."""

from __future__ import annotations

from typing import Any

import pytest

from kvflow.engine import PromptClaim
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.load_table import Node, Table


@pytest.fixture
def table() -> Table:
    return Table()


def test_what_is_needed_soonest_is_loaded_first_and_what_is_far_is_not(table: Table) -> None:
    table.free_tokens = 300
    table.evict("a", "b", "c")
    table.say("w", a=0.4, b=0.2, c=30)
    assert table.load().anchor is table.fixed["b"]
    assert table.load().anchor is table.fixed["a"]
    assert table.next() is None
    table.time(39.9)
    assert table.load().anchor is table.fixed["c"]


def test_nothing_is_loaded_that_is_not_on_the_host(table: Table) -> None:
    table.free_tokens = 300
    table.evict("a")
    table.fixed["a"].backuped = False
    table.say("w", a=0.2)
    assert table.next() is None


def test_nothing_is_loaded_for_requests_that_wait_already(table: Table) -> None:
    table.free_tokens = 300
    table.evict("a")
    claims = (ClaimPrediction(agent="a", steps=0, since_s=10.0),)
    table.coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=claims))
    assert table.next() is None


def test_nothing_is_begun_ahead_of_a_request_that_is_about_to_load_for_itself(table: Table) -> None:
    table.free_tokens = 300
    table.evict("a", "b")
    claims = (
        ClaimPrediction(agent="a", steps=0, since_s=10.0),
        ClaimPrediction(agent="b", steps=1, due_s=10.2),
    )
    table.coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=claims))
    assert table.next() is None
    table.time(10.15)
    assert table.load().anchor is table.fixed["b"], "what it waits for now is not the link"


def test_a_request_with_all_of_its_context_there_holds_nothing_up(table: Table) -> None:
    table.free_tokens = 300
    table.evict("b")
    claims = (
        ClaimPrediction(agent="a", steps=0, since_s=10.0),
        ClaimPrediction(agent="b", steps=1, due_s=10.2),
    )
    table.coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=claims))
    assert table.load().anchor is table.fixed["b"]


def test_an_unlikely_branch_is_not_loaded(table: Table) -> None:
    table.free_tokens = 300
    table.evict("a", "b")
    claims = tuple(ClaimPrediction(agent=a, steps=1, probability=p, due_s=10.2) for a, p in (("a", 0.2), ("b", 0.4)))
    table.coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=claims))
    assert table.load().anchor is table.fixed["b"]
    assert table.next() is None


def test_room_is_made_by_what_is_worth_less_and_by_nothing_else(table: Table) -> None:
    table.evict("a")
    table.say("w", a=0.3, b=0.1, c=0.2, d=0.25, e=0.28, f=100)
    assert table.load().anchor is table.fixed["a"]
    table.prefetcher.ended(table.fixed["a"].load)
    table.evict("f")
    table.say("w", a=0.1, b=0.1, c=0.2, d=0.25, e=0.28, f=0.4)
    assert table.next() is None, "all that is there is needed sooner"
    table.fixed["e"].locked = True
    table.time(10.2)
    table.say("w", a=0.1, b=0.1, c=0.2, d=0.25, e=100, f=0.4)
    assert table.next() is None, "what could leave is needed by a request"
    table.fixed["e"].locked = False
    table.time(10.4)
    assert table.load().anchor is table.fixed["f"]


def test_room_is_made_by_whole_branches(table: Table) -> None:
    tail = Node(20, table.fixed["b"])
    table.evict("a")
    table.say("w", a=0.2, b=100, c=0.1, d=0.1, e=0.1, f=0.1)
    assert table.load().anchor is table.fixed["a"]
    tail.locked = True
    table.fixed["b"].locked = True
    table.evict("a")
    table.time(10.1)
    assert table.next() is None


def test_under_recency_alone_only_free_memory_is_used() -> None:
    table = Table(policy="lru")
    table.evict("a")
    table.say("w", a=0.2)
    assert table.next() is None
    table.free_tokens = 100
    table.time(10.1)
    assert table.load().anchor is table.fixed["a"]


def test_a_long_context_comes_in_parts_from_the_top() -> None:
    table = Table(max_tokens=150)
    table.free_tokens = 1000
    tails = [Node(80, table.fixed["a"])]
    tails.append(Node(60, tails[0]))
    table.say("w", a=0.2)
    claim = PromptClaim(workflow_id="w", workflow_type="t", agent="a")
    table.coordinator.tag(claim, [(tails[1], 240), (tails[0], 180), (table.fixed["a"], 100)], 100)
    table.evict("a")
    for tail in tails:
        tail.evicted = True
    assert table.load().nodes == [table.fixed["a"]]
    assert table.load().nodes == tails


def test_what_has_no_room_leaves_the_rest_above_it(table: Table) -> None:
    tail = Node(20, table.fixed["a"])
    table.say("w", a=0.2, b=100, c=0.1, d=0.1, e=0.1, f=0.1)
    claim = PromptClaim(workflow_id="w", workflow_type="t", agent="a")
    table.coordinator.tag(claim, [(tail, 120), (table.fixed["a"], 100)], 100)
    table.evict("a")
    tail.evicted = True
    assert table.load().nodes == [table.fixed["a"]]
    table.evict("b")
    table.prefetcher.ended(table.fixed["a"].load)
    table.free_tokens = 20
    table.time(10.1)
    assert table.load().nodes == [tail]


def test_a_tail_comes_with_its_fixed_prompt_where_memory_is_free(table: Table) -> None:
    tail = Node(20, table.fixed["a"])
    table.say("w", a=0.2, b=100, c=0.1, d=0.1, e=0.1, f=0.1)
    claim = PromptClaim(workflow_id="w", workflow_type="t", agent="a")
    table.coordinator.tag(claim, [(tail, 120), (table.fixed["a"], 100)], 100)
    table.evict("a")
    tail.evicted = True
    table.free_tokens = 20
    assert table.load().nodes == [table.fixed["a"], tail]


def test_what_hangs_below_something_lost_is_not_loaded(table: Table) -> None:
    table.free_tokens = 1000
    tail = Node(80, table.fixed["a"])
    table.say("w", a=0.2)
    claim = PromptClaim(workflow_id="w", workflow_type="t", agent="a")
    table.coordinator.tag(claim, [(tail, 180), (table.fixed["a"], 100)], 100)
    table.evict("a")
    tail.evicted, tail.backuped = True, False
    assert table.load().nodes == [table.fixed["a"]]


@pytest.mark.parametrize(
    ("late", "counted"), [(False, "prefetch_used_tokens"), (True, "prefetch_late_tokens")], ids=["in time", "late"]
)
def test_each_load_ends_as_used_late_or_wasted(table: Table, late: bool, counted: str) -> None:
    table.free_tokens = 1000
    table.evict("a", "b")
    table.say("w", a=0.2, b=0.3)
    load = table.load()
    if not late:
        table.prefetcher.ended(load)
    table.prefetcher.used([table.fixed["a"]])
    table.prefetcher.used([table.fixed["a"]])
    wasted = table.load()
    table.prefetcher.ended(wasted)
    table.prefetcher.left(table.fixed["b"])
    table.prefetcher.left(table.fixed["b"])
    counts: dict[str, Any] = {name: getattr(table.counters, name) for name in table.counters.__slots__}
    assert counts["prefetches"] == 2
    assert counts["prefetched_tokens"] == 200
    assert counts[counted] == counts["prefetch_wasted_tokens"] == 100
    assert counts["prefetch_used_tokens"] + counts["prefetch_late_tokens"] == 100


def test_a_divided_node_is_used_and_wasted_part_by_part(table: Table) -> None:
    table.free_tokens = 1000
    table.evict("a")
    table.say("w", a=0.2)
    table.prefetcher.ended(table.load())
    lower = table.fixed["a"]
    upper = Node(40, table.root)
    lower.parent, lower.tokens = upper, 60
    table.coordinator.split(upper, lower)
    table.prefetcher.used([upper])
    table.prefetcher.left(lower)
    assert (table.counters.prefetch_used_tokens, table.counters.prefetch_wasted_tokens) == (40, 60)


def test_where_there_was_no_room_nothing_is_tried_for_a_moment(table: Table) -> None:
    table.evict("a")
    table.say("w", a=0.2, b=0.1, c=0.1, d=0.1, e=0.1, f=0.1)
    assert table.next() is None
    table.say("w", a=0.2, b=100, c=0.1, d=0.1, e=0.1, f=0.1)
    assert table.next() is None
    table.time(10.15)
    assert table.load().anchor is table.fixed["a"]


def test_an_order_that_has_no_room_holds_up_neither_other_orders_nor_predictions(table: Table) -> None:
    table.evict("a", "b", "c")
    table.say("w", b=100, c=0.1, d=0.2, e=0.2, f=100)
    assert table.prefetcher.order([table.fixed["a"]], until_s=100.0), "nobody is known to use it"
    assert table.load().anchor is table.fixed["c"]
    table.prefetcher.ended(table.fixed["c"].load)
    table.time(10.3)
    assert table.prefetcher.order([table.fixed["b"]], until_s=100.0)
    table.free_tokens = 100
    table.fixed["a"].backuped = False
    assert table.load().anchor is table.fixed["b"]


def test_orders_that_nobody_uses_cost_predictions_nothing(table: Table) -> None:
    table.free_tokens = 1000
    for second in range(100):
        table.time(20.0 + second)
        table.evict("a")
        table.prefetcher.order([table.fixed["a"]], until_s=1000.0)
        table.prefetcher.ended(table.load())
        table.prefetcher.left(table.fixed["a"])
    assert table.counters.prefetch_wasted_tokens == 10_000
    assert table.pace.may_load


def test_without_news_nothing_is_looked_at_again(table: Table) -> None:
    table.evict("a")
    table.say("w", a=0.2, b=0.1, c=0.1, d=0.1, e=0.1, f=0.1)
    assert not table.prefetcher.settled
    assert table.next() is None
    table.free_tokens = 1000
    assert table.prefetcher.settled
    assert table.next() is None
    table.time(10.1)
    assert not table.prefetcher.settled
    assert table.next() is not None


@pytest.mark.parametrize(
    ("running", "promised_tokens", "loads"),
    [(0, 0, True), (1, 0, True), (2, 0, False), (0, 40, True), (0, 41, False), (1, 11, True), (1, 12, False)],
)
def test_what_requests_need_meanwhile_is_left_to_them(running: int, promised_tokens: int, loads: bool) -> None:
    """100 tokens take 0.1 s, or 13 steps of 8 ms, in which a request fills a page of 16 and 13 more at most."""
    table = Table()
    table.evict("a")
    for agent in "bcdef":
        table.fixed[agent].locked = True
    table.free_tokens, table.running, table.promised_tokens = 140, running, promised_tokens
    table.say("w", a=0.2)
    assert (table.next() is not None) == loads


def test_what_can_leave_for_them_counts_unless_the_load_hangs_below_it() -> None:
    table = Table()
    tail = Node(100, table.fixed["a"])
    table.say("w", a=0.2)
    context = [(tail, 200), (table.fixed["a"], 100)]
    table.coordinator.tag(PromptClaim(workflow_id="w", workflow_type="t", agent="a"), context, 100)
    tail.evicted = True
    for agent in "cdef":
        table.fixed[agent].locked = True
    table.free_tokens, table.running = 110, 2
    table.fixed["b"].locked = True
    assert table.next() is None, "a's own prompt cannot leave while what hangs below it comes"
    table.fixed["b"].locked = False
    table.time(10.15)
    assert table.load().anchor is tail


def test_contexts_that_are_there_do_not_keep_one_that_is_not_from_being_looked_at(table: Table) -> None:
    table.free_tokens = 300
    for number in range(40):
        table.say(f"there {number}", a=0.1)
    table.evict("b")
    table.say("w", b=0.4)
    assert table.load().anchor is table.fixed["b"]


def test_contexts_of_programs_that_are_held_are_not_loaded_until_their_turn_comes(table: Table) -> None:
    table.free_tokens = 300
    table.evict("a", "b")
    table.say("held", a=0.1)
    table.say("let in", b=0.3)
    table.coordinator.claims.hold("held", 0.05)
    assert table.load().anchor is table.fixed["b"]
    assert table.next() is None
    table.coordinator.claims.hold("held", 0.0)
    assert table.load().anchor is table.fixed["a"]
