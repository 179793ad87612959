"""Shorter walks along a request's path in the tree: insertions begin where it ends, instead of at the root.

A session adds a node or two with every turn, and each request is entered up to three times: its prompt, its whole
text, and its prompt's end once more. SGLang walks from the root every time, compares each node's key, and cuts what it
has matched off the request's. Of the nodes that a request holds it is known that they match.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE


def go_ahead(core: Any, walk: Any, node: Any, end: int) -> None:
    """Move an insertion that has just begun to the end of a path that its key is known to follow.

    On the nodes it passes it leaves what SGLang's walk does: when they were last used, their priority, and how often
    they were hit. Stops where a copy to the host would begin, and does nothing where more than the base component's
    values hang on nodes.

    Args:
        core: SGLang's Python tree core.
        walk: state of the insertion.
        node: last node of the path; a request holds it on the device.
        end: tokens of the path.

    Cost: O(nodes of the path), about a microsecond each, where SGLang's walk takes eight.
    """
    if len(core.components) != 1 or core.enable_external_cache_linker:
        return
    if end > min(len(walk.key), walk.params.prev_prefix_len) or node is core.root_node or node.evicted:
        return
    if node.key.match_at(walk.key, end - len(node.key), core.page_size) < len(node.key):
        return  # cannot be, and would be a wrong answer
    path = []
    left = end
    while node is not core.root_node:
        path.append(node)
        left -= len(node.key)
        node = node.parent
    if left:
        return
    inserted_tokens, copied = walk.params.inserted_len, core.enable_hicache and not core.is_write_back
    done = 0
    for node in reversed(path):
        tokens = done + len(node.key)
        if tokens > inserted_tokens:
            if copied and not node.backuped:
                break
            core._inc_hit_count_and_check(node)
        core._touch_node(node)
        node.priority = max(node.priority, walk.priority)
        walk.node, done = node, tokens
    walk.total_prefix_length, walk.key, walk.value = done, walk.key[done:], walk.value[done:]


def count_values_fast(components: Any) -> None:
    """Let walks, which ask every node a dozen times a request how much it holds, ask the tensor itself.

    The length of a tensor goes through Python, and takes six times as long as the number of its elements.

    Args:
        components: of a tree core; the base component's values have one dimension.
    """
    for component in components:
        if component.component_type is BASE_COMPONENT_TYPE:
            component.value_len = _value_len


def _value_len(node: Any) -> int:
    value = node.component_data[BASE_COMPONENT_TYPE].value
    try:
        return value.numel()
    except AttributeError:  # there is none, or it is the root's, a list
        return len(value or ())


def inner(node: Any) -> bool:
    """Whether a node can be a leaf of neither tier: it is the root, or on the device with one below it there too.

    SGLang asks this of every node of a path that is let go, three times a request, and by asking for much more. The
    root may have thousands of children, most of them no longer on the device.
    """
    return node.parent is None or (
        node.component_data[BASE_COMPONENT_TYPE].value is not None
        and any(child.component_data[BASE_COMPONENT_TYPE].value is not None for child in node.children.values())
    )
