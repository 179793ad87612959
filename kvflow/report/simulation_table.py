"""A simulated comparison as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvflow.report.simulation_record import PolicyRecord, SetupRecord, Simulation
from kvflow.report.simulation_rows import BRIEF, Cell, brief_cells, cautions, full_rows
from kvflow.report.verdict import Verdict

_STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "red"}


def simulation_tables(result: Mapping[str, Any]) -> list[RenderableType]:
    """Lay out a simulation document: all measures of a single server, or the headline measures of several.

    Cells compared with LRU's are green where they are better and red where they are worse, by more than 1 % and by
    more than their interval. What must be known before any of it is believed stands below.

    Raises:
        ValueError: a field of the document has the wrong type.
    """
    record = Simulation.read(result)
    tables = list(_several(record)) if len(record.setups) > 1 else [_single(setup) for setup in record.setups]
    return [*tables, *(Text(f"Caution. {caution}", style="yellow") for caution in cautions(record))]


def _single(setup: SetupRecord) -> Table:
    grid = Table(box=SIMPLE, show_edge=False, caption=_caption(setup), caption_justify="left")
    grid.add_column("", no_wrap=True)
    grid.add_column("", no_wrap=True)
    for policy in setup.policies:
        grid.add_column(_name(policy), justify="right")
    for row in full_rows(setup):
        grid.add_row(row.label, row.unit, *map(_text, row.cells))
    return grid


def _several(record: Simulation) -> Iterator[RenderableType]:
    for load, setups in record.by_load().items():
        grid = Table(box=SIMPLE, show_edge=False, title=Text(load, style="bold"), title_justify="left")
        grid.add_column("device tokens", no_wrap=True)
        grid.add_column("policy")
        for column in BRIEF:
            grid.add_column(column, justify="right")
        for setup in setups:
            for index, (policy, cells) in enumerate(zip(setup.policies, brief_cells(setup), strict=True)):
                grid.add_row("" if index else Text(setup.device), _name(policy), *map(_text, cells))
            grid.add_section()
        yield grid
        for setup in setups:
            if setup.gap_note:
                yield Text(f"device {setup.device}: no gap to close: {setup.gap_note}.", style="dim")
            if rejected := max((policy.mean("rejected") or 0 for policy in setup.policies), default=0):
                yield Text(
                    f"device {setup.device}: {rejected:,.0f} calls rejected, longer than the device.", style="yellow"
                )


def _name(policy: PolicyRecord) -> Text:
    return Text(policy.policy if policy.asked else f"({policy.policy})", style="" if policy.asked else "dim")


def _text(cell: Cell) -> Text:
    return Text(cell.text, style=_STYLES.get(cell.verdict, ""))


def _caption(setup: SetupRecord) -> Text | None:
    return Text(f"No gap to close: {setup.gap_note}.") if setup.gap_note else None
