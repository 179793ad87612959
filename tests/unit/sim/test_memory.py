"""Device, host and storage of the simulated server: room, copies, loads, and the links between them."""

from __future__ import annotations

import pytest
import simpy
from simpy.events import ProcessGenerator

from kvflow.engine import Accounting, Coordinator
from kvflow.sim import Profile
from kvflow.sim.context import Context, Pager
from kvflow.sim.memory import Memory
from kvflow.sim.node import Node, backed_up
from kvflow.trace import Piece

PAGE = 16
PROFILE = Profile(
    name="test",
    prefill_step_s=0.0,
    prefill_token_s=1e-4,
    attention_token_s=0.0,
    decode_step_s=1e-2,
    load_token_s=1e-3,
    backup_token_s=2e-3,
    storage_token_s=1e-2,
)


class World:
    def __init__(self, *, device: int = 40, host: int = 40, storage: int = 0) -> None:
        self.env = simpy.Environment()
        self.pager = Pager(PAGE, 4)
        coordinator = Coordinator("lru", backed_up=backed_up)
        self.accounting = Accounting(64)
        self.memory = Memory(
            self.env,
            PROFILE,
            coordinator,
            self.accounting,
            page_tokens=PAGE,
            device_tokens=device * PAGE,
            host_tokens=host * PAGE,
            storage_tokens=storage * PAGE,
            guard=None,
        )
        self.tree = self.memory.tree

    def context(self, *pieces: Piece) -> Context:
        return self.pager.extend(self.pager.empty(), 0, pieces)

    def enter(self, *pieces: Piece) -> Node:
        context = self.context(*pieces)
        assert self.memory.make_room(context.pages)
        return self.tree.insert(context, context.pages)

    def kept(self, *pieces: Piece) -> Node:
        """Enter a prompt and wait until the host has it."""
        node = self.enter(*pieces)
        self.memory.keep_copy(node, 0)
        self.env.run(until=self.env.now + 100)
        return node


def test_room_is_made_from_what_nobody_needs_and_no_more() -> None:
    world = World(host=0)
    old, needed = world.enter(Piece("old", 10 * PAGE)), world.enter(Piece("needed", 20 * PAGE))
    world.tree.lock(needed)
    assert world.memory.available_pages == 20
    assert world.memory.make_room(20)
    assert not old.on_device
    assert not world.memory.make_room(21)
    assert needed.on_device


def test_what_requests_hold_privately_takes_whole_pages() -> None:
    world = World()
    world.memory.private_tokens = PAGE + 1
    assert world.memory.free_pages == 38


def test_a_copy_takes_the_hosts_memory_at_once_and_the_devices_until_it_is_done() -> None:
    world = World()
    node = world.enter(Piece("a", 10 * PAGE))
    world.memory.keep_copy(node, 0)
    assert node.on_host
    assert world.tree.evict_device(10) == 0
    world.env.run(until=10 * PAGE * PROFILE.backup_token_s + 1e-9)
    assert world.tree.evict_device(10) == 10
    assert node.on_host


def test_copies_go_over_the_link_one_after_the_other() -> None:
    world = World()
    one, two = world.enter(Piece("a", 10 * PAGE)), world.enter(Piece("b", 10 * PAGE))
    for node in (one, two):
        world.memory.keep_copy(node, 0)
    world.env.run(until=15 * PAGE * PROFILE.backup_token_s)
    assert (one.locks, two.locks) == (0, 1)


def test_a_node_divided_while_it_is_copied_is_released_as_a_whole() -> None:
    world = World(storage=40)
    node = world.enter(Piece("a", 10 * PAGE))
    world.memory.keep_copy(node, 0)
    upper = world.tree.match(world.context(Piece("a", 4 * PAGE)))
    assert upper is node.parent
    assert upper.on_host
    assert upper.locks == node.locks == 1
    world.env.run(until=100)
    assert upper.locks == node.locks == 0
    assert upper.on_storage
    assert node.on_storage


def test_ancestors_without_a_copy_get_theirs_first_and_a_host_that_is_full_says_no() -> None:
    world = World(host=12)
    upper = world.enter(Piece("a", 10 * PAGE))
    lower = world.enter(Piece("a", 10 * PAGE), Piece("b", 4 * PAGE))
    world.memory.keep_copy(lower, upper.end)
    assert (upper.on_host, lower.on_host) == (True, False)
    assert world.tree.host_pages == 10


def test_nothing_is_copied_for_what_was_counted_before() -> None:
    world = World()
    node = world.enter(Piece("a", 10 * PAGE))
    world.memory.keep_copy(node, node.end)
    assert not node.on_host


def test_loads_go_over_the_link_one_after_the_other_and_are_counted() -> None:
    world = World()
    nodes = [world.kept(Piece(name, 10 * PAGE)) for name in "ab"]
    world.tree.evict_device(20)
    began_s = world.env.now
    times = []
    for node in nodes:
        world.tree.lock(node)
        times.append(world.memory.load_back(node, world.tree.root) - began_s)
    assert times == [pytest.approx(0.16), pytest.approx(0.32)]
    assert all(node.on_device for node in nodes)
    assert world.tree.protected_pages == 20
    counters = world.accounting.counters
    assert (counters.load_backs, counters.load_back_tokens) == (2, 20 * PAGE)
    assert counters.load_back_s == pytest.approx(0.32)


def pushed_out(world: World, names: str) -> list[Node]:
    """Contexts of ten pages that have left the device, one after the other."""
    nodes = []
    for name in names:
        nodes.append(world.kept(Piece(name, 10 * PAGE)))
        world.tree.evict_device(10)
    return nodes


def test_storage_keeps_what_the_host_lost_and_gives_it_back_to_the_host() -> None:
    world = World(host=16, storage=40)
    first = world.kept(Piece("a", 10 * PAGE))
    world.tree.evict_device(10)
    world.kept(Piece("b", 10 * PAGE))
    assert (first.on_host, first.on_storage) == (False, True)
    world.tree.evict_device(10)
    began_s = world.env.now
    world.env.run(until=world.env.process(world.memory.fetch(first)))
    assert world.env.now - began_s == pytest.approx(10 * PAGE * PROFILE.storage_token_s)
    assert first.on_host
    assert world.memory.fetched_tokens == 10 * PAGE


def test_what_storage_has_lost_takes_no_time_to_fetch() -> None:
    world = World(host=10, storage=20)
    nodes = pushed_out(world, "abcd")
    lost = nodes[0]
    assert (lost.on_device, lost.on_host, lost.on_storage) == (False, False, False)
    began_s = world.env.now
    world.env.run(until=world.env.process(world.memory.fetch(lost)))
    assert (world.env.now, world.memory.fetched_tokens) == (began_s, 0)


def test_fetches_from_storage_come_one_after_the_other() -> None:
    world = World(host=20, storage=80)
    nodes = pushed_out(world, "abcd")
    assert [node.on_host for node in nodes] == [False, False, True, True]
    began_s, times = world.env.now, []

    def fetched(node: Node) -> ProcessGenerator:
        yield from world.memory.fetch(node)
        times.append(world.env.now - began_s)

    world.env.run(until=world.env.all_of([world.env.process(fetched(node)) for node in nodes[:2]]))
    one_s = 10 * PAGE * PROFILE.storage_token_s
    assert times == [pytest.approx(one_s), pytest.approx(2 * one_s)]
    assert world.memory.fetched_tokens == 20 * PAGE


def test_storage_loses_what_was_used_longest_ago() -> None:
    world = World(host=10, storage=20)
    nodes = pushed_out(world, "ab")
    world.tree.touch(nodes[0])
    world.kept(Piece("c", 10 * PAGE))
    assert [node.on_storage for node in nodes] == [True, False]
    assert world.tree.storage_pages == 20
