"""What a full host gives up before it loses anything."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from kvflow.engine.coordinator import Coordinator
from kvflow.engine.ports import Node

AnyNode = TypeVar("AnyNode", bound=Node)

_COMPARED = 256
"""Copies that are compared at a time, at most."""
_CHUNKS = 24


def is_exclusive(mode: str, device_tokens: int, chunk_tokens: int) -> bool:
    """Whether a host tier drops copies of what the device holds.

    Args:
        mode: ``always``, ``never``, or ``auto``: where a chunk of a prompt is a small part of the device, so that there
            is time to copy again what has lost its copy before it has to leave.
        device_tokens: size of the device's pool.
        chunk_tokens: what is computed of prompts at a time; 0 for whole prompts.
    """
    return mode == "always" or (mode == "auto" and 0 < _CHUNKS * chunk_tokens <= device_tokens)


def given_up_first(
    coordinator: Coordinator,
    leaves: Collection[AnyNode],
    copies: dict[Any, AnyNode],
    *,
    order: Callable[[AnyNode], Any],
    droppable: Callable[[AnyNode], bool],
    locked: Callable[[AnyNode], bool],
    copied: AnyNode | None = None,
) -> Iterator[AnyNode]:
    """Give the nodes whose room on the host costs nobody anything; who asks for the next has cleared the one before.

    First what nobody will use any more: leaves of ended workflows, and of states that others have replaced. Then copies
    of what the device holds. They are of use only once that has left the device, and what the host alone holds is lost
    with it; so the two tiers hold together as much as both have room for. Copies go in the order in which they are
    missed last: those of contexts that requests compute with, then those of contexts that stay on the device longest,
    then what several contexts have in common. What is above a copy always has one. What nobody claims keeps its copy.

    Source: exclusive caching (Wong and Wilkes, *My Cache or Yours? Making Storage More Exclusive*, USENIX ATC 2002);
    which copies are dropped is ours.

    Args:
        coordinator: a round for the host is open.
        leaves: what could be evicted from the host.
        copies: nodes on both tiers by any key, in the order in which they were copied or loaded; forgets others.
        order: what leaves are compared by, no two of them alike; the lowest leaves first.
        droppable: whether a node is on both tiers and nothing reads or writes its copy.
        locked: whether requests hold a node on the device.
        copied: what the room is for, if that is a copy of what the device holds: it gets none of what would leave the
            device sooner, or the two would take each other's for as long as both wait.

    Cost: that of ranking leaves and copies.
    """
    for leaf in sorted(filter(coordinator.unwanted, leaves), key=order):
        node = leaf
        while node in leaves and coordinator.unwanted(node):
            yield node
            node = node.parent
    ends = [node for node in _newest(copies) if _ends_copies(node, droppable)]
    if copied is not None:
        least = coordinator.priority_on_device(copied)
        ends = [node for node in ends if locked(node) or coordinator.priority_on_device(node) > least]
    ends.sort(key=lambda node: (locked(node), coordinator.rank(node)), reverse=True)
    for end in ends:
        node = end
        while _ends_copies(node, droppable):
            yield node
            if node.owners is not None:
                node.owners.rank_version = -1  # it is worth more without a copy
            node = node.parent
            if not locked(node):
                ends.append(node)
                break


def _newest(copies: dict[Any, AnyNode]) -> list[AnyNode]:
    newest: list[AnyNode] = []
    gone: list[Any] = []
    for key, node in reversed(copies.items()):
        if node.evicted or not node.backuped:
            gone.append(key)
        else:
            newest.append(node)
            if len(newest) == _COMPARED:
                break
    for key in gone:
        del copies[key]
    return newest


def _ends_copies(node: Any, droppable: Callable[[Any], bool]) -> bool:
    """Whether a copy can be dropped, and nothing below has one; it is claimed, and nobody has asked to keep it."""
    if node.owners is None or node.owners.pins or not droppable(node):
        return False
    return not any(child.backuped for child in node.children.values())
