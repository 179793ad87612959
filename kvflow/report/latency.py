"""How long steps took: the middle and the slow end of every agent's latencies, per arm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kvflow.report.amounts import seconds
from kvflow.report.axis import Scale, horizontal_axis, scale
from kvflow.report.result import Arm, Result
from kvflow.report.sections import Figure, Group, Key, Section, arm_style
from kvflow.report.svg import Element, chart, shortened, tag, tooltip

WIDTH, LEFT, RIGHT = 960.0, 150.0, 950.0
TOP, ARM_HEIGHT, PADDING = 8.0, 11.0, 6.0


def section(result: Result) -> Section:
    """Draw p50 and p95 of every agent and arm on one axis."""
    title = "How long steps took"
    latencies = [_latencies(arm) for arm in result.arms]
    agents = [agent for agent in result.agents() if any(agent in by_agent for by_agent in latencies)]
    if not agents:
        return Section(name="latency", title=title, note="no data: the run recorded no steps")
    return Section(
        name="latency",
        title=title,
        lead="Per agent and arm, the dot is the median latency of a step (p50) and the bar ends at p95, "
        "which of a few steps is little else than the slowest.",
        legend=tuple(Key(style=arm_style(i), label=arm.name, shape="dot") for i, arm in enumerate(result.arms)),
        groups=(Group(figures=(Figure(chart=_chart(agents, result.arms, latencies)),)),),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the sorted values do not exceed, interpolated linearly between neighbours."""
    position = share * (len(values) - 1)
    low = int(position)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (position - low)


def _latencies(arm: Arm) -> dict[str, list[float]]:
    by_agent: dict[str, list[float]] = defaultdict(list)
    for step in arm.steps:
        by_agent[step.agent].append(step.latency_s)
    return {agent: sorted(values) for agent, values in by_agent.items()}


def _chart(agents: Sequence[str], arms: Sequence[Arm], latencies: Sequence[Mapping[str, list[float]]]) -> Element:
    slowest = max(quantile(values, 0.95) for by_agent in latencies for values in by_agent.values())
    x = scale(slowest, LEFT, RIGHT - 8)
    row_height = len(arms) * ARM_HEIGHT + 2 * PADDING
    bottom = TOP + len(agents) * row_height
    body: list[Element] = [horizontal_axis(x, top=TOP, bottom=bottom, unit="s")]
    for i, agent in enumerate(agents):
        top = TOP + i * row_height
        body += [
            tag("path", d=f"M0 {top:.1f}H{RIGHT:.1f}", class_="grid"),
            tag(
                "text",
                tooltip(agent),
                shortened(agent, 12, LEFT - 14),
                x=LEFT - 8,
                y=top + row_height / 2 + 4,
                class_="row end",
            ),
        ]
        for j, (arm, by_agent) in enumerate(zip(arms, latencies, strict=True)):
            if agent in by_agent:
                y = top + PADDING + (j + 0.5) * ARM_HEIGHT
                body.append(_mark(f"{agent}, {arm.name}", by_agent[agent], x, y, arm_style(j)))
    return chart(
        *body,
        name="latency-chart",
        title="Step latency by agent and arm",
        description=f"Median and p95 of {len(agents)} agents in {len(arms)} arms, up to {seconds(slowest)}.",
        width=WIDTH,
        height=bottom + 22,
    )


def _mark(who: str, values: Sequence[float], x: Scale, y: float, style: str) -> Element:
    median, slow = quantile(values, 0.5), quantile(values, 0.95)
    text = f"{who}\np50 {seconds(median)}, p95 {seconds(slow)}, {len(values)} steps"
    line = f"M{x(median):.1f} {y:.1f}H{x(slow):.1f}M{x(slow):.1f} {y - 4:.1f}V{y + 4:.1f}"
    dot = tag("circle", cx=x(median), cy=y, r=4)
    return tag("g", tooltip(text), tag("path", d=line), dot, class_=f"range {style}")
