"""Commands on cached context: what they keep, load and let go, and within which limits."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from kvflow.engine import (
    Answer,
    BackupPlanner,
    Capacity,
    Choice,
    Commands,
    Coordinator,
    Counters,
    KvCommand,
    Load,
    Prefetcher,
    PromptClaim,
    Room,
)
from kvflow.policy import EvictionClass, PrefetchPace, ServingCosts
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.load_table import Node


class Server:
    """Two agents of one workflow: a shared prompt of 100 tokens, and 60 of each one's own."""

    def __init__(
        self,
        *,
        policy: str = "cost",
        host_tokens: int = 10_000,
        prefetch: bool = True,
        pin_hourly_s: float = 3600,
        least_tokens: int = 1,
    ) -> None:
        self.coordinator = Coordinator(policy)
        pace = PrefetchPace(ServingCosts(), link_share=1.0, device_tokens=16_000)
        counters = Counters()
        self.prefetcher = (
            Prefetcher(self.coordinator, pace, lambda: counters, max_tokens=1000, least_tokens=least_tokens)
            if prefetch
            else None
        )
        capacity = Capacity(device_tokens=1000, host_tokens=host_tokens, tenant_share=0.25)
        self.locked: set[int] = set()
        self.copying: set[int] = set()
        self.backups = BackupPlanner(self.coordinator, 10**9)
        self.commands = Commands(
            self.coordinator,
            self.prefetcher,
            lambda: capacity,
            self.demote,
            pin_hourly_s=pin_hourly_s,
            copying=lambda node: id(node) in self.copying,
            backups=self.backups,
        )
        self.root = Node()
        self.shared = Node(100, self.root)
        self.own = {agent: Node(60, self.shared) for agent in "ab"}
        self.workflow("w", "a", "b")

    def workflow(self, name: str, *agents: str) -> None:
        claims = tuple(ClaimPrediction(agent=agent, steps=3, due_s=60.0) for agent in agents)
        self.coordinator.apply(WorkflowUpdate(workflow_id=name, workflow_type="t", claims=claims))
        for agent in agents:
            claim = PromptClaim(workflow_id=name, workflow_type="t", agent=agent)
            self.coordinator.tag(claim, [(self.own[agent], 160), (self.shared, 100)], 0)

    def demote(self, node: object) -> bool:
        assert isinstance(node, Node)
        if (
            not node.backuped
            or id(node) in self.locked | self.copying
            or any(not child.evicted for child in node.children.values())
        ):
            return False
        node.evicted = True
        return True

    def __call__(self, verb: str, agent: str | None = "a", workflow: str = "w", **fields: object) -> Answer:
        return self.commands.execute(KvCommand(verb=verb, workflow_id=workflow, agent=agent, **fields))  # type: ignore[arg-type]

    def order(self) -> list[Node]:
        nodes = [self.shared, *self.own.values()]
        self.coordinator.open_round(nodes)
        return sorted(nodes, key=self.coordinator.priority)

    def time(self, now_s: float) -> None:
        self.coordinator.tick(now_s)

    def loads(self) -> Load:
        """The next load, which comes at once."""
        assert self.prefetcher is not None
        load = self.prefetcher.next(Room(free_tokens=1000), lambda: pytest.fail("there is room"))
        assert load is not None
        self.prefetcher.begun(load)
        self.prefetcher.ended(load)
        return load


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.mark.parametrize("policy", ["lru", "cost", "steps"])
def test_what_is_pinned_leaves_last_under_every_policy_until_its_time_is_over(policy: str) -> None:
    server = Server(policy=policy)
    assert server("kv.pin", ttl_s=10.0) == Answer(status="accepted", tokens=160)
    assert server.order()[0] is server.own["b"]
    assert server.coordinator.class_of(server.own["a"]) is EvictionClass.PINNED
    server.time(10.1)
    assert server.coordinator.class_of(server.own["a"]) is not EvictionClass.PINNED


def test_pins_hold_even_when_the_guard_trusts_no_prediction(server: Server) -> None:
    server("kv.pin")
    server.coordinator.open_round([server.shared, *server.own.values()], Choice(share=0.0))
    assert server.coordinator.priority(server.own["b"]) < server.coordinator.priority(server.own["a"])


def test_among_pinned_contexts_priority_decides(server: Server) -> None:
    server("kv.pin", "a", priority=90)
    server("kv.pin", "b", priority=10)
    assert server.order()[0] is server.own["b"]


@pytest.mark.parametrize(
    ("verb", "more", "on_device"), [("kv.retain", {}, False), ("kv.pin", {"tier": "host"}, False), ("kv.pin", {}, True)]
)
def test_what_is_kept_does_not_leave_the_host_and_the_device_only_where_that_is_not_asked_for(
    server: Server, verb: str, more: dict[str, Any], on_device: bool
) -> None:
    assert server(verb, **more).status == "accepted"
    assert (server.coordinator.class_of(server.own["a"]) is EvictionClass.PINNED) is on_device
    server.own["a"].evicted = server.own["b"].evicted = True
    assert server.coordinator.class_of(server.own["a"]) is EvictionClass.PINNED
    assert server.coordinator.class_of(server.own["b"]) is not EvictionClass.PINNED


def test_retained_context_stays_on_the_device_until_it_has_been_copied(server: Server) -> None:
    for node in (server.shared, server.own["a"]):
        node.backuped = False
    server("kv.retain", ttl_s=5.0)
    assert server.coordinator.class_of(server.own["a"]) is EvictionClass.PINNED
    assert server.backups.next(lambda node: False) is server.own["a"]
    assert server.backups.next(lambda node: node is server.own["a"]) is None, "its copy is under way"
    server.own["a"].backuped = True
    assert server.backups.next(lambda node: False) is None
    assert server.coordinator.class_of(server.own["a"]) is not EvictionClass.PINNED
    server.own["a"].backuped = False
    server("kv.retain", ttl_s=5.0)
    server.time(5.1)
    assert server.backups.next(lambda node: False) is None


def test_a_tenant_pins_as_much_as_its_budget_from_the_root_down(server: Server) -> None:
    assert server("kv.pin", "a").tokens == 160
    clipped = server("kv.pin", "b")
    assert (clipped.status, clipped.tokens) == ("accepted", 160), "the shared part counts once: 220 of 250 tokens"
    server.own["c"] = Node(60, server.shared)
    server.workflow("v", "c")
    clipped = server("kv.pin", "c", "v")
    assert (clipped.status, clipped.tokens) == ("clipped", 100)
    assert server("kv.pin", "c", "v", tenant="other").status == "accepted", "every tenant has its own"
    server.time(31.0)
    assert server("kv.pin", "c", "v").status == "accepted", "what has expired counts for nothing"


def test_both_halves_of_a_pinned_node_that_is_divided_count(server: Server) -> None:
    server("kv.pin", "a")
    upper = Node(40, server.root)
    server.shared.tokens, server.shared.parent = 60, upper
    server.coordinator.split(upper, server.shared)
    server.own["c"] = Node(120, upper)
    server.workflow("v", "c")
    assert server("kv.pin", "c", "v").status == "clipped", "160 of 250 tokens are pinned already"
    assert server("kv.release", "a").tokens == 120, "the upper half is pinned for the other, too"
    assert server("kv.release", "c", "v").tokens >= 40
    assert server.coordinator.class_of(upper) is not EvictionClass.PINNED


def test_the_lower_half_of_a_node_that_is_being_copied_does_not_leave_alone(server: Server) -> None:
    server.copying = {id(server.own["a"])}
    assert server("kv.demote").status == "deferred"
    upper = Node(20, server.shared)
    server.own["a"].tokens, server.own["a"].parent = 40, upper
    del server.shared.children[id(server.own["a"])]
    upper.children[id(server.own["a"])] = server.own["a"]
    server.coordinator.split(upper, server.own["a"])
    server.copying.clear()
    server.commands.tick()
    assert upper.evicted


def test_pins_that_are_over_are_forgotten_whoever_comes(server: Server) -> None:
    node = Node(10, server.root)
    server.commands.on_prompt(KvCommand(verb="kv.pin", ttl_s=5.0, tenant="never again"), [(node, 10)])
    del server.root.children[id(node)]
    known = weakref.ref(node)
    del node
    assert known() is not None
    server.time(5.1)
    server.commands.tick()
    gc.collect()
    assert known() is None


def test_a_whole_workflow_can_be_named(server: Server) -> None:
    assert server("kv.pin", None).tokens == 220


def test_release_undoes_pins_and_orders(server: Server) -> None:
    assert server("kv.release").status == "missing"
    server("kv.pin")
    assert server("kv.release") == Answer(status="accepted", tokens=160)
    assert server.coordinator.class_of(server.own["a"]) is not EvictionClass.PINNED
    server.own["a"].evicted = True
    server("kv.prefetch")
    assert server("kv.release").status == "accepted"
    assert server.prefetcher is not None
    assert server.prefetcher.next(Room(free_tokens=1000), lambda: pytest.fail("nothing is ordered")) is None


def test_release_leaves_the_pins_of_other_tenants(server: Server) -> None:
    server("kv.pin", tenant="one")
    server("kv.pin", tenant="two")
    assert server("kv.release", tenant="one").status == "accepted"
    assert server.coordinator.class_of(server.own["a"]) is EvictionClass.PINNED
    assert server("kv.release", tenant="two").status == "accepted"
    assert server.coordinator.class_of(server.own["a"]) is not EvictionClass.PINNED


def test_an_ordered_load_goes_before_what_is_predicted_and_expires(server: Server) -> None:
    assert server.prefetcher is not None
    assert server("kv.prefetch") == Answer(status="accepted", reason="all of it is on the device")
    server.own["a"].evicted = server.own["b"].evicted = True
    soon = (ClaimPrediction(agent="a", steps=3, due_s=60.0), ClaimPrediction(agent="b", steps=1, due_s=0.1))
    server.coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", claims=soon))
    assert server("kv.prefetch", ttl_s=5.0).status == "deferred"
    load = server.loads()
    assert load.nodes == [server.own["a"]]
    server.own["a"].evicted = False
    assert server.loads().nodes == [server.own["b"]], "which is predicted, and has been before"
    server.own["b"].evicted = False
    server.own["a"].evicted = True
    assert server("kv.prefetch", ttl_s=5.0).status == "deferred"
    server.time(5.1)
    assert server.prefetcher.next(Room(free_tokens=1000), lambda: pytest.fail("there is room")) is None


def test_it_is_told_what_became_of_an_ordered_load(server: Server) -> None:
    server.own["a"].evicted = server.own["b"].evicted = True
    assert server("kv.prefetch", ttl_s=5.0).status == server("kv.prefetch", "b", ttl_s=5.0).status == "deferred"
    assert server.commands.tick() == []
    server.own["a"].evicted = False
    ((command, answer),) = server.commands.tick()
    assert (command.agent, answer) == ("a", Answer(status="accepted", reason="loaded", tokens=60))
    server.time(5.1)
    ((command, answer),) = server.commands.tick()
    assert (command.agent, answer.status) == ("b", "rejected")
    assert "not loaded in time" in answer.reason
    server("kv.prefetch", "b", ttl_s=5.0)
    assert server("kv.release", "b").status == "accepted"
    server.time(20.0)
    assert server.commands.tick() == []


def test_a_rest_that_is_never_loaded_by_itself_is_not_waited_for() -> None:
    server = Server(least_tokens=16)
    rest = Node(10, server.own["a"], evicted=True)
    prefetch = KvCommand(verb="kv.prefetch", ttl_s=5.0)
    server.own["a"].evicted = True
    path = [(rest, 170), (server.own["a"], 160), (server.shared, 100)]
    assert server.commands.on_prompt(prefetch, path).status == "deferred"
    server.own["a"].evicted = False
    ((_, answer),) = server.commands.tick()
    assert (answer.status, answer.tokens) == ("accepted", 60)
    assert server.prefetcher is not None
    assert server.prefetcher._orders.open(0.0) == []


def test_no_tenant_takes_all_loads_that_can_be_on_order(server: Server) -> None:
    contexts = [Node(20, server.root, evicted=True) for _ in range(65)]
    prefetch = KvCommand(verb="kv.prefetch", tenant="one", ttl_s=5.0)
    said = [server.commands.on_prompt(prefetch, [(node, 20)]).status for node in contexts]
    assert said == ["deferred"] * 64 + ["rejected"]
    assert server.commands.on_prompt(prefetch, [(contexts[0], 20)]).status == "deferred", "it is on order already"
    other = KvCommand(verb="kv.prefetch", tenant="two", ttl_s=5.0)
    assert server.commands.on_prompt(other, [(contexts[0], 20)]).status == "deferred"
    release = KvCommand(verb="kv.release", tenant="two")
    assert server.commands.on_prompt(release, [(contexts[64], 20)]).status == "missing"
    contexts[0].evicted = False
    assert server.commands.on_prompt(prefetch, [(contexts[64], 20)]).status == "deferred", "one of them is over"
    server.time(5.1)
    assert server.commands.on_prompt(prefetch, [(contexts[5], 20)]).status == "deferred"


def test_all_tenants_together_order_no_more_loads_than_there_may_be(server: Server) -> None:
    contexts = [Node(20, server.root, evicted=True) for _ in range(64)]

    def order(tenant: str) -> list[str]:
        prefetch = KvCommand(verb="kv.prefetch", tenant=tenant, ttl_s=5.0)
        return [server.commands.on_prompt(prefetch, [(node, 20)]).status for node in contexts]

    assert [status for tenant in "abcd" for status in order(tenant)] == ["deferred"] * 256
    assert order("e") == ["rejected"] * 64
    for node in contexts[:16]:
        node.evicted = False
    told = [len(server.commands.tick()) for _ in range(16)]
    assert max(told) <= 16, "they take turns"
    assert sum(told) == 64
    assert order("e") == ["accepted"] * 16 + ["deferred"] * 48


def test_what_is_in_no_tier_any_more_is_not_said_to_be_loaded(server: Server) -> None:
    server.own["a"].evicted, server.own["a"].backuped = True, False
    gone = "60 tokens are neither on the device nor on the host any more"
    assert server("kv.prefetch") == Answer(status="clipped", reason=gone)
    assert server("kv.prefetch", "b").status == "accepted"
    server.shared.evicted = True
    loading = server("kv.prefetch")
    assert (loading.status, loading.tokens) == ("clipped", 100)
    assert loading.reason == f"{gone}; the rest loads as soon as it can"


def test_a_pinned_prompt_of_nobody_known_ends_where_it_ends(server: Server) -> None:
    first = Node(150, server.root)
    second = Node(50, first)
    server.commands.on_prompt(KvCommand(verb="kv.pin"), [(second, 200), (first, 150)])
    assert [node.owners and node.owners.end_tokens for node in (first, second)] == [150, 200]


def test_a_range_of_a_prompt_is_widened_to_nodes(server: Server) -> None:
    path: list[tuple[Node, int]] = [(server.own["a"], 160), (server.shared, 100)]
    pin = KvCommand(verb="kv.pin", start_tokens=0, end_tokens=20)
    assert server.commands.on_prompt(pin, path).tokens == 100
    beyond = KvCommand(verb="kv.pin", start_tokens=160, end_tokens=200)
    assert server.commands.on_prompt(beyond, path).status == "missing"


@pytest.mark.parametrize(
    ("workflow", "agent"), [("unheard of", None), ("w", "nobody"), ("v", "c")], ids=["workflow", "agent", "context"]
)
def test_what_is_not_there_is_missing(server: Server, workflow: str, agent: str | None) -> None:
    claims = (ClaimPrediction(agent="c", steps=1),)
    server.coordinator.apply(WorkflowUpdate(workflow_id="v", workflow_type="t", claims=claims))
    for verb in ("kv.pin", "kv.retain", "kv.prefetch", "kv.demote", "kv.release"):
        assert server(verb, agent, workflow).status == "missing"


def test_without_a_host_tier_nothing_is_retained_or_loaded() -> None:
    server = Server(host_tokens=0, prefetch=False)
    server.own["a"].evicted = True
    assert server("kv.retain").status == "rejected"
    assert server("kv.prefetch").status == "unsupported"
