"""Pins by command: which nodes are kept for whom, and until when."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from kvflow.engine.accounting import Tier
from kvflow.engine.coordinator import Coordinator
from kvflow.engine.owners import Asked, Owners, Pin
from kvflow.engine.pin_table import PinTable, Who
from kvflow.engine.ports import Node

_HOUR_S = 3600.0
_FORGET_S = 60.0
_MAX_ASKED = 64
_UNNAMED = (None, None)
"""Stands for all others who have asked: they cannot release what they have pinned by name, nor does anyone else."""


class PinTime:
    """How long each tenant may go on pinning a tier: token-seconds that come back evenly over an hour.

    What a pin will take is taken when it is asked for, and given back if it is lifted before.

    Args:
        hourly_s: seconds of an hour for which a tenant may pin all of its budget; an hour if there is no limit.
    """

    def __init__(self, hourly_s: float) -> None:
        self._share = hourly_s / _HOUR_S
        self._spent: dict[tuple[str, Tier], tuple[float, float]] = {}

    def left(self, who: tuple[str, Tier], budget_tokens: float, now_s: float) -> float:
        """Token-seconds that are left to a tenant now.

        Args:
            budget_tokens: what it may pin at a time.
        """
        if self._share >= 1:
            return math.inf
        spent, at_s = self._spent.get(who, (0.0, now_s))
        spent = max(0.0, spent - (now_s - at_s) * self._share * budget_tokens)
        self._spent[who] = (spent, now_s)
        return self._share * _HOUR_S * budget_tokens - spent

    def take(self, who: tuple[str, Tier], token_seconds: float) -> None:
        """Take what a pin will take; give it back if it is less than nothing."""
        if who in self._spent:
            spent, at_s = self._spent[who]
            self._spent[who] = (spent + token_seconds, at_s)

    def forget(self, kept: Container[tuple[str, Tier]], now_s: float) -> None:
        """Forget who pins nothing and has all of its time again."""
        self._spent = {who: last for who, last in self._spent.items() if who in kept or now_s - last[1] < _HOUR_S}


class Pins:
    """Pins on nodes, by tenant and tier; each also sits on its node, where eviction sees it.

    Args:
        coordinator: whose nodes they are.
        hourly_s: seconds of an hour for which a tenant may pin all of its budget.
    """

    def __init__(self, coordinator: Coordinator, hourly_s: float) -> None:
        self._coordinator = coordinator
        self._time = PinTime(hourly_s)
        self._table = PinTable()
        self._forget_s = 0.0

    def pin(
        self, tenant: str, tier: Tier, nodes: Sequence[Node], pin: Pin, budget_tokens: float
    ) -> tuple[list[Node], float]:
        """Pin from the root down, as far as the budget goes: what is above is of use without what is below.

        If the tenant's time does not last as long, all of it is pinned for less.

        Args:
            nodes: of a path, or of several.
            pin: a shared node is kept as long, and as firmly, as any of its pins say.
            budget_tokens: what the tenant may pin of the tier, with what it has pinned already.

        Returns:
            What is pinned now, and until when, as far as this pin goes.

        Cost: O(nodes on the paths); of all that the tenant has pinned if that is too much, four times a second at most.
        """
        who = (tenant, tier)
        self._forget_expired()
        nodes = from_the_top(nodes)
        held = self._fitting(who, nodes, budget_tokens)
        if len(held) < len(nodes) and (gone := self._table.gone(who, self._now_s, self._coordinator.cached)):
            for node in gone:
                self._forget(who, node)
            held = self._fitting(who, nodes, budget_tokens)
        until_s = min(pin.until_s, self._now_s + self._seconds(who, held, budget_tokens))
        if until_s <= self._now_s:
            return [], until_s
        pin = replace(pin, until_s=until_s, asked=dict.fromkeys(pin.asked, until_s))
        for node in held:
            self._set(who, node, _joined(self._table.of(who).get(node), pin, self._now_s))
        return held, until_s

    def unpin(self, tenant: str, tier: Tier, node: Node) -> bool:
        """Lift a tenant's pin on a node; tells whether there was one."""
        who = (tenant, tier)
        self._time.take(who, -self._left(self._table.of(who).get(node)) * len(node.key))
        return self._forget(who, node)

    def lift(self, workflow_id: str | None, agent: str | None, tenant: str | None) -> list[Node]:
        """Lift what was pinned for a workflow or one of its agents, and for nobody else.

        Args:
            workflow_id: need not be live.
            agent: None for all of the workflow.
            tenant: who has pinned it; None for anyone, where that is no longer known.

        Returns:
            Nodes that are pinned no longer.

        Cost: O(nodes pinned for the workflow).
        """
        lifted: dict[Node, None] = {}
        for who, node in self._table.asked(workflow_id):
            pin = self._table.of(who)[node]
            others = {
                asked: until_s
                for asked, until_s in pin.asked.items()
                if asked[0] != workflow_id or agent not in (None, asked[1])
            }
            if tenant not in (None, who[0]) or len(others) == len(pin.asked):
                continue
            if others:
                self._set(who, node, replace(pin, until_s=max(others.values()), asked=others))
            elif self.unpin(*who, node) and pin.until_s > self._now_s:
                lifted[node] = None
        return [*lifted]

    def split(self, upper: Node, lower: Node) -> None:
        """A node has been divided: what holds for it holds for both halves, and both count."""
        for tenant, tier in upper.owners.pins if upper.owners is not None else ():
            self._table.divide((tenant, Tier(tier)), upper, lower)

    def tick(self) -> None:
        """Time has passed: forget pins that are over. Cost: O(log pins) for each of those."""
        self._forget_expired()
        if self._now_s >= self._forget_s:
            self._forget_s = self._now_s + _FORGET_S
            self._time.forget(self._table, self._now_s)

    def clear(self) -> None:
        """The cache has been flushed."""
        for who, node in [*self._table]:
            self.unpin(*who, node)
        self._table = PinTable()

    @property
    def _now_s(self) -> float:
        return self._coordinator.claims.clock.now_s

    def _left(self, pin: Pin | None) -> float:
        """Seconds that a pin goes on."""
        return 0.0 if pin is None else max(0.0, pin.until_s - self._now_s)

    def _fitting(self, who: Who, nodes: Sequence[Node], budget_tokens: float) -> list[Node]:
        """As many of these nodes, the first ones, as the budget has room for beside what is pinned."""
        room_tokens = budget_tokens - self._table.tokens(who)
        held: list[Node] = []
        for node in nodes:
            room_tokens -= 0 if node in self._table.of(who) else len(node.key)
            if room_tokens < 0:
                break
            held.append(node)
        return held

    def _seconds(self, who: Who, nodes: Sequence[Node], budget_tokens: float) -> float:
        """For how long a tenant may pin these, of which it has pinned some already for a while."""
        pinned = self._table.of(who)
        left = self._time.left(who, budget_tokens, self._now_s)
        seconds, tokens = 0.0, 0
        for paid_s, node_tokens in sorted((self._left(pinned.get(node)), len(node.key)) for node in nodes):
            if tokens * (paid_s - seconds) > left:
                break
            left -= tokens * (paid_s - seconds)
            seconds, tokens = paid_s, tokens + node_tokens
        return seconds + left / max(1, tokens)

    def _set(self, who: Who, node: Node, pin: Pin) -> None:
        before = self._table.of(who).get(node)
        self._time.take(who, (self._left(pin) - self._left(before)) * len(node.key))
        owners = node.owners = node.owners or Owners(end_tokens(node))
        owners.pins[who] = pin
        self._table.put(who, node, pin)

    def _forget_expired(self) -> None:
        for who, node in self._table.over(self._now_s):
            self._forget(who, node)

    def _forget(self, who: Who, node: Node) -> bool:
        """Forget a pin; tells whether it was still on its node."""
        self._table.remove(who, node)
        return node.owners is not None and node.owners.pins.pop(who, None) is not None


def _joined(before: Pin | None, pin: Pin, now_s: float) -> Pin:
    if before is None:
        return pin
    asked: Asked = {who: until_s for who, until_s in before.asked.items() if until_s > now_s}
    for who, until_s in pin.asked.items():
        asked[who] = max(until_s, asked.get(who, 0.0))
    while len(asked) > _MAX_ASKED:
        first = min((who for who in asked if who != _UNNAMED), key=asked.__getitem__)
        asked[_UNNAMED] = max(asked.pop(first), asked.get(_UNNAMED, 0.0))
    return replace(
        pin, until_s=max(pin.until_s, before.until_s), priority=max(pin.priority, before.priority), asked=asked
    )


def from_the_top(nodes: Iterable[Node]) -> list[Node]:
    """Nodes by how far they are from the root, each behind those above it. Cost: O(nodes on their paths)."""
    depths: dict[Node, int] = {}
    for tip in nodes:
        path: list[Node] = []
        node: Node | None = tip
        while node is not None and node not in depths:
            path.append(node)
            node = node.parent
        depth = -1 if node is None else depths[node]
        for above, node in enumerate(reversed(path), start=1):
            depths[node] = depth + above
    return sorted(nodes, key=depths.__getitem__)


def end_tokens(node: Node) -> int:
    """Position of a node's last token + 1."""
    tokens = 0
    while node.parent is not None:
        tokens += len(node.key)
        node = node.parent
    return tokens
