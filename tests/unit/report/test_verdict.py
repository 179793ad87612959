"""The judgement on a comparison, in the terminal table and in sentences."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from kvflow.report import table
from kvflow.report.amounts import NBSP, amounts, factor, percent, seconds
from kvflow.report.result import Metric, Result
from kvflow.report.verdict import Verdict, cautions, headline, judge, summary


def metric(baseline: float | None, kvflow: float | None, *, lower: bool = True, name: str = "tokens") -> dict[str, Any]:
    ratio = kvflow / baseline if baseline and kvflow is not None else None
    return {
        "metric": name,
        "unit": "s",
        "baseline": baseline,
        "kvflow": kvflow,
        "ratio": ratio,
        "lower_is_better": lower,
    }


def result(*metrics: dict[str, Any], **fields: Any) -> Result:
    arms = [{"name": "lru"}, {"name": "kvflow steps", "kvflow": True}]
    return Result.read({"arms": arms, "comparison": metrics, **fields})


def printed(document: dict[str, Any], *, styles: bool = False) -> str:
    console = Console(
        width=110, force_terminal=styles, color_system="standard" if styles else None, no_color=not styles
    )
    with console.capture() as capture:
        console.print(table(document))
    return capture.get()


@pytest.mark.parametrize(
    ("baseline", "kvflow", "lower", "verdict"),
    [
        (100, 98, True, Verdict.BETTER),
        (100, 102, True, Verdict.WORSE),
        (100, 98, False, Verdict.WORSE),
        (100, 102, False, Verdict.BETTER),
        (100, 99, True, Verdict.SAME),
        (100, 101, False, Verdict.SAME),
        (0, 0, True, Verdict.SAME),
        (0, 1, True, Verdict.WORSE),
        (0, 1, False, Verdict.BETTER),
        (None, 1, True, Verdict.UNKNOWN),
        (1, None, True, Verdict.UNKNOWN),
        (float("nan"), 1, True, Verdict.UNKNOWN),
    ],
)
def test_judge(baseline: float | None, kvflow: float | None, lower: bool, verdict: Verdict) -> None:
    assert judge(Metric.model_validate(metric(baseline, kvflow, lower=lower))) is verdict


def test_the_headline_states_a_gain_and_a_loss_alike() -> None:
    assert headline(result(metric(200, 100))) == (
        f"With kvflow steps, tokens fell by 50{NBSP}%: 100 against 200{NBSP}s with lru."
    )
    assert headline(result(metric(100, 200))) == (
        f"With kvflow steps, tokens rose by 100{NBSP}%, which is worse: 200 against 100{NBSP}s with lru."
    )
    assert "fell by 50\N{NO-BREAK SPACE}%, which is worse" in headline(result(metric(200, 100, lower=False)))
    assert "stayed within 1 %" in headline(result(metric(1000, 1001)))


def test_the_headline_of_a_zero_baseline_has_no_percentage() -> None:
    assert "rose, which is worse: 3 against 0" in headline(result(metric(0, 3)))


def test_the_headline_is_about_the_first_metric_both_arms_have() -> None:
    assert "tokens fell" in headline(result(metric(None, 3, name="stalls"), metric(200, 100)))
    assert "compared nothing" in headline(result(metric(None, 3)))
    assert "compared nothing" in headline(result())


def test_the_summary_names_every_loss() -> None:
    text = summary(
        result(metric(2, 1), metric(10, 11, name="latency"), metric(0, 5, name="waste"), metric(5, 5), metric(5, None))
    )
    assert text == (
        f"kvflow steps: better in 1 of 5 metrics, worse in 2 (latency +10{NBSP}%, waste), "
        "within 1 % in 1, not measured in 1."
    )
    assert "worse in none" in summary(result(metric(2, 1)))
    assert summary(result()) == ""


def test_cautions_say_what_makes_the_numbers_worthless() -> None:
    assert cautions(result(seams_hold=True, identical_tokens=True)) == ()
    assert cautions(result()) == ()
    broken = cautions(result(seams_hold=False, identical_tokens=False))
    assert len(broken) == 2
    assert "same output tokens" in broken[0]
    assert "seam" in broken[1]


def test_the_table_has_a_column_per_arm_and_says_worse_in_words(document: dict[str, Any]) -> None:
    text = printed(document)
    assert "sglang hicache lru" in text
    assert "kvflow steps" in text
    assert "0.51 better" in text
    assert "1.09 worse" in text
    assert "– worse" in text
    assert "1.01 same" in text


def test_the_table_is_green_for_gains_red_for_losses_and_plain_for_neither(document: dict[str, Any]) -> None:
    lines = {line.split("│")[1].strip(): line for line in printed(document, styles=True).splitlines() if "│" in line}
    assert "\x1b[32m" in lines["recomputed + reloaded tokens"]
    assert "\x1b[31m" in lines["step latency, p95 (s)"]
    assert "\x1b[32m" in lines["cache hits (tokens)"]
    assert "\x1b[3" not in lines["output tokens per second (tokens/s)"]


def test_the_table_prints_names_as_they_are() -> None:
    document = {
        "arms": [{"name": "[red]lru[/red]"}, {"name": "[/]", "kvflow": True}],
        "comparison": [metric(2, 1, name="[bold]x")],
    }
    text = printed(document)
    assert "[red]lru[/red]" in text
    assert "[/]" in text
    assert "[bold]x (s)" in text


@pytest.mark.parametrize("document", [{}, {"comparison": []}, {"comparison": None, "arms": None}])
def test_a_table_of_nothing_says_so(document: dict[str, Any]) -> None:
    assert "no data" in printed(document)


def test_a_field_of_the_wrong_type_is_named() -> None:
    with pytest.raises(ValueError, match=r"arms\.0\.steps\.0\.latency_s"):
        table({"arms": [{"steps": [{"latency_s": "soon"}]}]})


@pytest.mark.parametrize(
    ("values", "unit", "expected"),
    [
        ((120_000, 61_000), "tokens", (("120,000", "61,000"), "tokens")),
        ((14.21, 6.3), "s", (("14.21", "6.30"), "s")),
        ((0.0412, 12.5), "s", (("0.0412", "12.5000"), "s")),
        ((1.84e9, 2.5e8), "bytes", (("1.840", "0.250"), "GB")),
        ((512, 0), "bytes", (("512", "0"), "bytes")),
        ((None, 3), "", (("–", "3"), "")),
        ((1e-9, 1e9), "s", (("0.0000", "1,000,000,000.0000"), "s")),
        ((0, 0), "bytes", (("0", "0"), "bytes")),
    ],
)
def test_amounts(values: tuple[float | None, ...], unit: str, expected: tuple[tuple[str, ...], str]) -> None:
    assert amounts(values, unit) == expected


def test_numbers_keep_their_unit_on_the_line() -> None:
    assert seconds(9.7) == f"9.70{NBSP}s"
    assert seconds(0) == f"0{NBSP}s"
    assert percent(0.005) == f"0.5{NBSP}%"
    assert (factor(None), factor(0.508), factor(0.0123), factor(0)) == ("–", "0.51", "0.012", "0.00")
