"""The order in which SGLang evicts: by claims, then as it would."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.evict_policy import EvictionStrategy

from kvflow.engine import Coordinator
from kvflow.patches.guard import note


class ClaimOrder(EvictionStrategy):
    """Rank by claims, then as SGLang would."""

    def __init__(self, coordinator: Coordinator, base: EvictionStrategy) -> None:
        self._coordinator = coordinator
        self._priority = coordinator.priority
        self.own = base.get_priority

    def get_priority(self, node: Any) -> tuple[Any, ...]:
        """Smallest is evicted first. Should ranking ever fail, the order is SGLang's from then on."""
        try:
            beyond, (cls, value) = self._priority(node)
            # somebody else's policy may return anything, and SGLang compares it where we cannot catch
            return ((beyond, float(cls), float(value)), self.own(node))
        except Exception:
            note("eviction order")
            self._coordinator.set_policy("lru")
            node.owners = None
            beyond, (cls, value) = self._priority(node)
            return ((beyond, float(cls), float(value)), self.own(node))
