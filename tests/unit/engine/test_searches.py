"""One search for what is needed next serves several loads and copies, each looked at again when its turn comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvflow.engine import BackupPlanner, Fetcher, PromptClaim
from kvflow.engine.ahead import nearest
from kvflow.engine.claim import Claim
from kvflow.engine.claims import ClaimTable
from kvflow.policy import PrefetchPace
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.load_table import COSTS, Node, Table

MANY = 1_064
"""Contexts with which there is a quarter of a second between two searches."""


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the looks through all claims."""
    original = ClaimTable.expected

    def expected(table: Any) -> Iterator[Claim]:
        table.searches = getattr(table, "searches", 0) + 1
        return original(table)

    monkeypatch.setattr(ClaimTable, "expected", expected)


class Server(Table):
    """A server with many contexts, all on the host and needed soon, the first ones first."""

    def __init__(self, contexts: int = MANY) -> None:
        super().__init__()
        self.free_tokens = 10**6
        self.nodes = [Node(20, self.root, evicted=True) for _ in range(contexts)]
        for number, node in enumerate(self.nodes):
            self.expect(number, 0.1)
            claim = PromptClaim(workflow_id=f"w{number}", workflow_type="t", agent="g")
            self.coordinator.tag(claim, [(node, 20)], 0)
            self.expect(number, 0.1 + number / 1e5)

    @property
    def searches(self) -> int:
        return getattr(self.coordinator.claims, "searches", 0)

    def expect(self, number: int, due_s: float) -> None:
        claims = (ClaimPrediction(agent="g", steps=0, due_s=self.coordinator.claims.clock.now_s + due_s),)
        self.coordinator.apply(WorkflowUpdate(workflow_id=f"w{number}", workflow_type="t", claims=claims))

    def end(self, number: int) -> None:
        self.coordinator.apply(WorkflowUpdate(workflow_id=f"w{number}", workflow_type="t", retired=True))


def test_one_search_serves_several_loads_in_their_order() -> None:
    server = Server()
    assert [server.load().anchor for _ in range(20)] == server.nodes[:20]
    assert server.searches == 1


def test_what_has_been_found_is_looked_at_again_when_its_turn_comes() -> None:
    server = Server()
    server.load()
    server.end(1)
    server.nodes[2].evicted = False
    server.coordinator.claims.hold("w3", 1.0)
    server.expect(4, 100.0)
    claims = (ClaimPrediction(agent="g", steps=0, since_s=9.0, requests=1),)
    server.coordinator.apply(WorkflowUpdate(workflow_id="w5", workflow_type="t", claims=claims))
    assert server.load().anchor is server.nodes[6]
    assert server.searches == 1


def test_after_a_pause_what_has_come_meanwhile_is_seen() -> None:
    server = Server()
    server.load()
    server.expect(MANY - 1, 0.01)
    assert server.load().anchor is server.nodes[1]
    server.time(10.26)
    assert server.load().anchor is server.nodes[-1]
    assert server.searches == 2


def test_when_all_that_was_found_is_loaded_there_is_another_search_at_once() -> None:
    server = Server()
    search = nearest(server.coordinator)
    for node in server.nodes[:100]:
        assert search.found()[0].tip is node
        node.evicted = False
    assert server.searches == 2


def test_with_few_contexts_each_load_sees_all_there_is() -> None:
    server = Server(50)
    server.load()
    server.expect(40, 0.01)
    assert server.load().anchor is server.nodes[40]


def test_one_search_serves_several_fetches() -> None:
    server = Server()
    for node in server.nodes:
        node.backuped = False
    pace = PrefetchPace(COSTS.of_storage(), link_share=1.0, device_tokens=16_000)
    fetcher = Fetcher(server.coordinator, pace, lambda: server.counters, least_tokens=lambda: 10)
    for node in server.nodes[:10]:
        fetch = fetcher.next()
        assert fetch is not None
        assert fetch.last is node
        node.backuped = True
    assert server.searches == 1


@pytest.mark.parametrize("announced", [0.05, 5.0])
def test_of_requests_that_wait_only_those_just_announced_are_looked_at(announced: float) -> None:
    server = Server()
    table = server.coordinator.claims
    for number in range(300, 600):
        claims = (ClaimPrediction(agent="g", steps=0, since_s=10.0 - announced, requests=1),)
        server.coordinator.apply(WorkflowUpdate(workflow_id=f"w{number}", workflow_type="t", claims=claims))
    just = announced < 0.1
    assert (server.next() is None) is just
    assert len(table.announced()) == 300 * just
    assert {*table.announced()} <= {*table.waited_for()}
    server.time(10.2)
    assert not table.announced()


def test_no_more_announced_requests_are_remembered_than_are_new() -> None:
    server, at_once = Server(1), 0
    for step in range(2_000):
        server.time(20.0 + step)
        claims = (ClaimPrediction(agent="g", steps=0, since_s=20.0 + step, requests=1),)
        server.coordinator.apply(WorkflowUpdate(workflow_id=f"new {step % 400}", workflow_type="t", claims=claims))
        at_once = max(at_once, len(server.coordinator.claims._announced))
    assert at_once < 100


class Copies(Server):
    """A server whose contexts are on the device alone, and not needed for long."""

    def __init__(self, contexts: int = MANY) -> None:
        super().__init__(contexts)
        self.planner = BackupPlanner(self.coordinator, 1_000)
        for number, node in enumerate(self.nodes):
            node.evicted = node.backuped = False
            self.expect(number, 50.0)

    def copied(self) -> int | None:
        node = self.planner.next(lambda node: False)
        if node is None:
            return None
        node.backuped = True
        return next(number for number, each in enumerate(self.nodes) if each is node)


def test_one_search_serves_several_copies() -> None:
    server = Copies()
    assert [server.copied() for _ in range(100)] == list(range(100))
    assert server.searches == 2


def test_a_copy_is_looked_at_again_when_its_turn_comes() -> None:
    server = Copies()
    server.copied()
    server.end(1)
    server.nodes[2].backuped = True
    server.nodes[3].evicted = True
    server.expect(4, 0.1)
    claims = (ClaimPrediction(agent="g", steps=0, since_s=9.0, requests=1),)
    server.coordinator.apply(WorkflowUpdate(workflow_id="w5", workflow_type="t", claims=claims))
    assert server.copied() == 6
    assert server.searches == 1


def test_while_nothing_is_to_be_copied_there_are_ten_searches_a_second() -> None:
    server = Copies(30)
    assert [server.copied() for _ in range(30)] == list(range(30))
    for step in range(100):
        server.time(10.0 + step / 100)
        assert server.copied() is None
    assert server.searches <= 11
    server.nodes[7].backuped = False
    server.time(11.2)
    assert server.copied() == 7


def test_copies_that_are_under_way_do_not_make_for_searches_while_others_are_ordered() -> None:
    server = Copies(30)
    server.planner.order(server.nodes[:3], until_s=100.0)
    for step in range(50):
        server.time(10.0 + step / 1000)
        assert server.planner.next(lambda node: True) is None
    assert server.searches == 1
