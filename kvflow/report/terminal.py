"""The comparison as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from kvflow.report.result import Result
from kvflow.report.verdict import Verdict, rows, summary

STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.SAME: "", Verdict.UNKNOWN: "dim"}


def table(result: Mapping[str, Any]) -> Table:
    """Lay out the comparison of a result document: metric, one column per arm, kvflow's ratio to the baseline.

    The kvflow cells are green where it is better and red where it is worse, by more than 1 % each; the ratio column
    says so in words too. Without a comparison the table is empty and its caption says "no data".

    Raises:
        ValueError: a field of the document has the wrong type.
    """
    record = Result.read(result)
    grid = Table(caption=Text(summary(record) or "no data: this run compared nothing"), caption_justify="left")
    grid.add_column("metric")
    grid.add_column(Text(record.baseline_name), justify="right")
    grid.add_column(Text(record.kvflow_name), justify="right")
    grid.add_column("ratio", justify="right")
    for row in rows(record):
        style = STYLES[row.verdict]
        cells = Text(row.kvflow, style=style), Text(f"{row.ratio} {row.verdict}", style=style)
        grid.add_row(Text(f"{row.metric} ({row.unit})" if row.unit else row.metric), row.baseline, *cells)
    return grid
