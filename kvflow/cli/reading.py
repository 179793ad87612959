"""What commands that read traces and write results have in common."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from kvflow.errors import KVFlowError, require_installed

if TYPE_CHECKING:
    from kvflow.sim.workload import Workload
    from kvflow.trace import BadEvent, BadRow

_SHOWN_BAD_ROWS = 10


@contextmanager
def told_as_usage() -> Iterator[None]:
    """Tell what is wrong with the command the way typer does."""
    try:
        yield
    except KVFlowError as error:
        raise typer.BadParameter(str(error)) from None


def finite(value: float | None) -> float | None:
    """Refuse numbers that are none, which no bound does, and those without end."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number")
    return value


def check_folders(*paths: Path | None) -> None:
    """Refuse files that could not be written, before the work is done."""
    for path in paths:
        if path is None:
            continue
        if not path.absolute().parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent} to write {path.name} to")
        there = path if path.exists() else path.absolute().parent
        if not os.access(there, os.W_OK):
            raise typer.BadParameter(f"{there} cannot be written to")


def check_report(html: Path | None) -> None:
    """Refuse an HTML report that could not be made, before the work is done."""
    if html is not None:
        require_installed("jinja2", "report", "the HTML report")


def check_made(folder: Path) -> None:
    """Refuse a folder that could not be made, before the work is done."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        reason = "is not a folder" if not there.is_dir() else "cannot be written to"
        raise typer.BadParameter(f"{there} {reason}: give another --folder")


def read(paths: list[Path], console: Console) -> Workload:
    """Read traces, and tell what is in them and what had to be left out."""
    from kvflow.sim.workload import read_workload

    bad: list[BadRow | BadEvent] = []
    workload = read_workload(paths, bad.append)
    for file in workload.files:
        left_out = f"; [yellow]{file.bad_rows:,} rows could not be used[/yellow]" if file.bad_rows else ""
        console.print(
            f"{escape(file.name)} ({escape(file.source)}): {file.programs:,} programs, {file.calls:,} LLM calls, "
            f"tokens {file.token_counts}{left_out}",
            highlight=False,
            soft_wrap=True,
        )
    tell_bad_rows(bad)
    return workload


def tell_bad_rows(bad: Sequence[BadRow | BadEvent]) -> None:
    """Say what of a trace could not be used, and why; of many, the first."""
    for each in bad[:_SHOWN_BAD_ROWS]:
        typer.echo(f"left out: {each}", err=True)
    if len(bad) > _SHOWN_BAD_ROWS:
        typer.echo(f"... and {len(bad) - _SHOWN_BAD_ROWS} more rows that could not be used", err=True)


def write(path: Path, write_to: Callable[[], object], console: Console) -> None:
    """Write a result, and say so."""
    try:
        write_to()
    except (OSError, KVFlowError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        console.print(f"[red]error[/red] cannot write {escape(str(path))}: {escape(str(reason))}", highlight=False)
        raise typer.Exit(1) from None
    console.print(f"written: {escape(str(path))}", highlight=False)
