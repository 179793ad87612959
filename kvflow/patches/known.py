"""Shorter walks along a request's path in the tree: insertions begin where it ends, instead of at the root.

A session adds a node or two with every turn, and each request is entered up to three times: its prompt, its whole
text, and its prompt's end once more. SGLang walks from the root every time, compares each node's key, and cuts what it
has matched off the request's. Of the nodes that a request holds it is known that they match.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE

from kvflow.patches.walks import touch


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

    Cost: O(nodes of the path).
    """
    if len(core.components) != 1 or core.enable_external_cache_linker or node is core.root_node:
        return
    if not len(node.key) <= end <= min(len(walk.key), walk.params.prev_prefix_len) or node.evicted:
        return
    if node.key.match_at(walk.key, end - len(node.key), core.page_size) < len(node.key):
        return  # cannot be, and would be a wrong answer
    copies = core.enable_hicache and not core.is_write_back
    inserted_tokens = walk.params.inserted_len
    path, entered, first, done, left = [], 0, 0, end, end
    while node is not core.root_node:
        data = node.component_data[BASE_COMPONENT_TYPE]
        path.append(node)
        entered += left <= inserted_tokens
        missing = copies and data.host_value is None and left > inserted_tokens
        left -= data.value.numel()
        if missing:
            first, done = len(path), left
        node = node.parent
    passed = path[first:]
    if left or not passed:
        return
    touch(passed, walk.priority, entered=len(passed) if core.is_write_back else entered)  # then SGLang counts none
    walk.node = passed[0]
    walk.total_prefix_length, walk.key, walk.value = done, walk.key[done:], walk.value[done:]
