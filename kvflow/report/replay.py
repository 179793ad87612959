"""A replay for people: tables for the terminal, and a report in one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvflow.report.amounts import NOTHING
from kvflow.report.page import origin, readable, rendered
from kvflow.report.replay_charts import sections
from kvflow.report.replay_record import LoadRecord, ReplayRecord
from kvflow.report.replay_rows import BRIEF, brief_cells, cautions, full_rows, headline
from kvflow.report.simulation_rows import Cell
from kvflow.report.terminal import STYLES


def replay_tables(result: Mapping[str, Any]) -> list[RenderableType]:
    """Lay out a replay: all measures at a single load, or the headline measures at several.

    Raises:
        ValueError: a field of the document has the wrong type.
    """
    record = ReplayRecord.read(result)
    tables: list[RenderableType] = []
    for load in record.loads:
        grid = Table(box=SIMPLE, show_edge=False, title=Text(_title(load), style="bold"), title_justify="left")
        if len(record.loads) > 1:
            grid.add_column("arm")
            for column in BRIEF:
                grid.add_column(column, justify="right")
            for arm, cells in zip(load.arms, brief_cells(load), strict=True):
                grid.add_row(Text(arm.name), *map(_text, cells))
        else:
            grid.add_column("", no_wrap=True)
            grid.add_column("", no_wrap=True)
            for arm in load.arms:
                grid.add_column(Text(arm.name), justify="right")
            for row in full_rows(load):
                grid.add_row(row.label, row.unit, *map(_text, row.cells))
        tables.append(grid)
    return [*tables, *(Text(f"Caution. {caution}", style="yellow") for caution in cautions(record))]


def write_replay_html(result: Mapping[str, Any], path: str | Path) -> None:
    """Write a replay as one self-contained HTML file: no scripts, no network, light and dark.

    Args:
        result: the document of a replay; what it lacks is left out.
        path: the file to write; an existing one is replaced.

    Raises:
        MissingExtraError: jinja2 is not installed.
        ValueError: a field of the document has the wrong type.
        OSError: the file cannot be written.
    """
    record = ReplayRecord.read(result)
    html = rendered(
        "replay.html.jinja",
        result=record,
        headline=headline(record),
        cautions=cautions(record),
        loads=[(load, list(zip(load.arms, brief_cells(load), strict=True))) for load in record.loads],
        brief=BRIEF,
        sections=sections(record),
        details=[(load, full_rows(load)) for load in record.loads],
        facts=origin(record) | {"traces": _traces(record)},
        settings=readable(record.settings),
    )
    Path(path).write_text(html, encoding="utf-8", errors="replace")


def _traces(record: ReplayRecord) -> str:
    return "; ".join(f"{file.get('name')} ({file.get('source')})" for file in record.traces) or NOTHING


def _title(load: LoadRecord) -> str:
    return f"{load.title}; {load.memory}" if load.memory else load.title


def _text(cell: Cell) -> Text:
    return Text(cell.text, style=STYLES.get(cell.verdict, ""))
