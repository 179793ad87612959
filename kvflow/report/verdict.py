"""What the comparison says, in cells and in sentences. Losses are worded exactly like gains."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvflow.report.amounts import NBSP, amounts, factor
from kvflow.report.result import Metric, Result

INDISTINCT = 0.01
"""Relative difference up to which two values count as the same."""


class Verdict(StrEnum):
    """How kvflow did on one metric."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    UNKNOWN = "no data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the comparison table, ready to print; without a unit where the metric's name ends in it."""

    metric: str
    unit: str
    baseline: str
    kvflow: str
    ratio: str
    verdict: Verdict


def judge(metric: Metric) -> Verdict:
    """Compare the two sides of a metric; the recorded ratio plays no part, as it may be of something else."""
    baseline, kvflow = metric.baseline, metric.kvflow
    if baseline is None or kvflow is None:
        return Verdict.UNKNOWN
    if abs(kvflow - baseline) <= INDISTINCT * abs(baseline):
        return Verdict.SAME
    return Verdict.BETTER if (kvflow < baseline) == metric.lower_is_better else Verdict.WORSE


def rows(result: Result) -> tuple[Row, ...]:
    """Return the lines of the comparison table."""
    return tuple(_row(metric) for metric in result.comparison)


def _row(metric: Metric) -> Row:
    (baseline, kvflow), unit = amounts((metric.baseline, metric.kvflow), metric.unit)
    return Row(
        metric=metric.metric,
        unit="" if metric.metric.split()[-1:] == [unit] else unit,
        baseline=baseline,
        kvflow=kvflow,
        ratio=factor(metric.ratio),
        verdict=judge(metric),
    )


def headline(result: Result) -> str:
    """State what became of the first metric both sides have, the one the run itself put first."""
    metric = next((metric for metric in result.comparison if judge(metric) is not Verdict.UNKNOWN), None)
    if metric is None or metric.baseline is None or metric.kvflow is None:
        return "This run compared nothing: no metric was measured on both sides."
    row = _row(metric)
    unit = f"{NBSP}{row.unit}" if row.unit else ""
    against = f"{row.kvflow} against {row.baseline}{unit} with {result.baseline_name}"
    verdict = judge(metric)
    if verdict is Verdict.SAME:
        return f"With {result.kvflow_name}, {metric.metric} stayed within 1 %: {against}."
    direction = "fell" if metric.kvflow < metric.baseline else "rose"
    by = f" by {_change(metric)}" if metric.baseline else ""
    loss = ", which is worse" if verdict is Verdict.WORSE else ""
    return f"With {result.kvflow_name}, {metric.metric} {direction}{by}{loss}: {against}."


def summary(result: Result) -> str:
    """Count better, worse and equal metrics; empty if there are none. Worse ones are named."""
    judged = [(metric, judge(metric)) for metric in result.comparison]
    count = {verdict: sum(v is verdict for _, v in judged) for verdict in Verdict}
    if not judged:
        return ""
    parts = [f"better in {count[Verdict.BETTER]} of {len(judged)} metrics"]
    if worse := [metric for metric, verdict in judged if verdict is Verdict.WORSE]:
        parts.append(f"worse in {len(worse)} ({', '.join(_named_change(metric) for metric in worse)})")
    else:
        parts.append("worse in none")
    if count[Verdict.SAME]:
        parts.append(f"within 1 % in {count[Verdict.SAME]}")
    if count[Verdict.UNKNOWN]:
        parts.append(f"not measured in {count[Verdict.UNKNOWN]}")
    return f"{result.kvflow_name}: {', '.join(parts)}."


def cautions(result: Result) -> tuple[str, ...]:
    """Return what must be known before any number is believed."""
    found = []
    if result.identical_tokens is False:
        found.append("The arms did not produce the same output tokens, so they did not do the same work.")
    if result.seams_hold is False:
        found.append("A seam did not hold, so part of kvflow was switched off; kvflow doctor tells which.")
    return tuple(found)


def _change(metric: Metric) -> str:
    assert metric.baseline
    assert metric.kvflow is not None
    change = abs(metric.kvflow / metric.baseline - 1)
    return f"{100 * change:.0f}{NBSP}%" if change >= 0.1 else f"{100 * change:.1f}{NBSP}%"


def _named_change(metric: Metric) -> str:
    if not metric.baseline or metric.kvflow is None:
        return metric.metric
    return f"{metric.metric} {'+' if metric.kvflow > metric.baseline else '−'}{_change(metric)}"
