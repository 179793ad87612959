"""What layers with a sliding window, and state-space layers, keep on nodes of the tree: who loses it first.

Without the window or the state at its end a context cannot be gone on from, whatever else of it is cached. SGLang has
these leave in the order of use, each kind by a list of its own, and with them the leaves that have nothing behind them.
Contexts that are claimed get a second chance there.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from kvflow.engine import Tier
from kvflow.policy import EvictionClass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvflow.patches.core import KvflowTreeCore

_PART = 64
"""So many nodes are looked at before a round of evictions."""


def give_second_chance(core: KvflowTreeCore, component_type: Any) -> None:
    """Count those of the least recently used nodes that are claimed as used: what is needed soonest as used last.

    Source: the clock algorithm (Corbato, *A Paging Experiment with the Multics System*, 1968), with claims for bits.

    Args:
        core: tree core; a round of evictions of the kind is about to begin.
        component_type: the kind.

    Cost: O(1).
    """
    lru: Any = core.lru_lists[component_type]
    choice, coordinator = core.trust.choice(Tier.DEVICE), core.coordinator
    least = EvictionClass.TAIL if choice.free and coordinator.uses_claims else EvictionClass.PINNED
    first = list(islice(_from_the_oldest(lru), _PART))
    coordinator.open_round(first, choice)
    for node in sorted((node for node in first if core.class_of(node) >= least), key=coordinator.priority):
        lru.reset_node_mru(node)


def _from_the_oldest(lru: Any) -> Iterator[Any]:
    node = lru.get_lru_no_lock()
    while node is not None:
        yield node
        node = lru.get_prev_no_lock(node)
