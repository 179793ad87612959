"""``kvflow demo``: a multi-agent program against the real server, with kvflow and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvflow.cli.circumstances import circumstances
from kvflow.cli.ending import ended_by_signals
from kvflow.errors import KVFlowError


def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds per arm.")] = 3,
    workflows: Annotated[int, typer.Option(min=1, help="Workflows per round.")] = 12,
    at_once: Annotated[int, typer.Option(min=1, help="Workflows that run at a time.")] = 3,
    trace: Annotated[Path | None, typer.Option(help="Take documents from this trace instead of source files.")] = None,
    folder: Annotated[Path, typer.Option(help="Where results, logs and the model go.")] = Path(".demo"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Run ten agents over real documents against SGLang on the CPU engine: stock HiCache LRU, then kvflow, in turns."""
    from kvflow.demo import DemoSettings, run_demo
    from kvflow.report import table, write_html

    settings = DemoSettings(rounds=rounds, workflows=workflows, at_once=at_once, trace=trace)
    console = Console(stderr=as_json)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with ended_by_signals(), Progress(*columns, console=console) as bar:
            task = bar.add_task("starting", total=None)

            def show(text: str, done: int, total: int) -> None:
                bar.update(task, description=text, completed=done, total=total or None)

            result = run_demo(settings, folder, show)
    except KVFlowError as error:
        console.print(f"[red]error[/red] {escape(str(error))}", highlight=False)
        raise typer.Exit(1) from None
    result |= circumstances()
    (folder / "demo.json").write_text(json.dumps(result))
    write_html(result, folder / "demo.html")
    if as_json:
        typer.echo(json.dumps({"comparison": result["comparison"], "identical_tokens": result["identical_tokens"]}))
    else:
        console.print(table(result))
        console.print(f"generated tokens identical in both arms: {'yes' if result['identical_tokens'] else 'NO'}")
        console.print(f"written: {folder / 'demo.json'} and {folder / 'demo.html'}")
