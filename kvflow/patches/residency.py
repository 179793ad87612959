"""A read-only look at what is cached where, and for whom."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvflow.patches.tree import KvflowRadixCache


def residency(cache: KvflowRadixCache) -> dict[str, Any]:
    """Count cached tokens by tier, order class and the agents whose fixed prompt they are. Cost: O(radix nodes)."""
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
