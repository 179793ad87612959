"""Charts of a replay: completion over load, where time went, and one workflow from start to end."""

from __future__ import annotations

from collections.abc import Sequence

from kvflow.report.amounts import seconds
from kvflow.report.axis import Scale, horizontal_axis, scale
from kvflow.report.bars import Bar, bar_chart
from kvflow.report.lines import Line, Plot, Point, Tick, line_chart
from kvflow.report.replay_record import Event, LoadRecord, ReplayArm, ReplayRecord, Timeline
from kvflow.report.sections import Figure, Group, Key, Section, arm_dashed, arm_style
from kvflow.report.svg import Element, chart, shortened, tag, tooltip

WIDTH, LEFT, RIGHT = 960.0, 150.0, 950.0
TOP, LANE = 16.0, 20.0

SPENT = (
    ("queued_s", Key(style="retired", label="waiting to be run")),
    ("prefilled_s", Key(style="recomputed", label="until the first token: loading and computing")),
    ("decoded_s", Key(style="device", label="decoding")),
    ("tools_s", Key(style="unknown", label="tools")),
)
_UNSAID = Key(style="recomputed", label="until the first token: waiting, loading and computing")
"""Where the server does not say how long requests waited (it does with --enable-metrics)."""


def sections(record: ReplayRecord) -> list[Section]:
    """Draw what a replay has to show."""
    return [_over_load(record), _time(record), _timelines(record)]


def _over_load(record: ReplayRecord) -> Section:
    title = "Completion of a workflow over load"
    styles = {name: (arm_style(index), arm_dashed(index)) for index, name in enumerate(record.arms)}
    if len(record.loads) < 2:
        figures = tuple(_completions(load) for load in record.loads)
        lead = "Mean over workflows. Replay several loads (--concurrency) for a line."
        return Section(name="completion", title=title, lead=lead, groups=(Group(figures=figures),))

    def points(name: str) -> tuple[Point, ...]:
        found = ((load, arm) for load in record.loads for arm in load.arms if arm.name == name)
        return tuple(
            Point(x=load.at_once, place=f"{load.at_once} at once", value=arm.measures["completion_mean_s"])
            for load, arm in found
            if "completion_mean_s" in arm.measures
        )

    plot = Plot(
        name="completion-over-load",
        title=title,
        lines=tuple(
            Line(name=name, style=style, points=points(name), dashed=dashed) for name, (style, dashed) in styles.items()
        ),
        ticks=tuple(Tick(x=load.at_once, label=str(load.at_once)) for load in record.loads),
        text=seconds,
        axis="programs at once",
    )
    legend = tuple(
        Key(style=style, label=name, shape="dashes" if dashed else "line") for name, (style, dashed) in styles.items()
    )
    return Section(
        name="completion",
        title=title,
        lead="Mean over workflows, from arrival to end.",
        legend=legend,
        groups=(Group(figures=(Figure(chart=line_chart(plot)),)),),
    )


def _completions(load: LoadRecord) -> Figure:
    bars = [Bar(label=arm.name, parts=(("new", arm.measures["completion_mean_s"]),)) for arm in _finished(load)]
    drawn = bar_chart("completion", "Completion of a workflow", bars, seconds) if bars else None
    return Figure(heading=load.title, detail=_without_data(load), chart=drawn)


def _finished(load: LoadRecord) -> list[ReplayArm]:
    """Arms with a workflow that ran without a failed call: without one there is nothing to draw, and 0 s look best."""
    return [arm for arm in load.arms if "completion_mean_s" in arm.measures]


def _without_data(load: LoadRecord) -> str:
    names = [arm.name for arm in load.arms if "completion_mean_s" not in arm.measures]
    part = [arm.name for arm in _finished(load) if arm.measures.get("failed_calls")]
    told = [f"No data of {', '.join(names)}: no workflow ran without a failed call."] if names else []
    told += [f"Of {', '.join(part)} without workflows of which a call failed."] if part else []
    return " ".join(told)


def _time(record: ReplayRecord) -> Section:
    def bar(arm: ReplayArm) -> Bar:
        return Bar(label=arm.name, parts=tuple((key.style, arm.measures.get(name, 0.0)) for name, key in SPENT))

    def figure(index: int, load: LoadRecord) -> Figure:
        bars = [bar(arm) for arm in _finished(load)]
        drawn = bar_chart(f"time-{index}", "Where time went", bars, seconds) if bars else None
        return Figure(heading=load.title, detail=_without_data(load), chart=drawn)

    figures = tuple(figure(index, load) for index, load in enumerate(record.loads))
    return Section(
        name="time",
        title="Where time went",
        lead="Seconds of all calls and tools of a workflow, mean; what runs in parallel counts as often as it runs.",
        legend=_legend(record),
        groups=(Group(figures=figures),),
    )


def _legend(record: ReplayRecord) -> tuple[Key, ...]:
    if any("queued_s" in arm.measures for load in record.loads for arm in load.arms):
        return tuple(key for _, key in SPENT)
    return (_UNSAID, *(key for name, key in SPENT if name not in ("queued_s", "prefilled_s")))


def _timelines(record: ReplayRecord) -> Section:
    title = "One workflow from start to end"
    shown = [(load, arm) for load in record.loads[-1:] for arm in load.arms if arm.timeline and arm.timeline.events]
    if not shown:
        return Section(name="timeline", title=title, note="no data: no workflow ran without a failed call")
    longest_s = max(_length_s(arm.timeline) for _, arm in shown if arm.timeline)
    x = scale(longest_s, LEFT, RIGHT)
    figures = tuple(_timeline(arm, index, x) for index, (_, arm) in enumerate(shown))
    lead = "Of the first round and the largest load, the workflow with the middle number of calls; a row per thread."
    return Section(
        name="timeline",
        title=title,
        lead=lead,
        legend=_legend(record),
        groups=(Group(figures=figures),),
    )


def _length_s(timeline: Timeline | None) -> float:
    return timeline.end_s - timeline.start_s if timeline else 0.0


def _timeline(arm: ReplayArm, index: int, x: Scale) -> Figure:
    timeline = arm.timeline
    assert timeline is not None
    threads = list(dict.fromkeys(event.thread for event in timeline.events))
    bottom = TOP + LANE * len(threads)
    tops = {thread: TOP + LANE * number for number, thread in enumerate(threads)}
    marks = [_mark(event, tops[event.thread], timeline.start_s, x) for event in timeline.events]
    rows = [
        tag("text", tooltip(name), shortened(name, 12, LEFT - 14), x=LEFT - 8, y=top + LANE - 6, class_="row end")
        for name, top in tops.items()
    ]
    done = x(_length_s(timeline))
    detail = f"{timeline.workflow}: done after {seconds(_length_s(timeline))}"
    if timeline.left_out:
        detail += f"; the last {timeline.left_out} calls and tools are left out"
    drawn = chart(
        *rows,
        horizontal_axis(x, top=TOP, bottom=bottom, unit="s"),
        tag("g", *marks, class_="marks"),
        tag("path", d=f"M{done:.1f} {TOP - 4:.1f}V{bottom:.1f}", class_="done"),
        name=f"timeline-{index}",
        title=f"One workflow with {arm.name}",
        description=detail,
        width=WIDTH,
        height=bottom + 22,
    )
    return Figure(heading=arm.name, detail=detail, chart=drawn)


def _mark(event: Event, top: float, began_s: float, x: Scale) -> Element:
    if event.what == "tool":
        parts = [_bar(event.start_s, event.end_s, "unknown", top + 5, began_s, x, LANE - 12)]
        return tag("g", tooltip(f"{event.name}: {seconds(event.end_s - event.start_s)}"), *parts)
    run_s = max(event.start_s, event.run_s)
    parts = [
        _bar(event.start_s, run_s, "retired", top + 2, began_s, x),
        _bar(run_s, event.first_s, "recomputed", top + 2, began_s, x),
        _bar(event.first_s, event.end_s, "device", top + 2, began_s, x),
    ]
    return tag("g", tooltip(_told(event)), *parts)


def _bar(
    start_s: float, end_s: float, style: str, top: float, began_s: float, x: Scale, height: float = LANE - 4
) -> Element:
    left = x(start_s - began_s)
    return tag("rect", x=left, y=top, width=max(0.3, x(end_s - began_s) - left), height=height, class_=style)


def _told(event: Event) -> str:
    parts: Sequence[str] = (
        f"{event.name}: {seconds(event.end_s - event.start_s)}",
        f"first token after {seconds(event.first_s - event.start_s)}",
        f"prompt {event.prompt_tokens:,} tokens: {event.device_tokens:,} on the device, {event.host_tokens:,} from the "
        f"host, {event.recomputed_tokens:,} computed again",
        f"answer {event.output_tokens:,} tokens",
    )
    return "\n".join(parts)
