"""Shorter walks along the paths of the tree, for what SGLang's Python tree core does with every node of them.

A session adds a node or two with every turn, so paths are dozens of nodes long, and each request's is walked a dozen
times: matched, locked and let go for each look at it, and entered up to three times. What is done at a node is little,
and calls are most of its cost. These do the same without them, where nodes hold the base component's values alone.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import MatchResult
from sglang.srt.mem_cache.unified_cache.components import (
    BASE_COMPONENT_TYPE,
    FullComponent,
    get_and_increase_time_counter,
)

_TICK = 1e-5
"""What SGLang's matching sets the times of use along a path apart by; much less than its clock's steps of 1."""
_TELLS_VISITED = "last_visited_node_id" in MatchResult._fields  # since SGLang 0.5.23


def match(core: Any, params: Any) -> Any:
    """Find the longest prefix of a key that is cached, as SGLang's ``match_prefix`` does.

    Args:
        core: tree core whose nodes hold the base component alone, under keys that are not of bigrams.
        params: the key, and who asks.

    Cost: O(nodes of the path).
    """
    page_tokens = core.page_size
    key = params.key.page_aligned(page_tokens)
    ids, end = key.token_ids, len(key)
    if not end:
        return core.empty_match_result
    node = device_node = core.root_node
    done = device_tokens = 0
    action = None
    while done < end:
        child = _only_child(node, key, ids, done, end)
        if child is not None:
            tokens, whole = len(child.key.token_ids), True
        else:
            child = node.children.get(key.child_key_at(done, page_tokens))
            if child is None or (child.evicted and not child.backuped):
                break
            tokens = child.key.match_at(key, done, page_tokens)
            whole = tokens == len(child.key)
            if not whole:
                child, action = core._split_node(child.key, child, tokens)
        node, done = child, done + tokens
        if child.component_data[BASE_COMPONENT_TYPE].value is not None:
            device_node, device_tokens = child, device_tokens + tokens
        if not whole:
            break
    _used(node)
    visited: dict[str, Any] = {"last_visited_node_id": node.id if done else None} if _TELLS_VISITED else {}
    return MatchResult(
        device_prefix_len=device_tokens,
        last_device_node=device_node.id,
        last_host_node=node.id,
        best_match_node=node.id,
        host_hit_length=done - device_tokens,
        full_kv_hit_length=done,
        cache_actions=[action] if action is not None else [],
        **visited,
    )


def _used(node: Any) -> None:
    """Note that a node and all above it have been looked for."""
    now = float(get_and_increase_time_counter())
    while node is not None:
        node.last_access_time = now
        now -= _TICK
        node = node.parent


def _only_child(node: Any, key: Any, ids: Any, start: int, end: int) -> Any:
    """The one child of a node, if a key goes on with all of it; None says nothing."""
    if len(node.children) != 1:
        return None
    (child,) = node.children.values()
    own, data = child.key, child.component_data[BASE_COMPONENT_TYPE]
    if data.value is None and data.host_value is None:
        return None
    until = start + len(own.token_ids)
    if until > end or own.limit is not None or own.extra_key != key.extra_key or own.cache_salt != key.cache_salt:
        return None
    return child if own.token_ids == ids[start:until] else None


class Locks:
    """Locks paths on the device, for a component whose methods these stand in for.

    Args:
        component: the base component of a tree core that has no other.

    Attributes:
        known: a node that is locked together with all above it by what the next lock takes over; None for nothing.
        met: the last path locked went through that node.
    """

    def __init__(self, component: Any) -> None:
        self._kind = type(component)
        self._component = component
        self.known: Any = None
        self.met = False

    def acquire(self, node: Any, result: Any, lock_host: bool = False) -> Any:
        """Lock a node and all above it."""
        if lock_host:
            return self._kind.acquire_component_lock(self._component, node, result, lock_host)
        core, known = self._component.tree_core, self.known
        root, leaves = core.root_node, core.evictable_device_leaves
        tokens, on_device = 0, False
        while node is not root and node is not known:
            data = node.component_data[BASE_COMPONENT_TYPE]
            if data.value is not None:
                on_device = True
                if not data.lock_ref:  # else it is no leaf, and counted
                    tokens += data.value.numel()
                    leaves.discard(node)
            else:
                assert not on_device, f"node {node.id} has left the device, and what is below it has not"
            data.lock_ref += 1
            node = node.parent
        core.component_evictable_size_[BASE_COMPONENT_TYPE] -= tokens
        core.component_protected_size_[BASE_COMPONENT_TYPE] += tokens
        self.met = node is known
        result.delta = tokens
        return result

    def release(self, node: Any, params: Any, lock_host: bool = False) -> None:
        """Let go of a node and all above it. What is above one on the device is a leaf of neither tier."""
        if lock_host:
            self._kind.release_component_lock(self._component, node, params, lock_host)
            return
        core = self._component.tree_core
        root, tokens, below = core.root_node, 0, False
        while node is not root:
            data = node.component_data[BASE_COMPONENT_TYPE]
            assert data.lock_ref > 0, f"node {node.id} is let go more often than it was locked"
            data.lock_ref -= 1
            on_device = data.value is not None
            if not data.lock_ref:
                tokens += data.value.numel() if on_device else 0
                if not below:
                    core._update_evictable_leaf_sets(node)
            below = on_device
            node = node.parent
        core.component_evictable_size_[BASE_COMPONENT_TYPE] += tokens
        core.component_protected_size_[BASE_COMPONENT_TYPE] -= tokens


def shorten(core: Any) -> Locks | None:
    """Let the base component of a tree core count without going through Python, and lock without calls.

    Args:
        core: its components have just been made.

    Returns:
        Locks of the base component; None where there are others, or it is not SGLang's own.
    """
    component = core.components_by_type[BASE_COMPONENT_TYPE]
    if type(component) is not FullComponent:
        return None
    component.value_len = _value_len
    if len(core.components) != 1:
        return None
    locks = Locks(component)
    component.acquire_component_lock, component.release_component_lock = locks.acquire, locks.release
    return locks


def _value_len(node: Any) -> int:
    """Tokens that a node holds on the device. A tensor's length goes through Python, its number of elements not."""
    value = node.component_data[BASE_COMPONENT_TYPE].value
    try:
        return value.numel()
    except AttributeError:  # there is none, or it is the root's, a list
        return len(value or ())


def inner(node: Any) -> bool:
    """Whether a node can be a leaf of neither tier: it is locked, or on the device with one below it there too.

    SGLang asks for much more. The root, which is always locked, may have thousands of children, most of them no longer
    on the device.
    """
    data = node.component_data[BASE_COMPONENT_TYPE]
    return data.lock_ref > 0 or (
        data.value is not None
        and any(child.component_data[BASE_COMPONENT_TYPE].value is not None for child in node.children.values())
    )


def touch(path: list[Any], priority: int, *, entered: int) -> None:
    """Leave on nodes what SGLang's walk of an insertion does: when they were used, their priority, and their hits.

    Args:
        path: nodes on the device, deepest first.
        priority: of the request.
        entered: how many of them, the uppermost ones, the same request has counted as hit before.
    """
    last, counted = float(get_and_increase_time_counter()), len(path) - entered
    for depth, node in enumerate(path):
        node.last_access_time = last - depth * _TICK
        node.hit_count += depth < counted
        node.priority = max(node.priority, priority)
