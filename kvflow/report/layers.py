"""Columns of a layered drawing: what stands in which, in what order, so that edges point right and cross little.

Source: Sugiyama, Tagawa, Toda, "Methods for visual understanding of hierarchical system structures" (1981): break
cycles, layer by longest path, split long edges, order by barycentres. Crossings are counted as inversions.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 8

Link = tuple[int, int]
Columns = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layering:
    """A drawing before it has coordinates.

    A vertex is a node, by its index, or a waypoint, numbered after the nodes: where a long edge passes a column.

    Attributes:
        columns: vertices by column, left to right and top to bottom.
        chains: for every edge that points right, the vertices it visits from source to target, one per column.
        loops: the edges that lead back, or from a node to itself.
    """

    columns: tuple[tuple[int, ...], ...]
    chains: dict[Link, tuple[int, ...]]
    loops: tuple[Link, ...]


def layered(successors: Sequence[Sequence[int]]) -> Layering:
    """Arrange a graph whose first node leads to all others; its last node gets the last column to itself.

    Which edges lead back is unambiguous as long as every loop has one entry.
    """
    order = ordered(successors)
    place = {node: i for i, node in enumerate(order)}
    edges = [(u, v) for u in order for v in successors[u]]
    column = _longest_paths(order, [(u, v) for u, v in edges if place[u] < place[v]])
    columns, chains = _with_waypoints(column, [(u, v) for u, v in edges if column[u] < column[v]])
    loops = tuple((u, v) for u, v in edges if column[u] >= column[v])
    return Layering(columns=_least_crossings(columns, chains), chains=chains, loops=loops)


def ordered(successors: Sequence[Sequence[int]]) -> list[int]:
    """Return the nodes so that each comes after all that lead to it; loops are entered where the start is closest.

    Source: Kahn, "Topological sorting of large networks" (1962). Where only loops are left, one that no other leads
    to is opened at its entry: whatever leads there from within the loop leads back.
    """
    predecessors: list[set[int]] = [set() for _ in successors]
    for u, targets in enumerate(successors):
        for v in targets:
            predecessors[v].add(u)
    distance = _reached(0, successors)
    order = [0]
    left = set(range(1, len(successors)))
    while left:
        free = sorted(v for v in left if not predecessors[v] & left - {v})
        if not free:
            entries = [v for v in _foremost(left, successors, predecessors) if predecessors[v] - left]
            free = [min(entries, key=lambda v: (distance[v], v))]
        order += free
        left -= set(free)
    return order


def _foremost(left: set[int], successors: Sequence[Sequence[int]], predecessors: Sequence[set[int]]) -> set[int]:
    """Return nodes of ``left`` that lead to each other, and that no other node of ``left`` leads to."""
    v = min(left)
    while True:
        above = _reached(v, predecessors, left).keys()
        outside = above - _reached(v, successors, left).keys()
        if not outside:
            return set(above)
        v = min(outside)


def _reached(start: int, beside: Sequence[Iterable[int]], within: set[int] | None = None) -> dict[int, int]:
    """Return how far each node is that can be reached, in edges."""
    distance = {start: 0}
    layer = [start]
    while layer:
        following: list[int] = []
        for u in layer:
            for v in beside[u]:
                if v not in distance and (within is None or v in within):
                    distance[v] = distance[u] + 1
                    following.append(v)
        layer = following
    return distance


def _longest_paths(order: Sequence[int], forward: Sequence[Link]) -> dict[int, int]:
    """Return the column of every node; edges are grouped by source, sources in order."""
    column = dict.fromkeys(order, 0)
    for u, v in forward:
        column[v] = max(column[v], column[u] + 1)
    last = len(column) - 1
    column[last] = max((c for node, c in column.items() if node != last), default=0) + 1
    return column


def _with_waypoints(column: dict[int, int], forward: Sequence[Link]) -> tuple[Columns, dict[Link, tuple[int, ...]]]:
    columns: Columns = [[] for _ in range(max(column.values()) + 1)]
    for node in sorted(column):
        columns[column[node]].append(node)
    chains: dict[Link, tuple[int, ...]] = {}
    vertex = len(column)
    for u, v in forward:
        passed = range(column[u] + 1, column[v])
        waypoints = range(vertex, vertex + len(passed))
        vertex += len(passed)
        for waypoint, c in zip(waypoints, passed, strict=True):
            columns[c].append(waypoint)
        chains[u, v] = (u, *waypoints, v)
    return columns, chains


def _least_crossings(columns: Columns, chains: dict[Link, tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    right, left = defaultdict(list), defaultdict(list)
    for chain in chains.values():
        for u, v in pairwise(chain):
            right[u].append(v)
            left[v].append(u)
    best, fewest = columns, _crossings(columns, right)
    for sweep in range(SWEEPS):
        forth = sweep % 2 == 0
        columns = _swept(columns if forth else columns[::-1], left if forth else right)
        columns = columns if forth else columns[::-1]
        crossings = _crossings(columns, right)
        if crossings < fewest:
            best, fewest = columns, crossings
    return tuple(map(tuple, best))


def _swept(columns: Columns, before: dict[int, list[int]]) -> Columns:
    """Order every column but the first by the mean place of what its vertices are linked to in the one before."""
    place = {vertex: float(i) for column in columns for i, vertex in enumerate(column)}
    swept = [columns[0]]
    for column in columns[1:]:
        mean = {v: sum(place[u] for u in before[v]) / len(before[v]) if before[v] else place[v] for v in column}
        swept.append(sorted(column, key=mean.__getitem__))
        place.update((vertex, float(i)) for i, vertex in enumerate(swept[-1]))
    return swept


def _crossings(columns: Columns, right: dict[int, list[int]]) -> int:
    crossings = 0
    for column, following in pairwise(columns):
        place = {vertex: i for i, vertex in enumerate(following)}
        seen: list[int] = []
        for u in column:
            ends = [place[v] for v in right[u]]
            crossings += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return crossings
