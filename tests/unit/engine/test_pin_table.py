"""The table of pins: what it says of them without looking is what looking at all of them would say."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow.engine.accounting import Tier
from kvflow.engine.owners import Pin
from kvflow.engine.pin_table import PinTable, Who
from tests.unit.engine.load_table import Node

TENANTS: list[Who] = [("one", Tier.DEVICE), ("one", Tier.HOST), ("two", Tier.DEVICE)]
WORKFLOWS = [None, "v", "w", "x"]

tenants, places = st.sampled_from(TENANTS), st.integers(0, 9)
asked = st.dictionaries(st.tuples(st.sampled_from(WORKFLOWS), st.sampled_from([None, "a"])), st.just(0.0), min_size=1)
steps = st.one_of(
    st.tuples(st.just("put"), tenants, places, st.integers(1, 20), asked),
    st.tuples(st.just("remove"), tenants, places),
    st.tuples(st.just("divide"), places),
    st.tuples(st.just("time"), st.integers(0, 5)),
)


class Pins:
    """A table, and the same pins without it."""

    def __init__(self) -> None:
        self.table = PinTable()
        self.now_s = 0.0
        self.nodes = [Node(8) for _ in range(10)]
        self.pins: dict[tuple[Who, Node], Pin] = {}

    def put(self, who: Who, place: int, seconds: int, asked: dict[tuple[str | None, str | None], float]) -> None:
        node = self.nodes[place]
        pin = self.pins[who, node] = Pin(self.now_s + seconds, priority=50, on_device=True, asked=asked)
        self.table.put(who, node, pin)

    def remove(self, who: Who, place: int) -> None:
        self.pins.pop((who, self.nodes[place]), None)
        self.table.remove(who, self.nodes[place])

    def divide(self, place: int) -> None:
        lower = self.nodes[place]
        if lower.tokens == 1:
            return
        upper = Node(lower.tokens // 2)
        lower.tokens -= upper.tokens
        self.nodes.append(upper)
        for who in TENANTS:
            self.table.divide(who, upper, lower)
            if (who, lower) in self.pins:
                self.pins[who, upper] = self.pins[who, lower]

    def time(self, seconds: int) -> None:
        self.now_s += seconds
        over = {each: pin for each, pin in self.pins.items() if pin.until_s <= self.now_s}
        told = []
        for who, node in self.table.over(self.now_s):
            self.table.remove(who, node)
            told.append((who, node))
        assert (set(told), len(told)) == (set(over), len(over))
        for each in over:
            del self.pins[each]

    def check(self) -> None:
        assert set(self.table) == set(self.pins)
        for who in TENANTS:
            own = {node: pin for (by, node), pin in self.pins.items() if by == who}
            assert self.table.of(who) == own
            assert self.table.tokens(who) == sum(node.tokens for node in own)
            assert (who in self.table) == bool(own)
        for workflow_id in WORKFLOWS[1:]:
            found = {each for each, pin in self.pins.items() if workflow_id in {name for name, _ in pin.asked}}
            assert set(self.table.asked(workflow_id)) == found
        assert self.table.asked(None) == self.table.asked("unheard of") == []


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=40))
def test_it_says_what_looking_at_all_pins_would_say(steps: list[tuple[object, ...]]) -> None:
    pins = Pins()
    for name, *arguments in steps:
        getattr(pins, str(name))(*arguments)
        pins.check()


def test_pins_that_change_again_and_again_take_no_more_room() -> None:
    table, node = PinTable(), Node(8)
    for number in range(5_000):
        table.put(TENANTS[0], node, Pin(1e6 - number, priority=50, on_device=True))
        if number % 2:
            table.remove(TENANTS[0], node)
    assert len(table._ends) <= 256


def test_what_is_not_cached_any_more_is_not_looked_for_all_the_time() -> None:
    table, nodes = PinTable(), [Node(8), Node(8)]
    for node in nodes:
        table.put(TENANTS[0], node, Pin(100.0, priority=50, on_device=True))
    assert table.gone(TENANTS[0], 0.0, lambda node: node is nodes[0]) == [nodes[1]]
    assert table.gone(TENANTS[0], 0.2, lambda node: False) == []
    assert table.gone(TENANTS[0], 0.3, lambda node: False) == nodes
    assert table.gone(TENANTS[2], 0.3, lambda node: False) == []
