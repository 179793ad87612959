"""Pins by command: whose they are, and who lifts them."""

from __future__ import annotations

import pytest

from kvflow.engine import Answer, KvCommand
from kvflow.engine.pins import end_tokens, from_the_top
from kvflow.policy import EvictionClass
from kvflow.predict import WorkflowUpdate
from tests.unit.engine.calls import calls
from tests.unit.engine.load_table import Node
from tests.unit.engine.test_commands import Server


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.mark.parametrize("verb", ["kv.pin", "kv.retain"])
def test_what_nobody_claims_is_unclaimed_again_after_its_pin(server: Server, verb: str) -> None:
    node = Node(10, server.root)
    command = KvCommand(verb=verb, ttl_s=5.0)
    assert server.commands.on_prompt(command, [(node, 10)]).status == "accepted"
    server.time(1000.0)
    assert server.coordinator.class_of(node) is EvictionClass.UNCLAIMED
    plain = Node(10, server.root)
    assert server.coordinator.rank(node) == server.coordinator.rank(plain)
    assert not server.coordinator.unwanted(node)


def test_nothing_is_left_on_nodes_of_pins_that_are_over(server: Server) -> None:
    assert server("kv.pin", ttl_s=5.0).status == "accepted"
    server.time(6.0)
    server.commands.tick()
    assert all(node.owners is not None and not node.owners.pins for node in (server.shared, server.own["a"]))


def test_paths_are_ordered_from_the_top(server: Server) -> None:
    inner = Node(10, server.own["b"])
    deep = Node(10, inner)
    nodes = [deep, server.own["a"], server.shared, server.own["b"], inner]
    ordered = from_the_top(nodes)
    assert sorted(ordered, key=end_tokens) == ordered
    assert ordered[0] is server.shared
    assert ordered[-1] is deep


def test_release_lifts_the_pins_of_a_workflow_that_is_over_or_has_gone_on(server: Server) -> None:
    server("kv.pin", "a", tenant="t")
    server.coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", retired=True))
    assert server("kv.release", "a") == Answer(status="accepted", tokens=160)
    assert server("kv.release", "a").status == "missing"
    server.workflow("v", "a")
    assert server("kv.pin", "a", "v", tenant="t").status == "accepted", "they count for nothing any more"
    server.own["a"] = Node(60, server.root)
    server.workflow("v", "a")
    assert server("kv.release", "a", "v", tenant="t").tokens >= 160
    assert not any(node.owners.pins for node in (server.shared, *server.own.values()) if node.owners)


def test_what_several_have_asked_for_stays_until_the_last_lets_go(server: Server) -> None:
    server.workflow("v", "a")
    for workflow in "wv":
        server("kv.pin", "a", workflow, ttl_s=100.0 if workflow == "w" else 50.0)
    for workflow in "wv":
        server.coordinator.apply(WorkflowUpdate(workflow_id=workflow, workflow_type="t", retired=True))
    assert server("kv.release", None, "w").status == "missing"
    assert server.coordinator.class_of(server.own["a"]) is EvictionClass.PINNED
    server.time(51.0)
    assert server.coordinator.class_of(server.own["a"]) is not EvictionClass.PINNED, "only the other had asked so long"


def test_a_workflow_that_lives_releases_what_was_pinned_for_it_only(server: Server) -> None:
    """Workflows without a tenant share one, and a prompt that they have in common is pinned for each of them."""
    server.workflow("v", "a")
    for workflow in "wv":
        server("kv.pin", "a", workflow)
    assert server("kv.release", None, "w").status == "missing"
    assert server.coordinator.class_of(server.own["a"]) is EvictionClass.PINNED
    assert server("kv.release", "a", "v") == Answer(status="accepted", tokens=160)
    assert server.coordinator.class_of(server.own["a"]) is not EvictionClass.PINNED


def test_the_last_to_let_go_frees_what_several_have_asked_for(server: Server) -> None:
    server.workflow("v", "a")
    for workflow in "wv":
        server("kv.pin", "a", workflow)
    for workflow in "wv":
        server.coordinator.apply(WorkflowUpdate(workflow_id=workflow, workflow_type="t", retired=True))
    assert server("kv.release", None, "w").status == "missing"
    assert server("kv.release", None, "v") == Answer(status="accepted", tokens=160)


def test_who_has_asked_is_forgotten_with_time(server: Server) -> None:
    for number in range(20):
        server.workflow(str(number), "a")
        server("kv.pin", "a", str(number), ttl_s=5.0)
        server.time(number + 1.0)
    assert server.own["a"].owners is not None
    (pin,) = server.own["a"].owners.pins.values()
    assert len(pin.asked) <= 5


def test_release_takes_back_the_orders_of_a_workflow_that_is_over(server: Server) -> None:
    server.own["a"].backuped = False
    server("kv.retain", "a")
    server.own["b"].evicted = True
    assert server("kv.prefetch", "b").status == "deferred"
    server.coordinator.apply(WorkflowUpdate(workflow_id="w", workflow_type="t", retired=True))
    assert server("kv.release", None).status == "accepted"
    assert server.backups.next(lambda node: False) is None
    server.own["b"].evicted = False
    assert server.commands.tick() == []


def test_a_tenant_pins_for_as_long_as_its_time_lasts() -> None:
    server = Server(pin_hourly_s=36.0)  # of 250 tokens: 9,000 token-seconds, of which 2.5 come back a second
    used_up = "the tenant's time is used up (commands.pin_hourly_s)"
    assert server("kv.pin", ttl_s=30.0) == Answer(status="accepted", tokens=160)
    told = server("kv.pin", "b", ttl_s=60.0)
    assert told == Answer(status="clipped", reason=f"for 45 s: {used_up}", tokens=160), (
        "what is shared is paid for once"
    )
    assert server("kv.pin", tenant="another", ttl_s=50.0).status == "accepted"
    server.time(20.0)
    assert server.coordinator.class_of(server.own["b"]) is EvictionClass.PINNED
    assert server("kv.pin", "b", ttl_s=60.0).reason == f"for 25.3 s: {used_up}"
    server.time(45.4)
    assert server.coordinator.class_of(server.own["b"]) is not EvictionClass.PINNED


def test_time_that_a_pin_does_not_take_is_given_back() -> None:
    server = Server(pin_hourly_s=36.0)
    server("kv.pin", ttl_s=50.0)
    server.time(10.0)
    assert server("kv.release").status == "accepted"
    assert server("kv.pin", ttl_s=40.0).status == "accepted"
    server.time(51.0)
    assert server("kv.pin", ttl_s=40.0).status == "clipped"
    server.time(3700.0)
    server.commands.tick()
    assert server("kv.pin", ttl_s=56.0).status == "accepted"


def test_a_pin_for_which_no_time_is_left_is_rejected() -> None:
    server = Server(pin_hourly_s=36.0)
    assert server("kv.pin", ttl_s=600.0).status == "clipped"
    rejected = Answer(status="rejected", reason="the tenant's time is used up (commands.pin_hourly_s)")
    assert server("kv.pin", "b") == rejected
    assert server.coordinator.class_of(server.own["b"]) is not EvictionClass.PINNED
    server.time(2000.0)
    server.commands.flushed()
    assert server("kv.pin").status == "accepted"


def test_of_many_who_have_asked_some_are_named_and_the_others_keep_it_as_long_as_they_said(server: Server) -> None:
    names = [str(number) for number in range(100)]
    for number, name in enumerate(names):
        server.workflow(name, "a")
        server("kv.pin", "a", name, ttl_s=100.0 + number)
    owners = server.own["a"].owners
    assert owners is not None
    assert [len(pin.asked) for pin in owners.pins.values()] == [64]
    for name in names:
        server.coordinator.apply(WorkflowUpdate(workflow_id=name, workflow_type="t", retired=True))
        assert server("kv.release", None, name).status == "missing"
    server.time(135.9)
    assert server.coordinator.class_of(server.own["a"]) is EvictionClass.PINNED, "37 of them have no name any more"
    server.time(136.1)
    assert server.coordinator.class_of(server.own["a"]) is not EvictionClass.PINNED


def test_what_has_left_the_cache_counts_for_nothing(server: Server) -> None:
    server.own["c"] = Node(60, server.shared)
    server.workflow("v", "c")
    assert server("kv.pin", None).tokens == 220
    assert server("kv.pin", "c", "v").status == "clipped", "of 250 tokens"
    server.own["b"].evicted, server.own["b"].backuped = True, False
    server.time(0.3)
    assert server("kv.pin", "c", "v") == Answer(status="accepted", tokens=160)


def test_commands_cost_no_more_where_much_is_pinned(server: Server) -> None:
    contexts = [Node(1, server.root) for _ in range(200)]

    def pin(node: Node) -> Answer:
        return server.commands.on_prompt(KvCommand(verb="kv.pin", workflow_id="another"), [(node, 1)])

    alone = calls(lambda: pin(contexts[0]))
    assert {pin(node).status for node in contexts[1:-1]} == {"accepted"}
    assert calls(lambda: pin(contexts[-1])) <= alone + 20
    assert calls(lambda: server("kv.release", None, "unheard of")) < 50
