"""A read-only look at what is cached where, and for whom."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvflow.patches.tree import KvflowRadixCache

_FEW_NODES = 256
"""So many are walked in less time than a request for it takes; where there are more, a look is kept for a while."""
_KEPT_S = 2.0


class Residency:
    """Looks at a cache, and keeps the last look at a large one: the scheduler does nothing else meanwhile.

    Args:
        cache: whose nodes are counted.
    """

    def __init__(self, cache: KvflowRadixCache) -> None:
        self._cache = cache
        self._kept: dict[str, Any] = {}
        self._kept_s = 0.0

    def look(self, now_s: float) -> dict[str, Any]:
        """Count cached tokens by tier, order class and the agents whose fixed prompt they are.

        Args:
            now_s: the control plane's time, which every rank is told.

        Cost: O(radix nodes), where there are many of them once in two seconds at most.
        """
        if self._kept and now_s - self._kept_s < _KEPT_S:
            return self._kept | {"age_s": max(0.0, now_s - self._kept_s)}
        found = _count(self._cache)
        self._kept, self._kept_s = (found if found["nodes"] > _FEW_NODES else {}), now_s
        return found | {"age_s": 0.0}

    def forget(self) -> None:
        """The cache has been reset."""
        self._kept = {}


def _count(cache: KvflowRadixCache) -> dict[str, Any]:
    core = cache.tree_core
    by_class: Counter[str] = Counter()
    fixed: dict[str, Counter[str]] = {}
    nodes = 0
    stack: list[Any] = list(core.root_node.children.values())
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        nodes += 1
        tokens = len(node.key)
        tiers = [tier for tier, there in (("device", not node.evicted), ("host", node.backuped)) if there]
        for tier in tiers:
            by_class[f"{tier}/{core.class_of(node).name.lower()}"] += tokens
            for role in node.owners.fixed_roles() if node.owners is not None else ():
                fixed.setdefault(role.agent, Counter())[tier] += tokens
    return {
        "nodes": nodes,
        "tokens": dict(sorted(by_class.items())),
        "fixed_prompts": {agent: dict(counts) for agent, counts in sorted(fixed.items())},
    }
