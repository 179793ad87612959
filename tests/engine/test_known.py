"""Shorter walks leave the tree as SGLang's do: all of them, and insertions that begin where a request's path ends."""

from __future__ import annotations

from typing import Any

import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore

from kvflow.patches import core as tree_core
from kvflow.patches import known
from tests.engine.contract_real import Real
from tests.engine.contract_scenario import PAGE, Scenario, Spelling
from tests.engine.model_free import Requests

pytestmark = [pytest.mark.engine, pytest.mark.beside]


def nodes(real: Real) -> list[Any]:
    todo, found = [real.cache.tree_core.root_node], []
    while todo:
        node = todo.pop()
        todo += node.children.values()
        found.append(node)
    return found


def dumped(real: Real) -> list[Any]:
    """All nodes, in the order of their last use, and what there is room for."""
    core = real.cache.tree_core
    sizes = [real.cache.full_evictable_size(), real.cache.full_protected_size()]
    return sizes + [
        (
            list(node.key) if node.key else [],
            node.hit_count,
            node.priority,
            node.evicted,
            node.backuped,
            [data.lock_ref for data in node.component_data],
            node in core.evictable_device_leaves,
            node in core.evictable_host_leaves,
        )
        for node in sorted(nodes(real), key=lambda node: node.last_access_time)
    ]


def plain(real: Real) -> Real:
    """Have SGLang's own walks in one of two bodies."""
    core = real.cache.tree_core
    for name in ("match_prefix", "inc_lock_ref", "dec_lock_ref", "_update_evictable_leaf_sets", "_advance_insert"):
        setattr(core, name, getattr(UnifiedTreeCore, name).__get__(core))
    for component in core.components:
        for name in ("acquire_component_lock", "release_component_lock", "value_len"):
            delattr(component, name)
    return real


@pytest.mark.parametrize("chunk_pages", [4, 1 << 12])
@pytest.mark.parametrize("host", [0, 1.5])
@pytest.mark.parametrize("seed", range(4))
def test_the_tree_is_the_same(
    publish: Any, monkeypatch: pytest.MonkeyPatch, seed: int, host: float, chunk_pages: int
) -> None:
    skipped = 0

    def counted(core: Any, walk: Any, node: Any, end: int) -> None:
        nonlocal skipped
        known.go_ahead(core, walk, node, end)
        skipped += walk.total_prefix_length > 0

    monkeypatch.setattr(tree_core, "go_ahead", counted)
    args = publish(host)
    short, whole = (
        Real("cost", Spelling(), host_ratio=host, args=args, chunk_tokens=chunk_pages * PAGE) for _ in range(2)
    )
    plain(whole)
    for operation in Scenario(seed, at_once=3).play(200):
        short.do(operation)
        whole.do(operation)
        assert dumped(short) == dumped(whole), operation
        assert short.log == whole.log
        short.cache.sanity_check()
    assert skipped > 50


def test_what_nodes_hold_is_counted_as_sglang_counts_it(publish: Any) -> None:
    real = Real("cost", Spelling(), host_ratio=1.5, args=publish(1.5), chunk_tokens=4 * PAGE)
    seen = set()
    for operation in Scenario(0, at_once=2).play(60):
        real.do(operation)
        [component] = real.cache.tree_core.components
        for node in nodes(real):
            tokens = component.value_len(node)
            assert tokens == type(component).value_len(component, node)
            seen.add(tokens)
    assert {0, PAGE} < seen


def test_children_of_the_root_are_not_gone_through(make_tree: Any) -> None:
    class Unread(dict[Any, Any]):
        def values(self) -> Any:
            raise AssertionError("there may be thousands, most of them no longer on the device")

    core = make_tree("kvflow").cache.tree_core
    core.root_node.children = Unread(core.root_node.children)
    core._update_evictable_leaf_sets(core.root_node)
    assert core.root_node not in core.evictable_device_leaves
    assert core.root_node not in core.evictable_host_leaves


def test_a_load_that_nobody_holds_leaves_only_its_end_to_evict(publish: Any) -> None:
    real = Real("lru", Spelling(), host_ratio=1.5, args=publish(1.5), chunk_tokens=4 * PAGE)
    for operation in Scenario(0, at_once=1).play(120):
        real.do(operation)
    cache = real.cache
    on_host = [node for node in nodes(real) if node.evicted and node.backuped and node.parent.parent is not None]
    below_a_leaf = [node for node in on_host if node.parent in cache.tree_core.evictable_device_leaves]
    below_another = [node for node in on_host if node.parent in on_host]
    assert below_a_leaf
    assert below_another
    for node in (below_a_leaf[0], below_another[0]):
        cache.evict(EvictParams(num_tokens=4 * PAGE))  # room
        if node.evicted:
            assert cache.load_back(node.id)
            cache.ready_to_load_host_cache()
        assert not any(
            data.lock_ref for leaf in cache.tree_core.evictable_device_leaves for data in leaf.component_data
        )
        real.settle()
        cache.sanity_check()
    cache.evict(EvictParams(num_tokens=1 << 16))
    assert cache.full_evictable_size() == 0


def test_namespaces_do_not_see_each_other(publish: Any) -> None:
    publish(0)
    requests = Requests("kvflow", device_tokens=64 * PAGE, page_tokens=PAGE)
    found = []
    for name in ("a", "b", None, "a", "b", None):
        req = requests.ask("r", range(5 * PAGE), 2, extra_key=name)
        found.append(req.prefix_len)
        requests.admit(req)
        requests.compute(req, 7)
        requests.decode(req, 8)
        requests.finish(req)
        requests.cache.sanity_check()
    assert found[:3] == [0, 0, 0]
    assert min(found[3:]) >= 4 * PAGE
