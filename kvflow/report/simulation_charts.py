"""Charts of a simulated comparison: a section per load, lines over the size of the device, or bars for a single one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kvflow.report.amounts import factor, seconds
from kvflow.report.bars import Bar, bar_chart
from kvflow.report.lines import Line, Plot, Point, Tick, line_chart, short_number
from kvflow.report.sections import Figure, Group, Key, Section, arm_style
from kvflow.report.simulation_record import Interval, PolicyRecord, SetupRecord, Simulation
from kvflow.report.simulation_rows import share
from kvflow.report.svg import Element

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
    drawn = partial(_lines, setups=setups, styles=styles, dashed=result.ideal)
    lost = drawn(f"{name}-lost", "Time lost", lambda policy: _mean(policy, "lost_s"), _seconds)
    ratio = drawn(
        f"{name}-ratio", "Time lost relative to LRU", lambda policy: policy.relative.get("lost_s"), factor, high=1.0
    )
    done = drawn(f"{name}-done", "Completion of a program", lambda policy: _mean(policy, "completion_mean_s"), _seconds)
    whiskers = "with the 95 % interval of the paired differences over seeds" if result.seeds > 1 else "one seed"
    return (
        Figure(heading="Time lost", detail="seconds spent on what had been cached before, mean", chart=lost),
        Figure(heading="Time lost relative to LRU", detail=whiskers, chart=ratio),
        _gap_figure(f"{name}-gap", setups, drawn),
        Figure(heading="Completion of a program", detail="seconds from its start to its end, mean", chart=done),
    )


def _lines(
    name: str,
    title: str,
    value: Callable[[PolicyRecord], Interval | None],
    text: Callable[[float], str],
    *,
    setups: Sequence[SetupRecord],
    styles: Mapping[str, str],
    dashed: str,
    high: float = 0.0,
) -> Element:
    """A line per policy over servers that differ by the size of their device, smallest first."""

    def points(policy: str) -> tuple[Point, ...]:
        found = ((setup, setup.policy(policy)) for setup in setups)
        known = ((setup, value(record)) for setup, record in found if record is not None)
        return tuple(
            Point(x=setup.device_tokens, place=f"{setup.device} tokens", value=v.mean, low=v.low, high=v.high)
            for setup, v in known
            if v is not None
        )

    ticks = (
        Tick(
            x=setup.device_tokens,
            label=short_number(setup.device_tokens),
            below=setup.device_size if setup.device_size.endswith("%") else "",
        )
        for setup in setups
    )
    lines = (
        Line(name=policy, style=style, points=points(policy), dashed=policy == dashed)
        for policy, style in styles.items()
    )
    plot = Plot(
        name=name, title=title, lines=tuple(lines), ticks=tuple(ticks), text=text, axis="device tokens", high=high
    )
    return line_chart(plot)


def _mean(policy: PolicyRecord, measure: str) -> Interval | None:
    """A value without its interval: seeds draw other programs, which says nothing of the policies."""
    mean = policy.mean(measure)
    return None if mean is None else Interval(mean=mean)


def _seconds(value: float) -> str:
    return seconds(value) if value else "0"


def _gap_figure(name: str, setups: Sequence[SetupRecord], drawn: Callable[..., Element]) -> Figure:
    heading = "Gap between LRU and Belady closed"
    notes = " ".join(f"Device {setup.device}: {setup.gap_note}." for setup in setups if setup.gap_note)
    if all(setup.gap_note for setup in setups):
        return Figure(heading=heading, detail=f"no gap to close. {notes}")

    def value(policy: PolicyRecord) -> Interval | None:
        closed = policy.gap_closed
        return None if closed is None else Interval(mean=min(max(closed, LOWEST_SHARE), HIGHEST_SHARE))

    detail = f"0 % is LRU, 100 % Belady. {notes}".strip()
    return Figure(heading=heading, detail=detail, chart=drawn(name, heading, value, share, high=1.0))


def _bar_figures(name: str, setup: SetupRecord) -> tuple[Figure, ...]:
    detail = f"device {setup.device} tokens" + (f"; no gap to close: {setup.gap_note}" if setup.gap_note else "")
    lost = _bars(setup, {"recomputed_s": "recomputed", "reloaded_s": "host"})
    done = _bars(setup, {"completion_mean_s": "new"})
    return (
        Figure(heading="Time lost", detail=detail, chart=bar_chart(f"{name}-lost", "Time lost", lost, _seconds)),
        Figure(
            heading="Completion of a program",
            detail="seconds from its start to its end, mean",
            chart=bar_chart(f"{name}-done", "Completion of a program", done, _seconds),
        ),
    )


def _bars(setup: SetupRecord, parts: Mapping[str, str]) -> list[Bar]:
    def values(record: PolicyRecord) -> tuple[tuple[str, float], ...]:
        return tuple((style, record.mean(measure) or 0.0) for measure, style in parts.items())

    return [Bar(label=record.policy, parts=values(record)) for record in setup.policies]
