"""From quantities to pixels, and the axis that shows it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvflow.report.svg import Element, tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A linear map of 0 to ``high`` onto ``start`` to ``end``; ``high`` is positive, ``start`` may be above ``end``."""

    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        return self.start + (self.end - self.start) * value / self.high

    def ticks(self, about: int = 8) -> tuple[float, ...]:
        """Return round values (1, 2 or 5 times a power of ten apart) within the scale, ``about`` so many of them."""
        rough = self.high / about
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
        return tuple(i * step for i in range(int(self.high / step * (1 + 1e-9)) + 1))


def scale(high: float, start: float, end: float) -> Scale:
    """Make a scale from zero; a high that is not positive becomes 1, so that there is always something to draw on."""
    return Scale(high=high if high > 0 else 1.0, start=start, end=end)


def horizontal_axis(x: Scale, *, top: float, bottom: float, unit: str, numbered: bool = True) -> Element:
    """Draw vertical grid lines and, if they are to be numbered, their values in the 20 units beneath ``bottom``."""
    ticks = x.ticks()
    lines = [tag("path", d=f"M{x(tick):.1f} {top:.1f}V{bottom:.1f}", class_="grid") for tick in ticks]
    values = [f"{tick:g}" for tick in ticks[:-1]] + [f"{ticks[-1]:g} {unit}"]
    labels = [
        tag("text", value, x=x(tick), y=bottom + 15, class_="tick mid")
        for tick, value in zip(ticks, values, strict=True)
        if numbered
    ]
    return tag("g", *lines, *labels)


def vertical_axis(y: Scale, *, left: float, right: float) -> Element:
    """Draw horizontal grid lines from ``left`` to ``right`` with their values, tokens in thousands, before them."""
    ticks = y.ticks(4)
    lines = [tag("path", d=f"M{left:.1f} {y(tick):.1f}H{right:.1f}", class_="grid") for tick in ticks]
    labels = [tag("text", thousands(tick), x=left - 6, y=y(tick) + 4, class_="tick end") for tick in ticks]
    return tag("g", *lines, *labels)


def thousands(tokens: float) -> str:
    """Format a token count for an axis: ``500``, ``12k``."""
    return f"{tokens / 1000:g}k" if tokens >= 1000 else f"{tokens:g}"
