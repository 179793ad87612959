"""Charts of a simulated comparison: a section per load, lines over the size of the device, or bars for a single one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvflow.report.amounts import factor, seconds
from kvflow.report.axis import horizontal_axis, scale
from kvflow.report.sections import Figure, Group, Key, Section, arm_style
from kvflow.report.simulation_lines import Plot, line_chart
from kvflow.report.simulation_record import Interval, PolicyRecord, SetupRecord, Simulation
from kvflow.report.simulation_rows import share
from kvflow.report.svg import Element, chart, tag, tooltip

WIDTH, LEFT, RIGHT = 960.0, 110.0, 850.0
TOP, BAR_HEIGHT, BAR_GAP = 12.0, 18.0, 8.0
LOWEST_SHARE, HIGHEST_SHARE = -1.0, 1.5
"""Shares of the gap beyond these are drawn at the border; the table has their values."""

PARTS = (Key(style="recomputed", label="computed again"), Key(style="host", label="loaded back from the host"))


def sections(result: Simulation) -> list[Section]:
    """Draw a section for every load that was simulated."""
    styles = {policy: arm_style(index) for index, policy in enumerate(result.policies)}
    legend = tuple(
        Key(style=style, label=policy, shape="dashes" if policy == result.ideal else "line")
        for policy, style in styles.items()
    )
    made = []
    for number, (load, setups) in enumerate(result.by_load().items()):
        name = f"load-{number}"
        several = len(setups) > 1
        figures = _line_figures(name, setups, result, styles) if several else _bar_figures(name, setups[0])
        made.append(
            Section(
                name=name,
                title=load,
                lead="Lines join the sizes of the device that were simulated." if several else "Means over seeds.",
                legend=legend if several else PARTS,
                groups=(Group(figures=figures),),
            )
        )
    return made


def _line_figures(
    name: str, setups: Sequence[SetupRecord], result: Simulation, styles: Mapping[str, str]
) -> tuple[Figure, ...]:
    def drawn(plot: Plot) -> Element:
        return line_chart(plot, setups, styles, result.ideal)

    lost = Plot(name=f"{name}-lost", title="Time lost", value=lambda policy: _mean(policy, "lost_s"), text=_seconds)
    ratio = Plot(
        name=f"{name}-ratio",
        title="Time lost relative to LRU",
        value=lambda policy: policy.relative.get("lost_s"),
        text=factor,
        high=1.0,
    )
    done = Plot(
        name=f"{name}-done",
        title="Completion of a program",
        value=lambda policy: _mean(policy, "completion_mean_s"),
        text=_seconds,
    )
    whiskers = "with the 95 % interval of the paired differences over seeds" if result.seeds > 1 else "one seed"
    return (
        Figure(heading=lost.title, detail="seconds spent on what had been cached before, mean", chart=drawn(lost)),
        Figure(heading=ratio.title, detail=whiskers, chart=drawn(ratio)),
        _gap_figure(f"{name}-gap", setups, result, styles),
        Figure(heading=done.title, detail="seconds from its start to its end, mean", chart=drawn(done)),
    )


def _mean(policy: PolicyRecord, measure: str) -> Interval | None:
    """A value without its interval: seeds draw other programs, which says nothing of the policies."""
    mean = policy.mean(measure)
    return None if mean is None else Interval(mean=mean)


def _seconds(value: float) -> str:
    return seconds(value) if value else "0"


def _gap_figure(name: str, setups: Sequence[SetupRecord], result: Simulation, styles: Mapping[str, str]) -> Figure:
    heading = "Gap between LRU and Belady closed"
    notes = " ".join(f"Device {setup.device}: {setup.gap_note}." for setup in setups if setup.gap_note)
    if all(setup.gap_note for setup in setups):
        return Figure(heading=heading, detail=f"no gap to close. {notes}")

    def value(policy: PolicyRecord) -> Interval | None:
        closed = policy.gap_closed
        return None if closed is None else Interval(mean=min(max(closed, LOWEST_SHARE), HIGHEST_SHARE))

    plot = Plot(name=name, title=heading, value=value, text=share, high=1.0)
    detail = f"0 % is LRU, 100 % Belady. {notes}".strip()
    return Figure(heading=heading, detail=detail, chart=line_chart(plot, setups, styles, result.ideal))


def _bar_figures(name: str, setup: SetupRecord) -> tuple[Figure, ...]:
    detail = f"device {setup.device} tokens" + (f"; no gap to close: {setup.gap_note}" if setup.gap_note else "")
    lost = _bar_chart(f"{name}-lost", "Time lost", setup, {"recomputed_s": "recomputed", "reloaded_s": "host"})
    done = _bar_chart(f"{name}-done", "Completion of a program", setup, {"completion_mean_s": "new"})
    return (
        Figure(heading="Time lost", detail=detail, chart=lost),
        Figure(heading="Completion of a program", detail="seconds from its start to its end, mean", chart=done),
    )


def _bar_chart(name: str, title: str, setup: SetupRecord, parts: Mapping[str, str]) -> Element:
    rows = {record.policy: [record.mean(measure) or 0.0 for measure in parts] for record in setup.policies}
    x = scale(max(map(sum, rows.values()), default=0.0), LEFT, RIGHT)
    bottom = TOP + len(rows) * (BAR_HEIGHT + BAR_GAP)
    body: list[Element] = [horizontal_axis(x, top=TOP, bottom=bottom, unit="s")]
    for index, (policy, values) in enumerate(rows.items()):
        top, left = TOP + index * (BAR_HEIGHT + BAR_GAP) + BAR_GAP / 2, LEFT
        bars: list[Element] = [tooltip(f"{policy}: {_seconds(sum(values))}")]
        for value, style in zip(values, parts.values(), strict=True):
            width = x(value) - LEFT
            bars.append(tag("rect", x=left, y=top, width=width, height=BAR_HEIGHT, class_=style))
            left += width
        body += [
            tag("text", policy, x=LEFT - 8, y=top + BAR_HEIGHT - 4, class_="row end"),
            tag("g", *bars, class_="marks"),
            tag("text", _seconds(sum(values)), x=left + 6, y=top + BAR_HEIGHT - 4, class_="tick"),
        ]
    return chart(
        *body,
        name=name,
        title=title,
        description=f"{title} of {len(rows)} policies, in seconds.",
        width=WIDTH,
        height=bottom + 22,
    )
