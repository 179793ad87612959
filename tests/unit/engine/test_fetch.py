"""What is fetched from storage ahead of use, and what became of it."""

from __future__ import annotations

from kvflow.engine import Fetch, Fetcher
from kvflow.policy import PrefetchPace
from tests.unit.engine.load_table import COSTS, Node, Table


class Shelf(Table):
    """A server whose contexts may be on storage alone: SGLang takes those out of the tree."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: set[Node] = set()
        self.coordinator._cached = lambda node: node not in self.gone
        pace = PrefetchPace(COSTS.of_storage(), link_share=1.0, device_tokens=16_000)
        self.least_tokens = 50
        self.fetcher = Fetcher(self.coordinator, pace, lambda: self.counters, least_tokens=lambda: self.least_tokens)

    def lose(self, *agents: str) -> None:
        for agent in agents:
            self.gone.add(self.fixed[agent])
            self.fixed[agent].evicted, self.fixed[agent].backuped = True, False

    def fetch(self) -> Fetch:
        fetch = self.fetcher.next()
        assert fetch is not None
        self.fetcher.begun(fetch)
        return fetch

    def bring(self, agent: str) -> Node:
        """What was asked for arrives on the host, under a new node."""
        fetch = self.fetch()
        assert fetch.last is self.fixed[agent]
        node = self.fixed[agent] = Node(100, self.root, evicted=True)
        self.fetcher.ended(fetch, [(node, 100)], 100)
        return node


def test_what_is_used_soonest_is_fetched_first_and_only_what_host_and_device_do_not_have() -> None:
    shelf = Shelf()
    shelf.lose("a", "b")
    shelf.evict("c")
    shelf.say("w", a=0.3, b=0.1, c=0.05)
    shelf.bring("b")
    shelf.bring("a")
    assert shelf.fetcher.next() is None
    assert (shelf.counters.fetches, shelf.counters.fetched_tokens) == (2, 200)


def test_below_how_much_nothing_is_fetched_may_become_known_late() -> None:
    shelf = Shelf()
    shelf.lose("a")
    shelf.say("w", a=0.1)
    shelf.least_tokens = 101
    assert shelf.fetcher.next() is None
    shelf.least_tokens = 100
    shelf.coordinator.tick(60.0)
    shelf.say("w", a=0.1)
    shelf.bring("a")


def test_what_has_come_is_loaded_to_the_device_next() -> None:
    shelf = Shelf()
    shelf.lose("a")
    shelf.free_tokens = 1000
    shelf.say("w", a=0.1)
    assert shelf.next() is None
    node = shelf.bring("a")
    assert shelf.load().anchor is node


def test_what_storage_does_not_have_is_not_asked_for_again() -> None:
    shelf = Shelf()
    shelf.lose("a")
    shelf.say("w", a=0.1)
    shelf.fetcher.ended(shelf.fetch(), [], 0)
    shelf.say("v", a=0.1)
    assert shelf.fetcher.next() is None
    assert shelf.counters.fetched_tokens == 0


def test_uses_far_off_and_short_contexts_are_left_where_they_are() -> None:
    shelf = Shelf()
    shelf.lose("a", "b")
    shelf.fixed["b"].tokens = 40
    shelf.say("w", a=600.0, b=0.1)
    assert shelf.fetcher.next() is None


def test_a_fetch_that_cannot_begin_is_tried_again_later_and_holds_up_no_other() -> None:
    shelf = Shelf()
    shelf.lose("a", "b")
    shelf.say("w", a=0.1, b=0.2)
    refused = shelf.fetcher.next()
    assert refused is not None
    assert refused.last is shelf.fixed["a"]
    shelf.fetcher.refused(refused)
    shelf.bring("b")
    assert shelf.fetcher.next() is None
    shelf.time(11.0)
    again = shelf.fetcher.next()
    assert again is not None
    assert again.last is shelf.fixed["a"]


def test_every_token_fetched_ends_used_or_wasted() -> None:
    shelf = Shelf()
    shelf.lose("a", "b")
    shelf.say("w", a=0.1, b=0.2)
    used, wasted = shelf.bring("a"), shelf.bring("b")
    shelf.fetcher.used([used])
    shelf.fetcher.left(used)
    shelf.fetcher.left(wasted)
    assert (shelf.counters.fetch_used_tokens, shelf.counters.fetch_wasted_tokens) == (100, 100)


def test_fetches_that_are_never_used_come_to_an_end() -> None:
    shelf = Shelf()
    for number in range(1000):
        shelf.lose("a")
        shelf.say(f"w{number}", a=0.1)
        if shelf.fetcher.next() is None:
            break
        shelf.fetcher.left(shelf.bring("a"))
    assert 16_000 / 16 <= shelf.counters.fetch_wasted_tokens <= 2 * 16_000 / 16


def test_after_a_flush_nothing_that_was_under_way_counts() -> None:
    shelf = Shelf()
    for number in range(300):
        shelf.time(11.0 + number)
        shelf.lose("a")
        shelf.say(f"w{number}", a=0.1)
        shelf.fetch()
        shelf.fetcher.flushed()
