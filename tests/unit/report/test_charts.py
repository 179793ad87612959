"""What charts are computed from: lanes, scales, quantiles, samples."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvflow.report import lanes, residency, timeline
from kvflow.report.axis import scale
from kvflow.report.latency import quantile
from kvflow.report.result import Result, Sample, Step
from kvflow.report.svg import shortened, tag, text_width

STYLES = Path(timeline.__file__).parent / "templates" / "report.css"


def step(start_s: float, latency_s: float, agent: str = "a") -> Step:
    return Step(agent=agent, start_s=start_s, latency_s=latency_s)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 20)), max_size=30))
def test_marks_in_one_lane_do_not_overlap(spans: list[tuple[float, float]]) -> None:
    x = scale(120.0, 0.0, 800.0)
    steps = sorted((step(*span) for span in spans), key=lambda step: step.start_s)
    for (a, lane), (b, other) in combinations(lanes.packed(steps, x), 2):
        assert lane != other or max(x(a.end_s), x(a.start_s) + lanes.NARROWEST) <= x(b.start_s) + 1e-6


def test_agents_have_lanes_of_their_own() -> None:
    x = scale(10.0, 0.0, 100.0)
    packed = lanes.packed([step(0, 5), step(1, 5), step(1, 5, "b"), step(6, 1)], x)
    assert [lane for _, lane in packed] == [0, 1, 0, 0]


def test_charts_of_one_round_share_rows_and_time(document: dict[str, Any]) -> None:
    section = timeline.section(Result.read(document))
    assert [group.title for group in section.groups] == ["Round 1 of 3", "Round 2 of 3", "Round 3 of 3"]
    assert [group.unfolded for group in section.groups] == [True, False, False]
    for group in section.groups:
        first, second = (figure.chart.__html__() for figure in group.figures if figure.chart)
        assert axis_of(first) == axis_of(second)


def axis_of(svg: str) -> list[str]:
    return re.findall(r'<text x="[\d.]+" y="[\d.]+" class="(?:tick mid|row end)">.*?</text>', svg)


def test_rows_follow_the_way_through_the_graph_and_strangers_come_last() -> None:
    shortcut = {"edges": [["START", "a"], ["a", "b"], ["b", "a"], ["b", "c"], ["a", "c"], ["c", "END"]]}
    steps = [{"agent": "stranger"}, {"agent": "c"}]
    assert Result.read({"graph": shortcut, "arms": [{"steps": steps}]}).agents() == ("a", "b", "c", "stranger")
    assert Result.read({"arms": [{"steps": steps}]}).agents() == ("stranger", "c")


def test_the_clock_of_a_round_starts_with_the_round(document: dict[str, Any]) -> None:
    result = Result.read(document)
    for number in range(3):
        run = lanes.run_of(result.arms[0], number)
        assert run.begin_s == min(workflow.start_s or 0 for workflow in result.arms[0].workflows[4 * number :][:4])
        assert run.duration_s < 30


@pytest.mark.parametrize(("high", "last"), [(9.7, 8), (1.0, 1.0), (0.013, 0.012), (0.0, 1.0), (10_240, 10_000)])
def test_ticks_are_round_and_within_the_scale(high: float, last: float) -> None:
    x = scale(high, 0, 100)
    ticks = x.ticks()
    assert ticks[0] == 0
    assert ticks[-1] == pytest.approx(last)
    assert 4 <= len(ticks) <= 12


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.5), (0.95, 3.85), (0.0, 1.0), (1.0, 4.0)])
def test_quantile_interpolates(share: float, expected: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], share) == pytest.approx(expected)
    assert quantile([7.0], share) == 7.0


def test_thinned_keeps_the_first_and_the_last_sample() -> None:
    samples = [Sample(at_s=float(i)) for i in range(1000)]
    thin = residency.thinned(samples)
    assert len(thin) == residency.MAX_SAMPLES
    assert (thin[0].at_s, thin[-1].at_s) == (0.0, 999.0)
    assert residency.thinned(samples[:5]) == samples[:5]


def test_residency_is_drawn_for_arms_that_have_it(document: dict[str, Any]) -> None:
    section = residency.section(Result.read(document))
    without, with_samples = section.groups[0].figures
    assert without.chart is None
    assert "no data" in without.detail
    assert with_samples.chart is not None
    svg = with_samples.chart.__html__()
    assert svg.count('class="area ') == 2 * 5
    assert "capacity 10,240 tokens" in svg
    assert "capacity 30,720 tokens" in svg


def test_areas_end_at_the_total(document: dict[str, Any]) -> None:
    document["arms"][1]["residency"] = [
        {"at_s": 0, "tokens": {"device/fixed": 2560, "device/tail": 5120}},
        {"at_s": 4, "tokens": {"device/fixed": 0, "device/tail": 10_240}},
    ]
    figure = residency.section(Result.read(document)).groups[0].figures[1]
    assert figure.chart is not None
    tail = re.search(r'<path d="M([^"]+)Z" class="area tail">', figure.chart.__html__())
    assert tail is not None
    top, bottom = residency.TOP, residency.TOP + residency.PANEL_HEIGHT
    ys = [float(point.split()[1]) for point in tail[1].split("L")]
    quarter = (bottom - top) / 4
    assert ys == pytest.approx([top + quarter, top, bottom, bottom - quarter], abs=0.1)


def test_every_class_a_chart_uses_has_a_colour_in_both_schemes(document: dict[str, Any]) -> None:
    css = STYLES.read_text(encoding="utf-8")
    light, dark = css.split("@media", 1)
    for key in (*timeline.SOURCES, *residency.CLASSES):
        assert f"--{key.style}: #" in light
        assert f"--{key.style}: #" in dark
        assert f".{key.style} {{ --c: var(--{key.style}) }}" in css


def test_text_that_is_too_wide_is_cut() -> None:
    assert shortened("planner", 12, 200) == "planner"
    cut = shortened("a very long agent name", 12, 60)
    assert cut.endswith("…")
    assert text_width(cut, 12) <= 60
    assert shortened("名" * 9, 10, 50) == "名名名名…"
    assert shortened("x", 12, 0) == "…"


def test_elements_escape_what_they_hold() -> None:
    element = tag("text", "a < b & 'c'\x07", x=1.0, class_='"><script>', data_long=None)
    assert element.__html__() == (
        '<text x="1" class="&quot;&gt;&lt;script&gt;">a &lt; b &amp; &#x27;c&#x27;\N{REPLACEMENT CHARACTER}</text>'
    )
