"""What layers with a sliding window, and state-space layers, keep on nodes of the tree: who loses it first.

Without the window or the state at its end a context cannot be gone on from, whatever else of it is cached. SGLang has
these leave either tier in the order of use, each kind by a list of its own, and with them the leaves that have nothing
behind them. Contexts that are claimed get a second chance there, at their ends: what is kept above is of no use.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from kvflow.engine import Tier
from kvflow.policy import EvictionClass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvflow.patches.core import KvflowTreeCore

_PART = 64
"""So many nodes are looked at before a round of evictions."""
_MOST = 8 * _PART
"""And so many while all of them are pinned."""


def give_second_chance(core: KvflowTreeCore, component_type: Any, tier: Tier) -> None:
    """Count those of the least recently used nodes that are claimed as used: what is needed soonest as used last.

    Should all be claimed, a quarter of them stay where they are; else what nobody has looked at would leave.

    Source: the clock algorithm (Corbato, *A Paging Experiment with the Multics System*, 1968), with claims for bits.

    Args:
        core: tree core; a round of evictions of the kind is about to begin.
        component_type: the kind.
        tier: what they would leave.

    Cost: O(1).
    """
    on_host = tier is Tier.HOST
    lru: Any = (core.host_lru_lists if on_host else core.lru_lists)[component_type]
    leaves = core.evictable_host_leaves if on_host else core.evictable_device_leaves
    choice, coordinator = core.trust.choice(tier), core.coordinator
    least = EvictionClass.TAIL if choice.free and coordinator.uses_claims else EvictionClass.PINNED
    reach_tokens = _reach_tokens(core, component_type)

    def counts(node: Any, least: EvictionClass) -> bool:
        return core.class_of(node) >= least and (node in leaves or node.owners.ends_within(reach_tokens))

    first = _first(_from_the_oldest(lru, tier), lambda node: counts(node, EvictionClass.PINNED))
    coordinator.open_round(first, choice)
    claimed = sorted((node for node in first if counts(node, least)), key=coordinator.priority)
    if len(claimed) == len(first) >= _PART:
        claimed = claimed[len(claimed) // 4 :]
    for node in claimed:
        lru.reset_node_mru(node)


def _reach_tokens(core: KvflowTreeCore, component_type: Any) -> int:
    """How far above the end of a context nodes hold what going on from there takes: a window, or one state.

    States are where SGLang's grid allows, so that of a fixed prompt may be up to a step of it before its end.
    """
    component: Any = core.components_by_type[component_type]
    window_tokens: int = getattr(component, "sliding_window_size", 0)
    return window_tokens + core.page_size if window_tokens else getattr(component, "mamba_checkpoint_grid", 1)


def _first(nodes: Iterator[Any], is_pinned: Callable[[Any], bool]) -> list[Any]:
    """The first part of some nodes, and further ones while all are pinned."""
    found = list(islice(nodes, _PART))
    while len(found) < _MOST and all(map(is_pinned, found[-_PART:])):
        more = list(islice(nodes, _PART))
        if not more:
            break
        found += more
    return found


def _from_the_oldest(lru: Any, tier: Tier) -> Iterator[Any]:
    on_host = tier is Tier.HOST
    following = lru.get_prev_no_host_lock if on_host else lru.get_prev_no_lock
    node = lru.get_lru_no_host_lock() if on_host else lru.get_lru_no_lock()
    while node is not None:
        yield node
        node = following(node)
