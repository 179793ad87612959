"""Of many leaves a round looks at a part; what nobody claims leaves in the order beneath all the same."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvflow.engine.leaves import EXACT, Leaves, made_of
from kvflow.engine.owners import Owners, Pin

KEPT = Pin(until_s=1e9, priority=50, on_device=True)
RETAINED = Pin(until_s=1e9, priority=50, on_device=False)
ENDED = Pin(until_s=1.0, priority=50, on_device=True)


@dataclass(eq=False)
class Leaf:
    """A radix node, as far as sets of leaves are concerned."""

    id: int
    last_access_time: float
    value: float | None = None
    tokens: int = 16
    pinned: bool = False
    children: dict[int, Any] = field(default_factory=dict)
    pin: Pin = KEPT
    backuped: bool = False
    evicted: bool = False

    @property
    def owners(self) -> Any:
        if not self.pinned and self.value is None:
            return None
        return Owners(pins={("", "device"): self.pin} if self.pinned else {})

    @property
    def key(self) -> range:
        return range(self.tokens)


def own(leaf: Leaf) -> float:
    return leaf.last_access_time


def order(leaf: Leaf) -> tuple[float, float]:
    """Unclaimed leaves first, then by value."""
    return (-1.0 if leaf.value is None else leaf.value, leaf.last_access_time)


def made(count: int, values: bool = False, seed: int = 1) -> tuple[Leaves, list[Leaf]]:
    draw = random.Random(seed)
    times = draw.sample(range(10 * count), count)
    leaves = [Leaf(n, time, draw.random() if values else None) for n, time in enumerate(times)]
    return made_of(leaves, own), leaves


def evict(leaves: Leaves, *, claims: bool = True, tokens: int = 0) -> Leaf:
    leaves.open_round(claims=claims, tokens=tokens)
    victim = min(leaves, key=order if claims else own)
    leaves.discard(victim)
    leaves.close_round(order)
    return victim


def test_few_leaves_are_all_looked_at() -> None:
    leaves, nodes = made(EXACT, values=True)
    leaves.open_round(claims=True)
    assert set(leaves) == set(nodes)
    assert not leaves.widen()
    leaves.close_round(order)


def test_of_many_leaves_a_part_is() -> None:
    leaves, nodes = made(20 * EXACT, values=True)
    leaves.open_round(claims=True)
    assert len(list(leaves)) < EXACT / 2
    assert len(leaves) == len(nodes)
    assert all(node in leaves for node in nodes)
    leaves.look_at_all()
    assert len(list(leaves)) == len(nodes)
    assert not leaves.widen()
    leaves.close_round(order)


@pytest.mark.parametrize("claims", [True, False])
def test_a_part_that_is_not_enough_grows_until_it_is_everything(claims: bool) -> None:
    leaves, nodes = made(20 * EXACT, values=True)
    leaves.open_round(claims=claims)
    seen: list[int] = [len(list(leaves))]
    while leaves.widen():
        seen.append(len(list(leaves)))
        assert seen[-1] <= 3 * seen[-2]
    assert set(leaves) == set(nodes)
    assert len(seen) < 12
    leaves.close_round(order)


@pytest.mark.parametrize("claims", [True, False])
def test_where_the_oldest_are_pinned_others_are_looked_at_too(claims: bool) -> None:
    leaves, nodes = made(20 * EXACT)
    for node in sorted(nodes, key=own)[: 2 * EXACT]:
        node.pinned = True
    leaves.open_round(claims=claims, spared_tokens=160)
    assert sum(node.tokens for node in leaves if not node.pinned) >= 160
    leaves.close_round(order)


def counted(leaves: Leaves) -> list[Leaf]:
    """What rounds will ask the order beneath about, once all leaves have been sorted by it."""
    leaves.open_round(claims=True)
    leaves.close_round(order)
    looked_at = list[Leaf]()
    leaves._first._own = lambda leaf: looked_at.append(leaf) or own(leaf)  # type: ignore[func-returns-value]
    return looked_at


@pytest.mark.parametrize(("pin", "has_copy"), [(RETAINED, True), (ENDED, False)])
def test_pins_that_keep_nothing_on_the_device_do_not_make_a_round_look_at_more(pin: Pin, has_copy: bool) -> None:
    leaves, nodes = made(20 * EXACT, values=True)
    for node in nodes:
        node.pinned, node.pin, node.backuped = True, pin, has_copy
    looked_at = counted(leaves)
    leaves.open_round(claims=True, spared_tokens=160, now_s=2.0)
    leaves.close_round(order)
    assert len(looked_at) < EXACT


@pytest.mark.parametrize("on_host", [True, False])
def test_what_is_retained_and_has_no_other_copy_is_kept(on_host: bool) -> None:
    leaves, nodes = made(20 * EXACT)
    for node in sorted(nodes, key=own)[: 2 * EXACT]:
        node.pinned, node.pin, node.backuped, node.evicted = True, RETAINED, on_host, on_host
    leaves.open_round(claims=False, spared_tokens=160, now_s=2.0)
    assert sum(node.tokens for node in leaves if not node.pinned) >= 160
    leaves.close_round(order)


def test_where_all_are_pinned_a_round_still_looks_at_a_part() -> None:
    leaves, nodes = made(20 * EXACT, values=True)
    for node in nodes:
        node.pinned = True
    looked_at = counted(leaves)
    leaves.open_round(claims=True, spared_tokens=160)
    assert len(list(leaves)) < EXACT
    leaves.close_round(order)
    assert len(looked_at) < 8 * EXACT


@pytest.mark.parametrize("claims", [True, False])
def test_behind_however_many_pinned_ones_the_others_are_found_after_some_rounds(claims: bool) -> None:
    leaves, nodes = made(40 * EXACT, values=True)
    by_age = sorted(nodes, key=own)
    for node in by_age[: 30 * EXACT]:
        node.pinned = True
    for _ in range(16):
        leaves.open_round(claims=claims, spared_tokens=160)
        leaves.close_round(order)
    looked_at = counted(leaves)
    for victim in by_age[30 * EXACT : 30 * EXACT + 20]:
        leaves.open_round(claims=claims, spared_tokens=160)
        chosen = [node for node in leaves if not node.pinned]
        leaves.close_round(order)
        assert len(chosen) >= 10
        assert claims or victim in chosen
        leaves.discard(victim)
    assert len(looked_at) < len(nodes)
    for node in nodes:
        node.pinned = False
    for _ in range(30 * EXACT // 32):
        leaves.open_round(claims=False)
        leaves.close_round(order)
    assert evict(leaves, claims=False) is by_age[0], "nobody is forgotten"


def test_what_was_put_aside_is_looked_at_when_nothing_else_is_left() -> None:
    leaves, nodes = made(20 * EXACT)
    for node in nodes:
        node.pinned = True
    for tokens in (0, 10**9):
        leaves.open_round(claims=True, spared_tokens=160)
        leaves.close_round(order)
        leaves.open_round(claims=True, tokens=tokens, spared_tokens=160)
        while leaves.widen():
            pass
        assert set(leaves) == set(nodes)
        leaves.close_round(order)


def test_a_part_grows_by_what_has_come_during_the_round() -> None:
    leaves, nodes = made(2 * EXACT)
    leaves.open_round(claims=True)
    while leaves.widen():
        for node in leaves:
            leaves.discard(node)
    assert not leaves
    leaves.add(nodes[0])
    assert leaves.widen()
    assert list(leaves) == [nodes[0]]
    leaves.close_round(order)


@pytest.mark.parametrize("claims", [True, False])
def test_what_nobody_claims_leaves_in_the_order_beneath(claims: bool) -> None:
    leaves, nodes = made(4 * EXACT)
    draw, now = random.Random(2), 1e9
    for _ in range(3 * EXACT):
        for node in draw.sample(nodes, 3):  # they are used, some while a request holds them
            now += 1
            node.last_access_time = now
            if node in leaves and draw.random() < 0.5:
                leaves.discard(node)
                leaves.add(node)
        expected = min((node for node in nodes if node in leaves), key=own)
        assert evict(leaves, claims=claims) is expected


def test_recency_alone_looks_at_claimed_leaves_too() -> None:
    leaves, nodes = made(4 * EXACT, values=True)
    for _ in range(EXACT):
        expected = min((node for node in nodes if node in leaves), key=own)
        assert evict(leaves, claims=False) is expected


def test_claimed_leaves_that_leave_are_among_the_worst() -> None:
    leaves, nodes = made(8 * EXACT, values=True)
    for _ in range(200):  # the pool fills
        evict(leaves)
    below: list[float] = []
    draw = random.Random(2)
    for number in range(400):
        left = sorted(node.value for node in nodes if node in leaves)
        victim = evict(leaves)
        below.append(left.index(victim.value) / len(left))
        fresh = Leaf(10**6 + number, 1e9 + number, draw.random())
        nodes.append(fresh)
        leaves.add(fresh)
    assert sorted(below)[len(below) // 2] < 0.01
    assert max(below) < 0.1


@pytest.mark.parametrize("count", [40, 100])
def test_where_many_leave_and_come_in_a_round_those_that_leave_are_among_the_worst(count: int) -> None:
    leaves, nodes = made(16 * EXACT, values=True)
    draw, below = random.Random(2), list[float]()
    for round_number in range(120):
        for number in range(round_number * count, (round_number + 1) * count):
            fresh = Leaf(10**6 + number, 1e9 + number, draw.random())
            nodes.append(fresh)
            leaves.add(fresh)
        nodes = [node for node in nodes if node in leaves]
        left = sorted(node.value or 0.0 for node in nodes)
        leaves.open_round(claims=True)
        while (most := len(leaves) - 16 * EXACT) > 0:
            for victim in sorted((node for node in leaves if node in leaves), key=order)[:most]:
                leaves.discard(victim)
                below.append(left.index(victim.value or 0.0) / len(left))
            assert leaves.widen() or len(leaves) == 16 * EXACT
        leaves.close_round(order)
    late = below[len(below) // 2 :]
    assert sum(late) / len(late) < 0.03


def test_after_rounds_in_which_many_left_parts_become_small_again() -> None:
    leaves, _ = made(16 * EXACT, values=True)
    for count in (150, *[1] * 60):
        leaves.open_round(claims=True, tokens=16 * count)
        looked_at = len(list(leaves))
        for victim in sorted(leaves, key=order)[:count]:
            leaves.discard(victim)
        leaves.close_round(order)
    assert looked_at < EXACT


def test_an_unclaimed_leaf_leaves_before_any_claimed_one_however_young() -> None:
    leaves, _ = made(8 * EXACT, values=True)
    for _ in range(50):
        evict(leaves)
    young = Leaf(10**6, 1e9)
    leaves.add(young)
    assert evict(leaves) is young


def test_what_an_ended_workflow_has_left_is_looked_at_at_once() -> None:
    leaves, nodes = made(8 * EXACT, values=True)
    for _ in range(50):
        evict(leaves)
    root = Leaf(10**6, 1e9, 0.0)
    middle = Leaf(10**6 + 1, 1e9, 0.0, children={0: nodes[-1]})
    root.children[0] = middle
    nodes[-1].value = -0.5  # what its order makes of it now
    leaves.ended(root)
    assert evict(leaves) is nodes[-1]


def test_as_many_are_chosen_as_hold_the_tokens() -> None:
    leaves, nodes = made(8 * EXACT)
    leaves.open_round(claims=True, tokens=16 * 1000)
    assert 1000 <= len(list(leaves)) < 1100
    leaves.close_round(order)
    leaves.open_round(claims=True, tokens=10**9)
    assert len(list(leaves)) == len(nodes)
    leaves.close_round(order)


def test_a_round_that_was_broken_off_loses_nothing() -> None:
    leaves, nodes = made(4 * EXACT)
    for _ in range(3):
        leaves.open_round(claims=True, tokens=16 * EXACT)
    expected = sorted(nodes, key=own)[:100]
    assert [evict(leaves) for _ in range(100)] == expected


def test_what_comes_and_goes_leaves_nothing_behind() -> None:
    leaves, nodes = made(EXACT, values=True)
    plain = [Leaf(10**6 + n, n) for n in range(EXACT)]
    for number in range(40_000):
        node = (nodes if number % 2 else plain)[number % EXACT]
        leaves.add(node)
        leaves.discard(node)
    for queue in (leaves._first, leaves._unclaimed):
        assert len(queue._heap) < 10 * EXACT
    assert len(leaves._claimed) < 10 * EXACT
    assert len(leaves._new) < 10 * EXACT


def test_ranks_choose_alike() -> None:
    def run() -> list[int]:
        leaves, _ = made(6 * EXACT, values=True)
        return [evict(leaves, tokens=64).id for _ in range(300)]

    assert run() == run()
