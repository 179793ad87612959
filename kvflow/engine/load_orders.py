"""Loads that somebody has ordered by command, until they have been made or are due no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvflow.engine.ports import Node

_MAX_ORDERS = 256
_MAX_ORDERS_OF_ONE = 64
"""So many of them for one tenant."""


class LoadOrders:
    """Contexts to be loaded as soon as the link and room allow.

    Args:
        missing: what of a context, by where it ends, is on the host only.
        least_tokens: of which less is taken for nothing.
    """

    def __init__(self, missing: Callable[[Node], list[Node]], least_tokens: int = 1) -> None:
        self._missing = missing
        self._least_tokens = least_tokens
        self._until_s: dict[tuple[str, Node], float] = {}

    def add(self, nodes: Iterable[Node], until_s: float, now_s: float, tenant: str) -> bool:
        """Order contexts; False if too many are ordered already, by the tenant or by all.

        Args:
            nodes: where they end.
            until_s: not after this.
            now_s: the time, on the same clock.
            tenant: who orders.
        """
        self.open(now_s)
        ordered = self._until_s | dict.fromkeys(((tenant, node) for node in nodes), until_s)
        if len(ordered) > _MAX_ORDERS or sum(by == tenant for by, _ in ordered) > _MAX_ORDERS_OF_ONE:
            return False
        self._until_s = ordered
        return True

    def cancel(self, nodes: Iterable[Node], tenant: str) -> int:
        """Take back what a tenant has ordered of these; returns how many."""
        return sum(self._until_s.pop((tenant, node), None) is not None for node in nodes)

    def clear(self) -> None:
        """Forget all of them."""
        self._until_s.clear()

    def open(self, now_s: float) -> list[list[Node]]:
        """What is ordered and not there yet: what is missing of each, deepest first; the oldest order first."""
        found: list[list[Node]] = []
        for order, until_s in [*self._until_s.items()]:
            missing = self._missing(order[1]) if until_s > now_s else []
            if sum(len(node.key) for node in missing) >= self._least_tokens:
                found.append(missing)
            else:
                del self._until_s[order]
        return found
