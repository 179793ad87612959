"""The parts a report is made of: sections of figures, with legends, all optional but the title."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvflow.report.svg import Element


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An entry of a legend: the CSS class that gives the colour, what it stands for, and how it looks in the chart."""

    style: str
    label: str
    shape: Literal["area", "line", "dashes", "bar", "dot"] = "area"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart with a heading and a line of numbers; without a chart, that line says why there is none."""

    heading: str = ""
    detail: str = ""
    chart: Element | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Figures that belong together. With a title they can be folded away; ``unfolded`` says how they start."""

    figures: tuple[Figure, ...]
    title: str = ""
    unfolded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, a sentence on how to read what follows, a legend, and groups of figures, or a note in their place."""

    name: str
    title: str
    lead: str = ""
    legend: tuple[Key, ...] = ()
    groups: tuple[Group, ...] = ()
    note: str = ""


_COLOURS = 6


def arm_style(position: int) -> str:
    """Return the CSS class of an arm's colour by its position in the result."""
    return f"arm-{position % _COLOURS}"


def arm_dashed(position: int) -> bool:
    """Return whether an arm's line is dashed: there are more arms than colours."""
    return position >= _COLOURS
