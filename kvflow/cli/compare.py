"""``kvflow compare``: has anything got worse?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvflow.cli.reading import finite
from kvflow.errors import ConfigError, KVFlowError

if TYPE_CHECKING:
    from kvflow.replay.compare import Change, Count

WORSE = 3
"""Exit status if something has; 1 and 2 are those of errors."""
UNTOLD = 4
"""Exit status if no arm has pairs and rounds enough to tell."""


def compare(
    before: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Result of a replay ...")],
    after: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="... and of another.")],
    threshold: Annotated[
        float, typer.Option(min=0, callback=finite, help="Share by which completion may grow.")
    ] = 0.02,
    force: Annotated[bool, typer.Option("--force", help="Compare results of different work, too.")] = False,
) -> None:
    """Compare two results of kvflow replay, arm by arm, workflow by workflow.

    The exit status is 3 if an arm got worse: a larger share of calls failed, completion grew by more than the
    threshold and its 95 % interval says so, or the arm or its load is missing. It is 4 if no arm has workflows and
    rounds enough to tell.

    Example: kvflow compare main.json branch.json
    """
    from kvflow.replay.compare import changes, surroundings
    from kvflow.replay.metrics import LEAST_PAIRS
    from kvflow.sim.summary import LEAST_ROUNDS

    try:
        documents = _read(before), _read(after)
        found = changes(*documents, threshold, force=force)
    except KVFlowError as error:
        raise typer.BadParameter(str(error)) from None
    grid = Table(box=SIMPLE, show_edge=False)
    for name in ("at once", "arm", "completion", "time to first token", "call latency", "failed calls", ""):
        grid.add_column(name, justify="left" if name in ("arm", "") else "right")
    for change in found:
        names = ("completion_s", "ttft_s", "latency_s")
        cells = [_cell(change.paired.get(name)) for name in names]
        failed = f"{_failed(change.before)} → {_failed(change.after)}"
        grid.add_row(str(change.at_once), escape(change.arm), *cells, failed, _verdict(change, threshold))
    console = Console()
    console.print(grid)
    differing = surroundings(*documents)
    told = [f"Not only kvflow may differ: {'; '.join(differing)}."] if differing else []
    paths = zip((before, after), documents, strict=True)
    told += [f"{path} is of a replay that was broken off." for path, document in paths if document.get("broken_off")]
    for caution in told:
        console.print(caution, style="yellow", highlight=False, markup=False, soft_wrap=True)
    console.print("Ratios after/before with their 95 % intervals, over workflows both have.", style="dim")
    if any(change.problem for change in found):
        raise typer.Exit(WORSE)
    if not any(change.tells for change in found):
        needed = f"{LEAST_PAIRS} workflows in {LEAST_ROUNDS} rounds of one arm at one load, which both results have"
        console.print(f"Nothing can be told: it takes {needed}.", style="yellow", highlight=False, soft_wrap=True)
        raise typer.Exit(UNTOLD)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is no result of kvflow replay")
    return document


def _verdict(change: Change, threshold: float) -> str:
    if change.problem:
        return f"[red]worse: {escape(change.problem)}[/red]"
    if change.too_few:
        return "[yellow]too few pairs or rounds to tell[/yellow]"
    completion = change.paired.get("completion_s")
    if completion is not None and completion.ratio_high > 1 + threshold:
        return f"[yellow]may take {completion.ratio_high:.2f}x as long[/yellow]"
    return ""


def _cell(found: Any) -> str:
    return "–" if found is None else f"{found.ratio:.3f} \\[{found.ratio_low:.3f}, {found.ratio_high:.3f}]"


def _failed(found: Count | None) -> str:
    return "–" if found is None else f"{found.failed} of {found.calls}"
