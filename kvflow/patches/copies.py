"""What SGLang's full host tier gives up before it loses anything."""

from __future__ import annotations

import inspect
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE

from kvflow.engine import given_up_first
from kvflow.patches.backup import locked

if TYPE_CHECKING:
    from kvflow.patches.core import KvflowTreeCore


@dataclass(slots=True)
class Freed:
    """What has been freed, by component, as SGLang's results of evictions have it; those must not be thrown away."""

    device_frees: dict[Any, list[Any]] = field(default_factory=lambda: defaultdict(list))
    host_frees: dict[Any, list[Any]] = field(default_factory=lambda: defaultdict(list))
    tracker: dict[Any, int] = field(default_factory=lambda: defaultdict(int))
    cache_actions: list[Any] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Of the host tier."""
        return self.tracker[BASE_COMPONENT_TYPE]

    def add_to(self, result: Any) -> None:
        """Make it part of SGLang's result of what was evicted after it."""
        for ours, theirs in ((self.device_frees, result.device_frees), (self.host_frees, result.host_frees)):
            for component, values in ours.items():
                theirs[component] = values + theirs[component]
        for component, tokens in self.tracker.items():
            result.tracker[component] += tokens
        if self.cache_actions:
            result.cache_actions[:0] = self.cache_actions


def give_up_first(core: KvflowTreeCore, tokens: int, freed: Freed) -> None:
    """Free so many tokens of the host tier, as far as that costs nobody anything.

    Args:
        core: whose round for the host tier is open.
        tokens: how many.
        freed: takes what is, even if this fails halfway.
    """
    takes_actions = "cache_actions" in inspect.signature(core._release_full_host_duplicate).parameters  # since 0.5.23
    actions = {"cache_actions": freed.cache_actions} if takes_actions else {}
    for node in given_up_first(
        core.coordinator,
        core.evictable_host_leaves,
        core.full_host_duplicates,
        order=lambda leaf: (core.eviction_strategy.get_priority(leaf), leaf),
        droppable=lambda node: node is not core.kept and core._can_reclaim_full_host_duplicate(node),
        locked=locked,
        copied=core.copied,
    ):
        clear = core._evict_host_leaf if node.evicted else core._release_full_host_duplicate
        if not node.evicted:
            core.accounting.counters.dropped_copy_tokens += len(node.key)
        clear(node, freed.tracker, freed.device_frees, freed.host_frees, **actions)
        if freed.tokens >= tokens:
            return
