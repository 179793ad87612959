"""Lines of several things compared, over a quantity that was varied."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kvflow.report.axis import Scale, scale
from kvflow.report.svg import Element, chart, tag, tooltip

WIDTH, LEFT, RIGHT = 960.0, 60.0, 900.0
TOP, HEIGHT = 12.0, 220.0
BOTTOM = TOP + HEIGHT
LABEL_WIDTH = 60.0
APART = 5.0
"""Between marks of two lines at the same place, so that whiskers can be told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value at a place, with the words for that; its interval, if it has one, lies between low and high."""

    x: float
    place: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What joins the values of one thing."""

    name: str
    style: str
    points: tuple[Point, ...]
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A place that was measured, with what is written beneath it."""

    x: float
    label: str
    below: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What to draw.

    Attributes:
        name: unique within the page.
        text: writes a value.
        axis: what varies from left to right.
        high: least end of the vertical axis.
    """

    name: str
    title: str
    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    text: Callable[[float], str]
    axis: str
    high: float = 0.0


def line_chart(plot: Plot) -> Element:
    """Draw lines, with whiskers where values have intervals."""
    points = [point for line in plot.lines for point in line.points]
    low = min([0.0, *(_low(point) for point in points)])
    high = max([plot.high, *(_high(point) for point in points)])
    x, y = scale(max(tick.x for tick in plot.ticks), LEFT, RIGHT), scale(high - low, BOTTOM, TOP)
    drawn: list[Element] = []
    for index, line in enumerate(plot.lines):
        shift = APART * (index - (len(plot.lines) - 1) / 2)
        if line.points:
            marks = _line(plot, line, lambda at, by=shift: x(at) + by, lambda value: y(value - low))
            drawn.append(tag("g", *marks, class_=f"range{' branch' if line.dashed else ''} {line.style}"))
    return chart(
        *(_level(plot.text(level), y(level - low)) for level in _levels(low, high, y)),
        _axis(x, plot),
        *drawn,
        name=plot.name,
        title=plot.title,
        description=f"{plot.title}: {len(drawn)} lines over {len(plot.ticks)} values of {plot.axis}.",
        width=WIDTH,
        height=BOTTOM + 38,
    )


def short_number(number: float) -> str:
    """Write a number with three digits: ``61.2k``, ``1.52M``."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"


def _low(point: Point) -> float:
    return point.value if point.low is None else point.low


def _high(point: Point) -> float:
    return point.value if point.high is None else point.high


def _levels(low: float, high: float, y: Scale) -> list[float]:
    marks = y.ticks(4)
    step = marks[1] if len(marks) > 1 else y.high
    return [count * step for count in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _level(text: str, y: float) -> Element:
    line = tag("path", d=f"M{LEFT:.1f} {y:.1f}H{RIGHT:.1f}", class_="grid")
    return tag("g", line, tag("text", text, x=LEFT - 6, y=y + 4, class_="tick end"))


def _axis(x: Scale, plot: Plot) -> Element:
    """Mark what was measured, and leave out labels that would cover others."""
    marks: list[Element] = []
    free = LEFT + 1.5 * LABEL_WIDTH
    for tick in plot.ticks:
        at = x(tick.x)
        marks.append(tag("path", d=f"M{at:.1f} {TOP:.1f}V{BOTTOM:.1f}", class_="grid"))
        if at < free:
            continue
        free = at + LABEL_WIDTH
        marks.append(tag("text", tick.label, x=at, y=BOTTOM + 15, class_="tick mid"))
        if tick.below:
            marks.append(tag("text", tick.below, x=at, y=BOTTOM + 30, class_="tick mid"))
    return tag("g", *marks, tag("text", plot.axis, x=LEFT, y=BOTTOM + 15, class_="tick"))


def _line(plot: Plot, line: Line, x: Callable[[float], float], y: Callable[[float], float]) -> list[Element]:
    joined: list[str] = []
    marks: list[Element] = []
    for point in line.points:
        px, py = x(point.x), y(point.value)
        joined.append(f"{px:.1f} {py:.1f}")
        hint = f"{line.name} at {point.place}: {plot.text(point.value)}"
        if point.low is not None and point.high is not None:
            hint += f" [{plot.text(point.low)}, {plot.text(point.high)}]"
            top, bottom = y(point.high), y(point.low)
            whisker = f"M{px - 3:.1f} {top:.1f}h6M{px:.1f} {top:.1f}V{bottom:.1f}M{px - 3:.1f} {bottom:.1f}h6"
            marks.append(tag("path", d=whisker, class_="whisker"))
        marks.append(tag("circle", tooltip(hint), cx=px, cy=py, r=3.5))
    return [tag("path", d="M" + "L".join(joined), class_="line"), *marks]
