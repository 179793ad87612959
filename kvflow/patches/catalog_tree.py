"""The seams of SGLang's radix cache: how it comes by our tree core and cache, and what these override."""

from __future__ import annotations

from kvflow.patches.seams import Feature, Kind, Role, Seam

_TREE = "sglang.srt.mem_cache.unified_cache.unified_tree_core.UnifiedTreeCore"
_FULL = "sglang.srt.mem_cache.unified_cache.components.full.FullComponent"
_CACHE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_SIZES = "sglang.srt.mem_cache.allocation_sizing"


def _override(name: str, target: str, parameters: tuple[str, ...], feature: Feature, why: str) -> Seam:
    return Seam(
        name=name,
        role=Role.SCHEDULER,
        kind=Kind.SUBCLASS,
        feature=feature,
        target=target,
        parameters=parameters,
        why=why,
    )


def _tree(name: str, method: str, parameters: tuple[str, ...], why: str) -> Seam:
    return _override(name, f"{_TREE}.{method}", parameters, Feature.EVICTION, why)


TREE_SEAMS: tuple[Seam, ...] = (
    Seam(
        name="tree.backend",
        role=Role.SCHEDULER,
        kind=Kind.REGISTRY,
        feature=Feature.EVICTION,
        target="sglang.srt.mem_cache.registry.register_radix_cache_backend",
        parameters=("name", "factory"),
        why="Makes --radix-cache-backend kvflow.",
    ),
    Seam(
        name="tree.core",
        role=Role.SCHEDULER,
        kind=Kind.REGISTRY,
        feature=Feature.EVICTION,
        target="sglang.srt.mem_cache.unified_cache.tree_core_registry.register_tree_core_backend",
        parameters=("name", "factory"),
        why="Selects our subclass of the Python tree core; the Rust core takes no custom order.",
    ),
    _tree("tree.new_node", "_new_node", ("self", "priority"), "Every radix node starts without owners."),
    _tree(
        "tree.split",
        "_split_node",
        ("self", "key", "child", "split_len"),
        "A divided node keeps its claims on both halves.",
    ),
    _tree("tree.remove", "_unregister_node", ("self", "node"), "What a claim remembers of it holds no memory."),
    _tree("tree.add_node", "_add_new_node", ("self", "parent", "key"), "A node's key compares as a whole first."),
    _tree("tree.insert", "begin_insert", ("self", "params"), "What is left of a key is not copied at every node."),
    _tree("tree.walk", "_advance_insert", ("self",), "An insertion begins where the path ends that a request holds."),
    _tree("tree.leaves", "_update_evictable_leaf_sets", ("self", "node"), "What is within a path is no leaf."),
    _tree("tree.match", "match_prefix", ("self", "params"), "Walks a long path without calls."),
    _tree("tree.hold", "inc_lock_ref", ("self", "node_id"), "A request's lock moves on from where it was."),
    _tree("tree.let_go", "dec_lock_ref", ("self", "node_id", "params"), "That one takes over the lock before it."),
    _override(
        "tree.lock",
        f"{_FULL}.acquire_component_lock",
        ("self", "node", "result", "lock_host"),
        Feature.EVICTION,
        "Locks it likewise.",
    ),
    _override(
        "tree.unlock",
        f"{_FULL}.release_component_lock",
        ("self", "node", "params", "lock_host"),
        Feature.EVICTION,
        "Lets it go likewise.",
    ),
    _override(
        "tree.value_len",
        "sglang.srt.mem_cache.unified_cache.components.base.TreeComponent.value_len",
        ("self", "node"),
        Feature.EVICTION,
        "Walks ask the base component for it at every node.",
    ),
    _override(
        "tree.key",
        "sglang.srt.mem_cache.radix_cache.RadixKey.match_at",
        ("self", "other", "offset", "page_size"),
        Feature.EVICTION,
        "What that comparison replaces.",
    ),
    _override(
        "tree.checkpoint",
        f"{_CACHE}.checkpoint",
        ("self", "req", "up_to"),
        Feature.EVICTION,
        "Where a request's nodes become known, so that its claim can be entered on them.",
    ),
    _override(
        "tree.release",
        f"{_CACHE}.on_release",
        ("self", "req", "checkpointed"),
        Feature.EVICTION,
        "A request has given its memory back, and the shadow LRU with it.",
    ),
    _override(
        "tree.session",
        f"{_CACHE}.claim_kv_row",
        ("self", "req"),
        Feature.EVICTION,
        "The same where a streaming session keeps the memory.",
    ),
    _override(
        "tree.touch",
        f"{_CACHE}.touch_prefix",
        ("self", "key"),
        Feature.EVICTION,
        "Divides a node where the fixed prompt ends.",
    ),
    _override(
        "tree.reset",
        f"{_CACHE}.reset",
        ("self",),
        Feature.EVICTION,
        "A flush forgets what had been cached, and whose it was.",
    ),
    _tree(
        "tree.device_round",
        "evict_device_start",
        ("self", "component_type", "request_cnt"),
        "Settles which leaves predictions may choose among before a round of evictions from the device.",
    ),
    _tree(
        "tree.device_next",
        "evict_device_next_node",
        ("self", "component_type", "tracker"),
        "Looks at all leaves if the part that a round looks at has not been enough.",
    ),
    _override(
        "tree.device_alloc",
        f"{_CACHE}.evict_for_alloc",
        ("self", "params"),
        Feature.EVICTION,
        "What nobody claims leaves in larger portions, so that not every decode step ranks the leaves.",
    ),
    _tree(
        "tree.device_end",
        "evict_device_end",
        ("self", "component_type"),
        "Remembers the worst of what a round has looked at for the next one.",
    ),
    _tree("tree.reset_core", "reset", ("self",), "Keeps leaves in sets looked at in parts."),
    _tree(
        "tree.host_round",
        "drive_host_eviction",
        ("self", "component_type", "num_tokens"),
        "The same for the host tier, which first drops copies of what the device holds.",
    ),
    _override(
        "tree.copy",
        f"{_CACHE}._execute_and_commit_kv_backup",
        ("self", "action", "write_back"),
        Feature.EVICTION,
        "What is above a copy on the host has one.",
    ),
    _tree(
        "tree.backup",
        "build_backup_kv_action",
        ("self", "node_id"),
        "Says what has to be copied for that.",
    ),
    _tree(
        "tree.copies",
        "_can_reclaim_full_host_duplicate",
        ("self", "node"),
        "Says whether a host copy is in use.",
    ),
    _tree(
        "tree.drop_copy",
        "_release_full_host_duplicate",
        ("self", "node", "tracker", "device_frees", "host_frees"),
        "Drops a host copy of what the device holds.",
    ),
    _tree(
        "tree.evict_device",
        "evict_device_leaf",
        ("self", "node_id", "is_write_back"),
        "Counts tokens that leave the device.",
    ),
    _tree("tree.demote", "demote", ("self", "node_id"), "Counts tokens that leave the device after a write-back."),
    _tree("tree.drop", "drop_subtree_no_host", ("self", "node_id"), "Counts what is lost where the host is full."),
    _tree("tree.evict_host", "_evict_host_leaf", ("self", "node"), "Counts tokens that leave the host tier."),
    _tree("tree.load_back", "commit_load_back", ("self", "node_id", "device_indices"), "Counts host-to-device loads."),
    _override(
        "cache.loading_check",
        f"{_CACHE}.loading_check",
        ("self", "finish_count"),
        Feature.EVICTION,
        "Times finished loads.",
    ),
    _override(
        "cache.load_back",
        f"{_CACHE}.load_back",
        ("self", "node_id"),
        Feature.PREFETCH,
        "Queues a load that no request asked for.",
    ),
    _override(
        "cache.fetch",
        f"{_CACHE}.prefetch_from_storage",
        ("self", "request", "last_host_node_id", "new_input_tokens", "last_hash", "prefix_keys"),
        Feature.PREFETCH,
        "Fetches from storage what no request asked for.",
    ),
    _override(
        "cache.backup",
        f"{_CACHE}._execute_and_commit_kv_backup",
        ("self", "action"),
        Feature.PREFETCH,
        "Copies a context that faces a long wait to the host.",
    ),
    _override(
        "cache.evict_leaf",
        f"{_CACHE}._evict_device_leaf",
        ("self", "node_id", "tracker"),
        Feature.EVICTION,
        "Lets a context leave the device by command.",
    ),
    _override(
        "cache.start_loads",
        f"{_CACHE}.ready_to_load_host_cache",
        ("self",),
        Feature.PREFETCH,
        "Starts it.",
    ),
    _override(
        "decode.step",
        f"{_SIZES}.get_alloc_len_per_decode",
        (),
        Feature.PREFETCH,
        "Says what requests grow by in a decode step, which must not be locked meanwhile.",
    ),
    _override(
        "decode.reserve",
        f"{_SIZES}.get_alloc_reserve_per_decode",
        (),
        Feature.PREFETCH,
        "Says what they keep ahead of that with speculative decoding.",
    ),
)
