"""Coordinates for a layered drawing: boxes that do not touch, edges as level as the order of the columns allows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvflow.report.layers import Layering, Link

COLUMN_GAP = 48.0
ROW_GAP = 22.0
LINE_GAP = 16.0
SWEEPS = 24
WAYPOINT_HEIGHT = 6.0
LEVEL = 3.0
"""How much stronger the inner stretches of a long edge pull than its ends, so that it runs level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle around a centre; the box of a waypoint has no width."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> float:
        """Its least x."""
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        """Its greatest x."""
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        """Its least y."""
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        """Its greatest y."""
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """The boxes of all vertices, and the left and right end of every column."""

    boxes: dict[int, Box]
    columns: tuple[tuple[float, float], ...]


def placed(layering: Layering, widths: Sequence[float], height: float, pulls: Mapping[Link, float]) -> Placing:
    """Place the vertices of a layering.

    Args:
        layering: what stands in which column.
        widths: the width of every node; columns are as wide as their widest node.
        height: of every node.
        pulls: how much an edge wants to be level, positive; 1 where nothing is said.
    """
    ys = _levels(layering, len(widths), height, pulls)
    boxes: dict[int, Box] = {}
    spans: list[tuple[float, float]] = []
    x = 0.0
    for column in layering.columns:
        width = max((widths[v] for v in column if v < len(widths)), default=0.0)
        spans.append((x, x + width))
        for v in column:
            node = v < len(widths)
            size = {"width": widths[v], "height": height} if node else {"width": 0.0, "height": WAYPOINT_HEIGHT}
            boxes[v] = Box(x=x + width / 2, y=ys[v], **size)
        x += width + COLUMN_GAP
    return Placing(boxes=boxes, columns=tuple(spans))


def _levels(layering: Layering, nodes: int, height: float, pulls: Mapping[Link, float]) -> dict[int, float]:
    """Return the y of every vertex: from centred columns, move each column to where its neighbours want it, to and fro.

    A vertex goes to the weighted median of its neighbours and not to their mean: chains stay straight that way, and
    an edge that cannot be level does not bend all others a little.
    """
    beside: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for link, chain in layering.chains.items():
        for u, v in pairwise(chain):
            pull = pulls.get(link, 1.0) * (LEVEL if u >= nodes and v >= nodes else 1.0)
            beside[u].append((v, pull))
            beside[v].append((u, pull))
    weights = {v: sum(pull for _, pull in beside[v]) or 1.0 for column in layering.columns for v in column}
    apart = {column: _distances(column, nodes, height) for column in layering.columns}
    ys: dict[int, float] = {}
    for column in layering.columns:
        ys.update(zip(column, spread([0.0] * len(column), apart[column], [1.0] * len(column)), strict=True))
    for sweep in range(SWEEPS):
        for column in layering.columns if sweep % 2 == 0 else reversed(layering.columns):
            wanted = [_wanted([(ys[u], pull) for u, pull in beside[v]], ys[v]) for v in column]
            ys.update(zip(column, spread(wanted, apart[column], [weights[v] for v in column]), strict=True))
    return ys


def _wanted(neighbours: Sequence[tuple[float, float]], now: float) -> float:
    if not neighbours:
        return now
    low, high = _medians(neighbours)
    return min(max(now, low), high)


def _distances(column: Sequence[int], nodes: int, height: float) -> list[float]:
    heights = [height if v < nodes else WAYPOINT_HEIGHT for v in column]
    gaps = [ROW_GAP if u < nodes and v < nodes else LINE_GAP for u, v in pairwise(column)]
    return [(a + b) / 2 + gap for (a, b), gap in zip(pairwise(heights), gaps, strict=True)]


def spread(wanted: Sequence[float], apart: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the positions closest to ``wanted`` that keep the order and the distances.

    Closest means the least weighted sum of differences, so that of items in each other's way the heaviest gets its
    wish. The distances taken off, this is isotonic regression.

    Args:
        wanted: where every item would like to be.
        apart: least distance of each item but the first from the one before it.
        weights: how much each item's wish counts.

    Source: pool adjacent violators, Barlow, Bartholomew, Bremner, Brunk (1972), with medians for means.
    """
    offsets = [0.0]
    for distance in apart:
        offsets.append(offsets[-1] + distance)
    pools: list[tuple[float, list[tuple[float, float]]]] = []
    for target, offset, weight in zip(wanted, offsets, weights, strict=True):
        members = [(target - offset, weight)]
        middle = target - offset
        while pools and pools[-1][0] > middle:
            members = pools.pop()[1] + members
            middle = sum(_medians(members)) / 2
        pools.append((middle, members))
    middles = [middle for middle, members in pools for _ in members]
    return [middle + offset for middle, offset in zip(middles, offsets, strict=True)]


def _medians(weighted: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the lower and the upper weighted median of pairs of value and weight; there is at least one pair."""
    half = sum(weight for _, weight in weighted) / 2
    values = sorted(weighted)
    below = 0.0
    for i, (value, weight) in enumerate(values):
        below += weight
        if below >= half:
            return value, values[i + 1][0] if below == half and i + 1 < len(values) else value
    return values[-1][0], values[-1][0]
