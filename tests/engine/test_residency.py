"""How often the scheduler is kept from its work by a look at the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvflow.patches.residency import Residency

pytestmark = [pytest.mark.engine, pytest.mark.beside]


@pytest.fixture
def grown(make_tree: Callable[..., Any]) -> Callable[[int], Any]:
    """A tree of some nodes, to which more can be added."""

    def grow(nodes: int) -> Any:
        tree = make_tree("kvflow", capacity_tokens=4096)
        for number in range(nodes):
            tree.insert([number] * 4)
        return tree

    return grow


def test_of_many_nodes_a_look_is_kept_for_two_seconds_and_says_how_old_it_is(grown: Callable[[int], Any]) -> None:
    tree = grown(300)
    residency = Residency(tree.cache)
    first = residency.look(100.0)
    assert (first["nodes"], first["tokens"]["device/unclaimed"], first["age_s"]) == (300, 1200, 0.0)
    tree.insert([1000] * 4)
    assert residency.look(101.5) == first | {"age_s": 1.5}
    later = residency.look(102.0)
    assert (later["nodes"], later["age_s"]) == (301, 0.0)


def test_a_few_nodes_are_looked_at_each_time(grown: Callable[[int], Any]) -> None:
    tree = grown(20)
    residency = Residency(tree.cache)
    assert residency.look(100.0)["nodes"] == 20
    tree.insert([1000] * 4)
    assert residency.look(100.0)["nodes"] == 21


def test_a_look_at_what_has_been_flushed_is_not_kept(grown: Callable[[int], Any]) -> None:
    tree = grown(300)
    assert tree.cache.residency.look(100.0)["nodes"] == 300
    tree.cache.reset()
    assert tree.cache.residency.look(100.5)["nodes"] == 0
