"""Copies to SGLang's host tier that its own policy would not make, or not yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvflow.engine import BackupPlanner
from kvflow.patches.guard import Guard

if TYPE_CHECKING:
    from kvflow.patches.tree import KvflowRadixCache


class Backups:
    """Copies one context a step to the host, with all above it that has no copy.

    Under ``write_through`` SGLang copies everything at once, so there is nothing to do.

    Args:
        cache: whose contexts are copied.
    """

    def __init__(self, cache: KvflowRadixCache) -> None:
        self._cache = cache
        self.planner = BackupPlanner(cache.coordinator, cache.token_to_kv_pool_allocator.size_full)
        self._guard = Guard("backup")

    def begin(self) -> None:
        """Begin the next copy, if there is one."""
        controller: Any = self._cache.cache_controller
        if controller is not None and controller.write_policy != "write_through":
            self._guard.run(self._begin, default=None)

    def _begin(self) -> None:
        cache = self._cache
        node: Any = self.planner.next(_under_way)
        if node is None:
            return
        action = cache.tree_core.build_backup_kv_action(node.id)
        if cache._execute_and_commit_kv_backup(action):
            cache.accounting.counters.backups += 1
        else:
            self.planner.refused()


def _under_way(node: Any) -> bool:
    return node.write_through_pending_id is not None
