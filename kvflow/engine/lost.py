"""What is left of a path whose end has left the cache: contexts are lost from their ends."""

from __future__ import annotations

from collections.abc import Callable

from kvflow.engine.ports import Node


def cached_part(tip: Node | None, cached: Callable[[Node], bool], most_nodes: int = 1 << 10) -> tuple[Node | None, int]:
    """Find the deepest node of a path that is in the cache.

    Args:
        tip: the path's last node, as it once was; None if nothing is known of it.
        cached: whether a node is in the cache at all.
        most_nodes: if more than so many are lost, all are taken to be.

    Returns:
        The node, None or the root if all of the path is lost, and how many tokens are lost behind it.
    """
    node, lost_tokens = tip, 0
    for _ in range(most_nodes):
        if node is None:
            break
        if cached(node):
            return node, lost_tokens
        lost_tokens += len(node.key)
        node = node.parent
    return None, lost_tokens
