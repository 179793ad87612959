"""Turns: which of the requests that may run goes first."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from kvflow.engine import Coordinator, PromptClaim
from kvflow.engine.owners import Pin
from kvflow.engine.roles import FixedPrompt
from kvflow.engine.turns import Turns
from kvflow.policy import ProgramAdmission, ServingCosts
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.test_claims import FakeNode


@dataclass
class Request:
    claim: PromptClaim
    tokens: int
    fixed_prompt: FixedPrompt | None = None
    arrived_s: float = 0.0
    interrupted: bool = False


class Queue:
    """Requests of one workflow each, none of them in the cache."""

    def __init__(self, **tokens: int) -> None:
        self.coordinator = Coordinator("cost")
        self.asked: dict[Hashable, Request] = {}
        self.turns = Turns(
            self.coordinator.claims, ProgramAdmission(ServingCosts()), lambda node: node not in self.gone
        )
        self.gone: list[object] = []
        for name, count in tokens.items():
            claims = (ClaimPrediction(agent="a", steps=0, since_s=0.0),)
            self.coordinator.apply(WorkflowUpdate(workflow_id=name, workflow_type="t", claims=claims))
            self.asked[name] = Request(PromptClaim(workflow_id=name, workflow_type="t", agent="a"), count)

    def cached(self, name: str, tokens: int, *, on_device: bool = True) -> FakeNode:
        node = FakeNode(key=range(tokens))
        self.coordinator.tag(self.asked[name].claim, [(node, tokens)], 0)
        if not on_device:
            node.backuped = node.evicted = True
        return node

    def order(self, *names: str) -> list[str]:
        return self.turns.order(names, self.asked)


def test_who_needs_least_of_the_server_goes_first() -> None:
    queue = Queue(long=30_000, short=1_000, middle=10_000)
    queue.coordinator.claims.clock.queue_s = 1.0
    assert queue.order("long", "short", "middle") == ["short", "middle", "long"]


def test_who_has_lost_its_memory_in_the_middle_of_an_answer_is_not_overtaken() -> None:
    queue = Queue(long=30_000, short=1_000, shorter=200)
    queue.coordinator.claims.clock.queue_s = 1.0
    queue.asked["long"].interrupted = True
    assert queue.order("shorter", "short", "no claim", "long") == ["long", "shorter", "no claim", "short"]


def test_who_needs_about_as_much_as_another_does_not_overtake_it() -> None:
    queue = Queue(first=3_300, second=3_200, third=3_250)
    queue.coordinator.claims.clock.queue_s = 1.0
    assert queue.order("first", "second", "third") == ["first", "second", "third"]


def test_who_needs_nothing_goes_first() -> None:
    queue = Queue(some=200, nothing=30_000)
    queue.coordinator.claims.clock.queue_s = 1.0
    queue.cached("nothing", 30_000)
    assert queue.order("some", "nothing") == ["nothing", "some"]


def test_what_is_cached_need_not_be_computed_and_what_is_on_the_host_need_be_loaded() -> None:
    queue = Queue(new=9_000, host=30_000, device=30_000)
    queue.coordinator.claims.clock.queue_s = 1.0
    queue.cached("host", 29_000, on_device=False)
    node = queue.cached("device", 29_000)
    assert queue.order("new", "host", "device") == ["device", "host", "new"]
    queue.gone.append(node)
    assert queue.order("new", "host", "device") == ["host", "new", "device"]


def test_of_what_is_cached_only_what_the_device_lacks_need_be_loaded() -> None:
    queue = Queue(lost=30_000, kept=30_000)
    queue.coordinator.claims.clock.queue_s = 1.0
    queue.cached("lost", 30_000, on_device=False)
    tail = queue.cached("kept", 30_000, on_device=False)
    assert queue.order("lost", "kept") == ["lost", "kept"]
    tail.key, tail.parent = range(2_000), FakeNode(key=range(28_000))
    assert queue.order("lost", "kept") == ["kept", "lost"]


def test_where_the_device_lacks_many_nodes_all_of_a_context_counts_as_loads() -> None:
    queue = Queue(all=30_000, many=30_000, few=30_000)
    queue.coordinator.claims.clock.queue_s = 1.0
    queue.cached("all", 30_000, on_device=False)
    for name, count in (("many", 50), ("few", 5)):
        node = FakeNode(key=range(28_000))
        for _ in range(count):
            node = FakeNode(key=range(40), parent=node, backuped=True, evicted=True)
        queue.coordinator.tag(queue.asked[name].claim, [(node, 30_000)], 0)
    assert queue.order("all", "many", "few") == ["few", "all", "many"]


def test_a_fixed_prompt_in_the_cache_counts_for_who_has_nothing_else_there() -> None:
    queue = Queue(alone=9_000, shares=10_000)
    queue.coordinator.claims.clock.queue_s = 1.0
    queue.asked["shares"].fixed_prompt = FixedPrompt(tokens=8_000, tip=FakeNode(key=range(8_000)))
    assert queue.order("alone", "shares") == ["shares", "alone"]


def test_who_shares_a_fixed_prompt_follows_the_first_of_its_siblings() -> None:
    queue = Queue(one=9_000, other=9_000, sibling=9_000, last=9_000)
    queue.coordinator.claims.clock.queue_s = 1.0
    assert queue.order("one", "other", "sibling", "last") == ["one", "other", "sibling", "last"]
    queue.asked["one"].fixed_prompt = queue.asked["sibling"].fixed_prompt = FixedPrompt(tokens=2_000)
    assert queue.order("one", "other", "sibling", "last") == ["one", "sibling", "other", "last"]
    queue.coordinator.tick(20.0)
    assert queue.order("one", "other", "sibling", "last") == ["one", "other", "sibling", "last"], "all have waited long"


def test_of_alike_requests_those_come_first_whose_context_is_pinned() -> None:
    queue = Queue(one=9_000, pinned=9_000, small=500)
    queue.coordinator.claims.clock.queue_s = 1.0
    queue.cached("one", 4_000)
    node = queue.cached("pinned", 4_000)
    assert node.owners is not None
    node.owners.pins["t", "device"] = Pin(until_s=1.0, priority=50, on_device=True)
    assert queue.order("one", "pinned", "small") == ["small", "pinned", "one"]
    queue.coordinator.tick(1.5)
    assert queue.order("one", "pinned", "small") == ["small", "one", "pinned"], "the pin is over"


def test_nobody_is_overtaken_who_has_waited_for_several_mean_waits() -> None:
    queue = Queue(long=30_000, longer=40_000, short=1_000)
    clock = queue.coordinator.claims.clock
    clock.queue_s = 1.0
    queue.asked["short"].arrived_s = queue.asked["longer"].arrived_s = 19.5
    queue.coordinator.tick(20.0)
    assert queue.order("long", "longer", "short") == ["long", "short", "longer"]


def test_what_a_program_was_held_for_is_no_wait_of_its_request() -> None:
    queue = Queue(held=30_000, ready=1_000)
    claims = queue.coordinator.claims
    claims.clock.queue_s = 1.0
    queue.asked["ready"].arrived_s = 19.5
    claims.hold("held", 10.0)
    queue.coordinator.tick(19.9)
    claims.hold("held", 0.0)
    queue.coordinator.tick(20.0)
    assert queue.order("held", "ready") == ["ready", "held"], "its turn has only just come"
    queue.coordinator.tick(28.0)
    queue.asked["ready"].arrived_s = 27.9
    assert queue.order("held", "ready") == ["held", "ready"]


def test_requests_without_a_claim_keep_their_places() -> None:
    queue = Queue(long=30_000, short=1_000)
    queue.coordinator.claims.clock.queue_s = 1.0
    assert queue.order("x", "long", "y", "short", "z") == ["x", "short", "y", "long", "z"]


def test_in_a_very_long_queue_only_the_front_is_ordered() -> None:
    names = [f"r{number}" for number in range(300)]
    queue = Queue(**{name: 1_000 if name in ("r255", "r256") else 100_000 for name in names})
    queue.coordinator.claims.clock.queue_s = 1.0
    assert queue.order(*names) == ["r255", *names[:255], *names[256:]]


def test_what_is_left_of_a_context_whose_end_is_lost_counts_as_cached() -> None:
    queue = Queue(new=9_000, kept=30_000)
    queue.coordinator.claims.clock.queue_s = 1.0
    body = FakeNode(key=range(29_900), parent=FakeNode(key=range(0)))
    tip = FakeNode(key=range(64), parent=body)
    queue.coordinator.tag(queue.asked["kept"].claim, [(tip, 29_964), (body, 29_900)], 0)
    queue.gone.append(tip)
    assert queue.order("new", "kept") == ["kept", "new"]
    queue.gone.append(body)
    assert queue.order("new", "kept") == ["new", "kept"]
