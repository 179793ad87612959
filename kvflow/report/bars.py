"""Horizontal bars, each of one or more parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvflow.report.axis import horizontal_axis, scale
from kvflow.report.svg import Element, chart, shortened, tag, tooltip

WIDTH, LEFT, RIGHT = 960.0, 150.0, 850.0
TOP, BAR_HEIGHT, BAR_GAP = 12.0, 18.0, 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What is drawn of one thing: CSS class and value of each part, from the left."""

    label: str
    parts: tuple[tuple[str, float], ...]

    @property
    def total(self) -> float:
        """Of all parts."""
        return sum(value for _, value in self.parts)


def bar_chart(name: str, title: str, bars: Sequence[Bar], text: Callable[[float], str], unit: str = "s") -> Element:
    """Draw bars beneath each other.

    Args:
        name: unique within the page.
        title: for screen readers.
        bars: from the top.
        text: writes a total.
        unit: of the axis.
    """
    x = scale(max((bar.total for bar in bars), default=0.0), LEFT, RIGHT)
    bottom = TOP + len(bars) * (BAR_HEIGHT + BAR_GAP)
    body: list[Element] = [horizontal_axis(x, top=TOP, bottom=bottom, unit=unit)]
    for index, bar in enumerate(bars):
        top, left = TOP + index * (BAR_HEIGHT + BAR_GAP) + BAR_GAP / 2, LEFT
        parts: list[Element] = [tooltip(f"{bar.label}: {text(bar.total)}")]
        for style, value in bar.parts:
            width = x(value) - LEFT
            parts.append(tag("rect", x=left, y=top, width=width, height=BAR_HEIGHT, class_=style))
            left += width
        label = shortened(bar.label, 12, LEFT - 14)
        body += [
            tag("text", label, x=LEFT - 8, y=top + BAR_HEIGHT - 4, class_="row end"),
            tag("g", *parts, class_="marks"),
            tag("text", text(bar.total), x=left + 6, y=top + BAR_HEIGHT - 4, class_="tick"),
        ]
    return chart(
        *body,
        name=name,
        title=title,
        description=f"{title}: {len(bars)} bars, in {unit}.",
        width=WIDTH,
        height=bottom + 22,
    )
