"""``kvflow demo``: a multi-agent program against the real server, with kvflow and without."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("starting", total=None)

            def show(text: str, done: int, total: int) -> None:
                bar.update(task, description=text, completed=done, total=total or None)

            result = run_demo(settings, folder, show)
    except KVFlowError as error:
        console.print(f"[red]error[/red] {error}", highlight=False)
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


def circumstances() -> dict[str, Any]:
    """Where, when and with what a result was made."""
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["kvflow", *sys.argv[1:]]),
        "git": _git(),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        },
        "versions": {name: metadata.version(name) for name in ("kvflow", "sglang", "torch")}
        | {"python": platform.python_version()},
    }


def _git() -> dict[str, Any]:
    def run(*command: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(command, capture_output=True, text=True, cwd=here, check=True).stdout.strip()

    try:
        return {"commit": run("git", "rev-parse", "HEAD"), "dirty": bool(run("git", "status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()
