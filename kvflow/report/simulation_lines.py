"""Lines of several policies over the size of the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvflow.report.axis import Scale, scale
from kvflow.report.simulation_record import Interval, PolicyRecord, SetupRecord
from kvflow.report.svg import Element, chart, tag, tooltip

WIDTH, LEFT, RIGHT = 960.0, 60.0, 900.0
TOP, HEIGHT = 12.0, 220.0
BOTTOM = TOP + HEIGHT
LABEL_WIDTH = 60.0
APART = 5.0
"""Between marks of two policies at the same size, so that whiskers can be told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What to draw.

    Attributes:
        name: unique within the page.
        value: what is shown of a policy; None if it has none.
        text: writes a value.
        high: least end of the axis.
    """

    name: str
    title: str
    value: Callable[[PolicyRecord], Interval | None]
    text: Callable[[float], str]
    high: float = 0.0


def line_chart(plot: Plot, setups: Sequence[SetupRecord], styles: Mapping[str, str], dashed: str) -> Element:
    """Draw a line per policy, with whiskers where values have intervals.

    Args:
        plot: what to draw.
        setups: servers that differ by the size of their device, smallest first.
        styles: CSS class by policy.
        dashed: the policy whose line is dashed.
    """
    found = [value for setup in setups for policy in setup.policies if (value := plot.value(policy)) is not None]
    low = min([0.0, *(_low(value) for value in found)])
    high = max([plot.high, *(_high(value) for value in found)])
    x, y = scale(max(setup.device_tokens for setup in setups), LEFT, RIGHT), scale(high - low, BOTTOM, TOP)

    def at(tokens: float, value: float) -> tuple[float, float]:
        return x(tokens), y(value - low)

    lines = []
    for index, (policy, style) in enumerate(styles.items()):
        shift = APART * (index - (len(styles) - 1) / 2)
        line = _line(plot, policy, setups, lambda tokens, value, by=shift: (x(tokens) + by, at(tokens, value)[1]))
        if line:
            lines.append(tag("g", *line, class_=f"range{' branch' if policy == dashed else ''} {style}"))
    return chart(
        *(_level(plot.text(tick), at(0, tick)[1]) for tick in _ticks(low, high, y)),
        _device_axis(x, setups),
        *lines,
        name=plot.name,
        title=plot.title,
        description=f"{plot.title}: {len(lines)} policies at {len(setups)} sizes of the device.",
        width=WIDTH,
        height=BOTTOM + 38,
    )


def _low(value: Interval) -> float:
    return value.mean if value.low is None else value.low


def _high(value: Interval) -> float:
    return value.mean if value.high is None else value.high


def _ticks(low: float, high: float, y: Scale) -> list[float]:
    marks = y.ticks(4)
    step = marks[1] if len(marks) > 1 else y.high
    return [count * step for count in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _level(text: str, y: float) -> Element:
    line = tag("path", d=f"M{LEFT:.1f} {y:.1f}H{RIGHT:.1f}", class_="grid")
    return tag("g", line, tag("text", text, x=LEFT - 6, y=y + 4, class_="tick end"))


def _device_axis(x: Scale, setups: Sequence[SetupRecord]) -> Element:
    """Mark the sizes that were simulated, and leave out labels that would cover others."""
    marks: list[Element] = []
    free = LEFT + 1.5 * LABEL_WIDTH
    for setup in setups:
        at = x(setup.device_tokens)
        marks.append(tag("path", d=f"M{at:.1f} {TOP:.1f}V{BOTTOM:.1f}", class_="grid"))
        if at < free:
            continue
        free = at + LABEL_WIDTH
        marks.append(tag("text", short_tokens(setup.device_tokens), x=at, y=BOTTOM + 15, class_="tick mid"))
        if setup.device_size.endswith("%"):
            marks.append(tag("text", setup.device_size, x=at, y=BOTTOM + 30, class_="tick mid"))
    return tag("g", *marks, tag("text", "device tokens", x=LEFT, y=BOTTOM + 15, class_="tick"))


def short_tokens(tokens: int) -> str:
    """Write a token count with three digits: ``61.2k``, ``1.52M``."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if tokens >= size:
            return f"{tokens / size:.3g}{unit}"
    return str(tokens)


def _line(
    plot: Plot, policy: str, setups: Sequence[SetupRecord], at: Callable[[float, float], tuple[float, float]]
) -> list[Element]:
    points: list[str] = []
    marks: list[Element] = []
    for setup in setups:
        record = setup.policy(policy)
        value = None if record is None else plot.value(record)
        if value is None:
            continue
        px, py = at(setup.device_tokens, value.mean)
        points.append(f"{px:.1f} {py:.1f}")
        hint = f"{policy} at {setup.device} tokens: {plot.text(value.mean)}"
        if value.half:
            hint += f" ±{plot.text(value.half)}"
            top, bottom = at(0, _high(value))[1], at(0, _low(value))[1]
            whisker = f"M{px - 3:.1f} {top:.1f}h6M{px:.1f} {top:.1f}V{bottom:.1f}M{px - 3:.1f} {bottom:.1f}h6"
            marks.append(tag("path", d=whisker, class_="whisker"))
        marks.append(tag("circle", tooltip(hint), cx=px, cy=py, r=3.5))
    return [tag("path", d="M" + "L".join(points), class_="line"), *marks] if points else []
