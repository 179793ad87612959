"""The lines of a layered drawing: curves from column to column, and arcs around the nodes for what leads back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvflow.report.layers import Layering, Link
from kvflow.report.placing import Box, Placing

ARROW = 7.0
LANE_GAP = 18.0
CORNER = 10.0
DETOUR = 1000
"""Lines an arc would rather cross than take the way around a node."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How one edge is drawn.

    Attributes:
        path: the line, as SVG path data with absolute coordinates in the commands M, H, V, C, L and Q.
        arrow: the outline of the head at its end, as path data.
        label: where a label stands best, preferred places first.
        loop: it leads back.
    """

    path: str
    arrow: str
    label: tuple[Point, ...]
    loop: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """A level stretch above (``side`` -1) or below (1) the nodes, taken by an arc."""

    side: int
    left: float
    right: float
    y: float


def routed(layering: Layering, placing: Placing) -> dict[Link, Route]:
    """Return the line of every edge. None runs through the box of a node."""
    routes = {link: _forward(chain, layering, placing) for link, chain in layering.chains.items()}
    arcs = _Arcs(layering, placing)
    reach = {link: abs(placing.boxes[link[0]].x - placing.boxes[link[1]].x) for link in layering.loops}
    for link in sorted(layering.loops, key=reach.__getitem__):
        routes[link] = arcs.route(*link)
    return routes


def _forward(chain: Sequence[int], layering: Layering, placing: Placing) -> Route:
    """Go level through columns and curve only between them, where no boxes are."""
    boxes, columns = placing.boxes, placing.columns
    column = next(i for i, members in enumerate(layering.columns) if chain[0] in members)
    start, end = boxes[chain[0]], boxes[chain[-1]]
    parts = [f"M{start.right:.1f} {start.y:.1f}"]
    labels: list[Point] = []
    for i, (u, v) in enumerate(pairwise(chain), start=column):
        here, there = columns[i][1], min(columns[i + 1][0], boxes[v].left - ARROW)
        middle = (here + there) / 2
        ya, yb = boxes[u].y, boxes[v].y
        parts.append(f"H{here:.1f}")
        parts.append(f"C{middle:.1f} {ya:.1f} {middle:.1f} {yb:.1f} {there:.1f} {yb:.1f}")
        if u == chain[0]:
            labels = [_on_curve(t, (here, ya), (there, yb)) for t in (0.5, 0.62, 0.38, 0.74, 0.26)]
    parts.append(f"H{end.left - ARROW:.1f}")
    return Route(path="".join(parts), arrow=_head((end.left, end.y), (1, 0)), label=tuple(labels), loop=False)


def _on_curve(t: float, start: Point, end: Point) -> Point:
    """Return the point of the curve at parameter t; both of its handles are halfway across."""
    eased = t * t * (3 - 2 * t)
    across = 1.5 * t * (1 - t) + t**3
    return start[0] + (end[0] - start[0]) * across, start[1] + (end[1] - start[1]) * eased


class _Arcs:
    """The arcs of one drawing. Later arcs keep clear of earlier ones, so draw short ones first."""

    def __init__(self, layering: Layering, placing: Placing) -> None:
        self._boxes = placing.boxes
        self._spans = placing.columns
        self._members = layering.columns
        self._column = {v: i for i, members in enumerate(layering.columns) for v in members}
        self._lanes: list[_Lane] = []

    def route(self, source: int, target: int) -> Route:
        """Leave the source upwards or downwards, run level past everything, and enter the target from there."""
        side = min((1, -1), key=lambda side: self._obstacles(source, side) + self._obstacles(target, side))
        out, into = self._exit(source, side), self._entry(target, side)
        passed = self._members[self._column[target] : self._column[source] + 1]
        lane = self._lane(side, sorted((out[-1][0], into[0][0])), [self._boxes[v] for column in passed for v in column])
        corners = [*out, (out[-1][0], lane.y), (into[0][0], lane.y), *into]
        tip = into[-1]
        direction = (1, 0) if tip[1] == corners[-2][1] else (0, -side)
        corners[-1] = (tip[0] - direction[0] * ARROW, tip[1] - direction[1] * ARROW)
        label = ((out[-1][0] + into[0][0]) / 2, lane.y)
        return Route(path=_rounded(corners), arrow=_head(tip, direction), label=(label,), loop=True)

    def _beyond(self, v: int, side: int) -> list[Box]:
        boxes = [self._boxes[other] for other in self._members[self._column[v]]]
        return [box for box in boxes if (box.y - self._boxes[v].y) * side > 0]

    def _obstacles(self, v: int, side: int) -> int:
        """Weigh what lies between a node and the lanes: lines can be crossed, for nodes there is a detour."""
        return sum(DETOUR if box.width else 1 for box in self._beyond(v, side))

    def _is_walled(self, v: int, side: int) -> bool:
        return any(box.width for box in self._beyond(v, side))

    def _exit(self, v: int, side: int) -> list[Point]:
        """Return the points from a source to where its arc turns to the lane: its edge, or the gap to its right."""
        box = self._boxes[v]
        if not self._is_walled(v, side):
            return [(box.x + box.width / 4, _edge(box, side))]
        gap = self._spans[self._column[v]][1] + 12 + 4 * (len(self._lanes) % 4)
        y = box.y + side * box.height / 4
        return [(box.right, y), (gap, y)]

    def _entry(self, v: int, side: int) -> list[Point]:
        """Return the points from where an arc leaves its lane to its target, as ``_exit``."""
        box = self._boxes[v]
        if not self._is_walled(v, side):
            return [(box.x - box.width / 4, _edge(box, side))]
        gap = self._spans[self._column[v]][0] - 16 - 4 * (len(self._lanes) % 4)
        y = box.y + side * box.height / 4
        return [(gap, y), (box.left, y)]

    def _lane(self, side: int, span: Sequence[float], passed: Sequence[Box]) -> _Lane:
        """Take the level closest to the boxes that are passed that no other arc needs."""
        y = max(side * _edge(box, side) for box in passed) + LANE_GAP
        for other in sorted((lane for lane in self._lanes if lane.side == side), key=lambda lane: side * lane.y):
            if other.left < span[1] + CORNER and span[0] < other.right + CORNER:
                y = max(y, side * other.y + LANE_GAP)
        lane = _Lane(side=side, left=span[0], right=span[1], y=side * y)
        self._lanes.append(lane)
        return lane


def _edge(box: Box, side: int) -> float:
    return box.bottom if side > 0 else box.top


def _rounded(corners: Sequence[Point]) -> str:
    """Return path data of a line along the axes, its corners rounded."""
    parts = [f"M{corners[0][0]:.1f} {corners[0][1]:.1f}"]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        start, end = _towards(corner, before), _towards(corner, after)
        parts.append(f"L{start[0]:.1f} {start[1]:.1f}Q{corner[0]:.1f} {corner[1]:.1f} {end[0]:.1f} {end[1]:.1f}")
    return "".join(parts) + f"L{corners[-1][0]:.1f} {corners[-1][1]:.1f}"


def _towards(start: Point, end: Point) -> Point:
    length = abs(end[0] - start[0]) + abs(end[1] - start[1])
    share = min(CORNER / length, 0.5) if length else 0.0
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _head(tip: Point, direction: tuple[int, int]) -> str:
    """Return the outline of an arrow head."""
    (x, y), (dx, dy) = tip, direction
    back = (x - dx * ARROW, y - dy * ARROW)
    wing = (-dy * ARROW / 2, dx * ARROW / 2)
    left, right = (back[0] + wing[0], back[1] + wing[1]), (back[0] - wing[0], back[1] - wing[1])
    return "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in (tip, left, right)) + "Z"
