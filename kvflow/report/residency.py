"""What the cache held, by class and tier, over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvflow.report.axis import Scale, horizontal_axis, scale, vertical_axis
from kvflow.report.result import Arm, Result, Sample
from kvflow.report.sections import Figure, Group, Key, Section
from kvflow.report.svg import Element, chart, tag, tooltip

WIDTH, LEFT, RIGHT = 960.0, 60.0, 950.0
TOP, PANEL_HEIGHT, PANEL_GAP = 20.0, 110.0, 32.0
MAX_SAMPLES = 240
TIERS = ("device", "host", "storage")

CLASSES = (
    Key(style="pinned", label="pinned while a tool runs"),
    Key(style="fixed", label="fixed prompts of agents that will run"),
    Key(style="tail", label="contexts of running workflows"),
    Key(style="unclaimed", label="unclaimed"),
    Key(style="superseded", label="replaced by later prompts"),
    Key(style="retired", label="left by finished workflows"),
)
"""Stacked in this order, bottom first: what is kept longest lies lowest."""


def section(result: Result) -> Section:
    """Draw stacked areas for every arm that has samples; the others say that they have none."""
    title = "What the cache held"
    if not any(arm.residency for arm in result.arms):
        return Section(name="residency", title=title, note="no data: no arm could tell what its cache held")
    spans = [_span_s(arm) for arm in result.arms]
    tiers = [tier for tier in TIERS if any(_has(sample, tier) for arm in result.arms for sample in arm.residency)]
    highs = {tier: _high(tier, result) for tier in tiers}
    x = scale(max(spans), LEFT, RIGHT)
    figures = tuple(_figure(arm, f"residency-{i}", x, highs, result.settings) for i, arm in enumerate(result.arms))
    lead = "Cached tokens by tier and by what they are kept for, from each arm's first sample on."
    return Section(name="residency", title=title, lead=lead, legend=CLASSES, groups=(Group(figures=figures),))


def _span_s(arm: Arm) -> float:
    times = [sample.at_s for sample in arm.residency]
    return max(times) - min(times) if times else 0.0


def _has(sample: Sample, tier: str) -> bool:
    return any(key.startswith(f"{tier}/") for key in sample.tokens)


def _high(tier: str, result: Result) -> float:
    """Return the top of a tier's axis: its capacity, or more should more have been counted."""
    totals = (sum(_stack(sample, tier)) for arm in result.arms for sample in arm.residency)
    return max([*totals, _capacity_tokens(result.settings, tier) or 0.0])


def _capacity_tokens(settings: Mapping[str, Any], tier: str) -> float | None:
    value = settings.get(f"{tier}_tokens")
    return float(value) if isinstance(value, int | float) and 0 < value < math.inf else None


def _stack(sample: Sample, tier: str) -> list[float]:
    return [max(sample.tokens.get(f"{tier}/{key.style}", 0.0), 0.0) for key in CLASSES]


def _figure(arm: Arm, name: str, x: Scale, highs: Mapping[str, float], settings: Mapping[str, Any]) -> Figure:
    if len(arm.residency) < 2:
        return Figure(heading=arm.name, detail="no data: this arm could not tell what its cache held")
    samples = thinned(sorted(arm.residency, key=lambda sample: sample.at_s))
    panels: list[Element] = []
    top = TOP
    last = [*highs][-1]
    for tier, high in highs.items():
        y = scale(high, top + PANEL_HEIGHT, top)
        panels.append(horizontal_axis(x, top=top, bottom=top + PANEL_HEIGHT, unit="s", numbered=tier == last))
        panels.append(_panel(tier, samples, x, y, _capacity_tokens(settings, tier)))
        top += PANEL_HEIGHT + PANEL_GAP
    drawing = chart(
        *panels,
        name=name,
        title=f"Cached tokens of {arm.name}",
        description=f"{len(arm.residency)} samples on {len(highs)} tiers: {', '.join(highs)}.",
        width=WIDTH,
        height=top - PANEL_GAP + 22,
    )
    return Figure(heading=arm.name, chart=drawing)


def thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return at most ``MAX_SAMPLES`` of the samples, evenly chosen, first and last among them."""
    if len(samples) <= MAX_SAMPLES:
        return samples
    last = len(samples) - 1
    return [samples[round(i * last / (MAX_SAMPLES - 1))] for i in range(MAX_SAMPLES)]


def _panel(tier: str, samples: Sequence[Sample], x: Scale, y: Scale, capacity_tokens: float | None) -> Element:
    origin = samples[0].at_s
    xs = [x(sample.at_s - origin) for sample in samples]
    stacks = [_stack(sample, tier) for sample in samples]
    below = [0.0] * len(samples)
    areas: list[Element] = []
    for i, key in enumerate(CLASSES):
        above = [base + stack[i] for base, stack in zip(below, stacks, strict=True)]
        if above != below:
            most = max(stack[i] for stack in stacks)
            outline = [*zip(xs, map(y, above), strict=True), *reversed([*zip(xs, map(y, below), strict=True)])]
            label = f"{tier}: {key.label}; at most {most:,.0f} tokens"
            areas.append(tag("path", tooltip(label), d=_polygon(outline), class_=f"area {key.style}"))
        below = above
    full = _capacity(y, capacity_tokens) if capacity_tokens else []
    return tag(
        "g",
        tag("text", tier, x=LEFT, y=y.end - 7, class_="name"),
        vertical_axis(y, left=LEFT, right=RIGHT),
        *areas,
        *full,
    )


def _capacity(y: Scale, tokens: float) -> list[Element]:
    level = y(tokens)
    return [
        tag("path", d=f"M{LEFT:.1f} {level:.1f}H{RIGHT:.1f}", class_="capacity"),
        tag("text", f"capacity {tokens:,.0f} tokens", x=RIGHT, y=level - 6, class_="tick end"),
    ]


def _polygon(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in points) + "Z"
