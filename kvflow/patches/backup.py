"""Copies to SGLang's host tier that its own policy would not make, or not yet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvflow.engine import BackupPlanner, Room, unlocked_tokens
from kvflow.patches.guard import Guard

if TYPE_CHECKING:
    from kvflow.patches.tree import KvflowRadixCache


class Backups:
    """Copies one context a step to the host, with all above it that has no copy.

    Under ``write_through`` SGLang copies everything at once, so there is nothing to do unless copies are dropped, or
    ordered where the host had no room for them.

    Args:
        cache: whose contexts are copied.
    """

    def __init__(self, cache: KvflowRadixCache) -> None:
        self._cache = cache
        self.planner = BackupPlanner(cache.coordinator, cache.token_to_kv_pool_allocator.size_full)
        self._guard = Guard("backup")

    def begin(self, look: Callable[[], Room]) -> None:
        """Begin the next copy, if there is one, and what it holds meanwhile can be spared.

        Args:
            look: says what room there is on the device.
        """
        controller: Any = self._cache.cache_controller
        if controller is None:
            return
        dropped = controller.write_policy != "write_through" or self._cache.tree_core.drops_copies
        if dropped or self.planner.has_orders:
            self._guard.run(self._begin, look, default=None)

    def _begin(self, look: Callable[[], Room]) -> None:
        cache = self._cache
        node: Any = self.planner.next(_under_way)
        if node is None:
            return
        held_tokens = unlocked_tokens(node, locked)
        spared = look().may_lock(held_tokens, cache.coordinator.costs.load_steps(held_tokens))
        if spared and self._copied(node):
            cache.accounting.counters.backups += 1
        else:
            self.planner.refused(node)

    def _copied(self, node: Any) -> bool:
        """Begin a copy; tells whether there was room. What is ordered takes that of any other's copy."""
        core = self._cache.tree_core
        with contextlib.nullcontext() if self.planner.ordered(node) else core.making_way_for(node):
            return bool(self._cache._execute_and_commit_kv_backup(core.build_backup_kv_action(node.id)))


def locked(node: Any) -> bool:
    """Whether requests or transfers hold a node on the device."""
    return any(data.lock_ref > 0 for data in node.component_data)


def _under_way(node: Any) -> bool:
    return node.write_through_pending_id is not None
