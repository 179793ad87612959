"""When each agent ran, and where its prompt came from."""

from __future__ import annotations

from kvflow.report.amounts import NBSP, seconds
from kvflow.report.axis import Scale, horizontal_axis, scale
from kvflow.report.lanes import NARROWEST, PADDING, Rows, Run, packed, rows_of, run_of
from kvflow.report.result import Result, Step
from kvflow.report.sections import Figure, Group, Key, Section
from kvflow.report.svg import Element, chart, shortened, tag, tooltip

WIDTH, LEFT, RIGHT = 960.0, 150.0, 950.0
TOP = 16.0

SOURCES = (
    Key(style="device", label="device hit"),
    Key(style="host", label="loaded from host"),
    Key(style="recomputed", label="recomputed: was cached, got evicted"),
    Key(style="new", label="new"),
)


def section(result: Result) -> Section:
    """Draw one chart per round and arm; those of a round share their time axis."""
    title = "When each agent ran, and where its prompt came from"
    rounds = sorted({step.round for arm in result.arms for step in arm.steps})
    if not rounds:
        return Section(name="timeline", title=title, note="no data: the run recorded no steps")
    runs = {number: [run_of(arm, number) for arm in result.arms] for number in rounds}
    scales = {number: scale(max(run.duration_s for run in runs[number]), LEFT, RIGHT) for number in rounds}
    rows = rows_of(result.agents(), [(run, scales[number]) for number in rounds for run in runs[number]], TOP)
    groups = [
        Group(
            title=f"Round {position} of {len(rounds)}" if len(rounds) > 1 else "",
            unfolded=position == 1,
            figures=tuple(
                _figure(run, f"timeline-{number}-{i}", rows, scales[number]) for i, run in enumerate(runs[number])
            ),
        )
        for position, number in enumerate(rounds, start=1)
    ]
    lead = "Each mark is one step, as wide as its latency, split by the share of prompt tokens from each source."
    return Section(name="timeline", title=title, lead=lead, legend=SOURCES, groups=tuple(groups))


def _figure(run: Run, name: str, rows: Rows, x: Scale) -> Figure:
    if not run.steps:
        return Figure(heading=run.arm.name, detail="no data: this arm recorded no steps in this round")
    detail = f"{len(run.steps)} steps, done after {seconds(run.duration_s)}. {_shares(run)}"
    return Figure(heading=run.arm.name, detail=detail, chart=_chart(run, name, rows, x, detail))


def _shares(run: Run) -> str:
    totals = {key.style: sum(_tokens(step)[key.style] for step in run.steps) for key in SOURCES}
    if not any(totals.values()):
        return "No prompt tokens were counted."
    total = sum(totals.values())
    parts = [f"{100 * totals[key.style] / total:.0f}{NBSP}% {key.label.partition(':')[0]}" for key in SOURCES]
    return f"Prompt tokens: {', '.join(parts)}."


def _chart(run: Run, name: str, rows: Rows, x: Scale, description: str) -> Element:
    marks = [_mark(step, lane, run.begin_s, rows, x) for step, lane in packed(run.steps, x)]
    done = x(run.duration_s)
    side = "end" if done > RIGHT - 80 else "start"
    return chart(
        *(_row(agent, rows) for agent in rows.tops),
        horizontal_axis(x, top=TOP, bottom=rows.bottom, unit="s"),
        tag("g", *marks, class_="marks"),
        tag("path", d=f"M{done:.1f} {TOP - 4:.1f}V{rows.bottom:.1f}", class_="done"),
        tag("text", f"done {seconds(run.duration_s)}", x=done, y=TOP - 6, class_=f"tick {side}"),
        name=name,
        title=f"Steps of {run.arm.name}",
        description=description,
        width=WIDTH,
        height=rows.bottom + 22,
    )


def _row(agent: str, rows: Rows) -> Element:
    top, middle = rows.tops[agent], rows.tops[agent] + rows.heights[agent] / 2
    label = shortened(agent, 12, LEFT - 14)
    name = tag("text", tooltip(agent), label, x=LEFT - 8, y=middle + 4, class_="row end")
    return tag("g", tag("path", d=f"M0 {top:.1f}H{RIGHT:.1f}", class_="grid"), name)


def _mark(step: Step, lane: int, begin_s: float, rows: Rows, x: Scale) -> Element:
    left = x(step.start_s - begin_s)
    width = max(x(step.end_s - begin_s) - left - 0.6, NARROWEST)
    height = rows.lane_height - 1.5
    bottom = rows.tops[step.agent] + PADDING + lane * rows.lane_height + height
    tokens = _tokens(step)
    total = sum(tokens.values())
    parts: list[Element] = []
    for style, count in tokens.items():
        if count > 0:
            share = height * count / total
            bottom -= share
            parts.append(tag("rect", x=left, y=bottom, width=width, height=share, class_=style))
    if not parts:
        parts.append(tag("rect", x=left, y=bottom - height, width=width, height=height, class_="unknown"))
    return tag("g", tooltip(_told(step, begin_s)), *parts)


def _tokens(step: Step) -> dict[str, int]:
    """Return the prompt tokens by source, in the order of ``SOURCES``, which is the order they are stacked in."""
    return {
        "device": max(step.device_tokens, 0),
        "host": max(step.host_tokens, 0),
        "recomputed": max(step.recomputed_tokens, 0),
        "new": max(step.new_tokens, 0),
    }


def _told(step: Step, begin_s: float) -> str:
    return (
        f"{step.agent} in {step.workflow}\n"
        f"starts at {seconds(step.start_s - begin_s)}, takes {seconds(step.latency_s)}\n"
        f"prompt {step.prompt_tokens:,} tokens: {step.device_tokens:,} device hit, {step.host_tokens:,} from host, "
        f"{step.recomputed_tokens:,} recomputed, {step.new_tokens:,} new"
        + ("" if step.output_tokens is None else f"\noutput {step.output_tokens:,} tokens")
    )
