"""An insertion that begins where a request's path ends leaves the tree as one that begins at the root."""

from __future__ import annotations

from typing import Any

import pytest

from kvflow.patches import core as tree_core
from kvflow.patches import known
from tests.engine.contract_real import Real
from tests.engine.contract_scenario import PAGE, Scenario, Spelling

pytestmark = [pytest.mark.engine, pytest.mark.beside]


def nodes(real: Real) -> list[Any]:
    todo, found = [real.cache.tree_core.root_node], []
    while todo:
        node = todo.pop()
        todo += node.children.values()
        found.append(node)
    return found


def dumped(real: Real) -> list[tuple[Any, ...]]:
    """All nodes, in the order of their last use."""
    return [
        (list(node.key) if node.key else [], node.hit_count, node.priority, node.evicted, node.backuped)
        for node in sorted(nodes(real), key=lambda node: node.last_access_time)
    ]


@pytest.mark.parametrize("chunk_pages", [4, 1 << 12])
@pytest.mark.parametrize("host", [0, 1.5])
@pytest.mark.parametrize("seed", range(2))
def test_the_tree_is_the_same(
    publish: Any, monkeypatch: pytest.MonkeyPatch, seed: int, host: float, chunk_pages: int
) -> None:
    skipped = 0

    def counted(core: Any, walk: Any, node: Any, end: int) -> None:
        nonlocal skipped
        known.go_ahead(core, walk, node, end)
        skipped += walk.total_prefix_length > 0

    args = publish(host)
    ahead, from_root = (
        Real("cost", Spelling(), host_ratio=host, args=args, chunk_tokens=chunk_pages * PAGE) for _ in range(2)
    )
    for operation in Scenario(seed, at_once=2).play(200):
        monkeypatch.setattr(tree_core, "go_ahead", counted)
        ahead.do(operation)
        monkeypatch.setattr(tree_core, "go_ahead", lambda *_: None)
        from_root.do(operation)
        assert dumped(ahead) == dumped(from_root), operation
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
