"""Pins by command: which nodes are kept for whom, and until when."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvflow.engine.accounting import Tier
from kvflow.engine.coordinator import Coordinator
from kvflow.engine.owners import Asked, Owners, Pin
from kvflow.engine.ports import Node

Pinned = dict[Node, Pin]


class Pins:
    """Pins on nodes, by tenant and tier; each also sits on its node, where eviction sees it.

    Args:
        coordinator: whose nodes they are.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._pinned: dict[tuple[str, Tier], Pinned] = {}
        self._sweep_s = math.inf

    def pin(self, tenant: str, tier: Tier, nodes: Sequence[Node], pin: Pin, budget_tokens: float) -> list[Node]:
        """Pin from the root down, as far as the budget goes: what is above is of use without what is below.

        Args:
            nodes: of a path, or of several.
            pin: a shared node is kept as long, and as firmly, as any of its pins say.
            budget_tokens: what the tenant may pin of the tier, with what it has pinned already.

        Returns:
            What is pinned now.
        """
        pinned = self._pinned.setdefault((tenant, tier), {})
        self._forget_expired(pinned)
        room_tokens = budget_tokens - sum(len(node.key) for node in pinned)
        self._sweep_s = min(self._sweep_s, pin.until_s)
        held: list[Node] = []
        for node in sorted(nodes, key=end_tokens):
            room_tokens -= 0 if node in pinned else len(node.key)
            if room_tokens < 0:
                break
            held.append(node)
            self._set(tenant, tier, node, _joined(pinned.get(node), pin, self._now_s))
        return held

    def unpin(self, tenant: str, tier: Tier, node: Node) -> bool:
        """Lift a tenant's pin on a node; tells whether there was one."""
        self._pinned.get((tenant, tier), {}).pop(node, None)
        return node.owners is not None and node.owners.pins.pop((tenant, tier), None) is not None

    def lift(self, workflow_id: str | None, agent: str | None, tenant: str | None) -> list[Node]:
        """Lift what was pinned for a workflow or one of its agents, and for nobody else.

        Args:
            workflow_id: need not be live.
            agent: None for all of the workflow.
            tenant: who has pinned it; None for anyone, where that is no longer known.

        Returns:
            Nodes that are pinned no longer.
        """
        lifted: dict[Node, None] = {}
        for (by, tier), node, pin in [*self._all()]:
            others = {
                asked: until_s
                for asked, until_s in pin.asked.items()
                if asked[0] != workflow_id or agent not in (None, asked[1])
            }
            if tenant not in (None, by) or len(others) == len(pin.asked):
                continue
            if others:
                self._set(by, tier, node, replace(pin, until_s=max(others.values()), asked=others))
            elif self.unpin(by, tier, node) and pin.until_s > self._now_s:
                lifted[node] = None
        return [*lifted]

    def split(self, upper: Node, lower: Node) -> None:
        """A node has been divided: what holds for it holds for both halves, and both count."""
        for tenant, tier in upper.owners.pins if upper.owners is not None else ():
            pinned = self._pinned.get((tenant, Tier(tier)), {})
            if lower in pinned:
                pinned[upper] = pinned[lower]

    def tick(self) -> None:
        """Time has passed: forget pins that are over."""
        if self._now_s < self._sweep_s:
            return
        for key, pinned in [*self._pinned.items()]:
            self._forget_expired(pinned)
            if not pinned:
                del self._pinned[key]
        self._sweep_s = min((pin.until_s for _, _, pin in self._all()), default=math.inf)

    def clear(self) -> None:
        """The cache has been flushed."""
        self._pinned.clear()

    @property
    def _now_s(self) -> float:
        return self._coordinator.claims.clock.now_s

    def _all(self) -> Iterator[tuple[tuple[str, Tier], Node, Pin]]:
        for key, pinned in self._pinned.items():
            for node, pin in pinned.items():
                yield key, node, pin

    def _set(self, tenant: str, tier: Tier, node: Node, pin: Pin) -> None:
        owners = node.owners = node.owners or Owners(end_tokens(node))
        owners.pins[tenant, tier] = self._pinned[tenant, tier][node] = pin

    def _forget_expired(self, pinned: Pinned) -> None:
        over = [n for n, pin in pinned.items() if pin.until_s <= self._now_s or not self._coordinator.cached(n)]
        for node in over:
            del pinned[node]


def _joined(before: Pin | None, pin: Pin, now_s: float) -> Pin:
    if before is None:
        return pin
    asked: Asked = {who: until_s for who, until_s in before.asked.items() if until_s > now_s}
    for who, until_s in pin.asked.items():
        asked[who] = max(until_s, asked.get(who, 0.0))
    return replace(
        pin, until_s=max(pin.until_s, before.until_s), priority=max(pin.priority, before.priority), asked=asked
    )


def end_tokens(node: Node) -> int:
    """Position of a node's last token + 1."""
    tokens = 0
    while node.parent is not None:
        tokens += len(node.key)
        node = node.parent
    return tokens
