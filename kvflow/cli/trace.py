"""``kvflow trace``: convert, count, make up and record traces."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvflow.cli.ending import run_program
from kvflow.cli.reading import check_folders, tell_bad_rows
from kvflow.errors import TraceError

if TYPE_CHECKING:
    from kvflow.trace import BadRow, Event, TraceHeader
    from kvflow.trace.stats import Spread, TraceStats

TOP_TOOLS = 10

app = typer.Typer(help="Convert, count, make up and record traces of multi-agent programs.", no_args_is_help=True)

TraceFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A trace, gzipped or not.")]
OutFile = Annotated[Path, typer.Argument(dir_okay=False, help="Trace to write; gzipped if it ends in .gz.")]


@app.command()
def convert(
    source: TraceFile,
    out: OutFile,
    format: Annotated[str | None, typer.Option(help="Format of the source; by default what it looks like.")] = None,
) -> None:
    """Turn a trace of another project into one of kvflow."""
    from kvflow.trace import import_trace, open_trace

    bad: list[BadRow] = []
    try:
        header, events = import_trace(source, format, bad.append) if format else open_trace(source, bad.append)
        counts = _write(out, header, events)
    except TraceError as error:
        raise typer.BadParameter(str(error)) from None
    tell_bad_rows(bad)
    if not counts["llm_call"]:
        raise _failure(f"nothing in {source} could be used")
    typer.echo(f"{out}: {_summary(counts)}; {len(bad)} rows could not be used")


@app.command()
def stats(
    paths: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="Traces of any known format.")],
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Count what is in traces: calls, tokens, tools, and what the best possible cache would hit."""
    from kvflow.trace import open_trace
    from kvflow.trace.stats import trace_stats

    found: dict[str, TraceStats] = {}
    for path in paths:
        bad: list[BadRow] = []
        try:
            found[str(path)] = trace_stats(open_trace(path, bad.append)[1])
        except TraceError as error:
            raise typer.BadParameter(str(error)) from None
        tell_bad_rows(bad)
    if as_json:
        typer.echo(json.dumps([{"path": path, **dataclasses.asdict(each)} for path, each in found.items()]))
        return
    console = Console()
    console.print(_overview(found))
    for path, each in found.items():
        if each.tools:
            console.print(_tools(path, each))


@app.command()
def synth(
    kind: Annotated[str, typer.Argument(help="chain, fan, loop, react or supervisor.")],
    out: OutFile,
    workflows: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    agents: Annotated[int, typer.Option(min=1, help="Agents of a workflow; of fan and supervisor the workers.")] = 4,
    turns: Annotated[int, typer.Option(min=1, help="Passes, rounds or answers of a workflow.")] = 3,
    fixed_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every agent's fixed prompt.")] = 1024,
    task_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a task, on average.")] = 512,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer, on average.")] = 128,
    apart_s: Annotated[float, typer.Option(min=0, help="Mean seconds between the starts of workflows.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal traces.")] = 0,
) -> None:
    """Make up a trace of a known shape."""
    from kvflow.trace.synth import SynthOptions, synthetic_trace

    try:
        options = SynthOptions(
            workflows=workflows,
            agents=agents,
            turns=turns,
            fixed_tokens=fixed_tokens,
            task_tokens=task_tokens,
            output_tokens=output_tokens,
            apart_s=apart_s,
            seed=seed,
        )
        counts = _write(out, *synthetic_trace(kind, options))
    except TraceError as error:
        raise typer.BadParameter(str(error)) from None
    typer.echo(f"{out}: {_summary(counts)}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def record(
    context: typer.Context,
    out: Annotated[Path, typer.Option(dir_okay=False, help="Trace to write; gzipped if it ends in .gz.")],
    url: Annotated[str | None, typer.Option(help="Server that hears kvflow's facts, as KVFLOW_URL.")] = None,
) -> None:
    """Run a program that uses kvflow's client, and make a trace of what it asks.

    A program that is interrupted has the trace of what it did until then; so has one that is asked to end.

    Example: kvflow trace record --url http://localhost:30000 --out run.jsonl.gz -- python program.py --fast
    """
    from kvflow.trace import import_trace

    if not context.args:
        raise typer.BadParameter("say which program to run: kvflow trace record --out FILE -- python program.py")
    check_folders(out)
    folder = Path(tempfile.mkdtemp(prefix="kvflow-record-"))
    facts = folder / "facts.jsonl"
    facts.touch()
    environment = {**os.environ, "KVFLOW_RECORD": str(facts)} | ({"KVFLOW_URL": url} if url else {})
    try:
        code = run_program(context.args, environment)
    except OSError as error:
        shutil.rmtree(folder)
        raise typer.BadParameter(f"cannot run {context.args[0]}: {error.strerror}") from None
    bad: list[BadRow] = []
    try:
        header, events = import_trace(facts, "recording", bad.append)
        counts = _write(out, header, events)
    except TraceError as error:
        raise _failure(f"{error}; what was recorded is in {facts}, for kvflow trace convert", code or 1) from None
    shutil.rmtree(folder)
    tell_bad_rows(bad)
    if not counts["llm_call"]:
        raise _failure("the program made no LLM call that kvflow's client saw; see kvflow.instrument", code or 1)
    typer.echo(f"{out}: {_summary(counts)}", err=True)
    raise typer.Exit(code)


def _write(out: Path, header: TraceHeader, events: Iterable[Event]) -> Counter[str]:
    """Write a trace under its name once it is complete; one without LLM calls is not kept."""
    from kvflow.trace import write_trace

    counts: Counter[str] = Counter()

    def counted() -> Iterator[Event]:
        for event in events:
            counts[event.event] += 1
            yield event

    part = out.with_name(f".{os.getpid()}.{out.name}")
    try:
        write_trace(part, header, counted())
        if counts["llm_call"]:
            part.replace(out)
    except OSError as error:
        raise TraceError(f"cannot write {out}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return counts


def _summary(counts: Counter[str]) -> str:
    return (
        f"{counts['workflow_start']} workflows, {counts['llm_call']} LLM calls, {counts['tool_start']} tool calls, "
        f"{counts['spawn']} spawned threads"
    )


def _failure(problem: str, code: int = 1) -> typer.Exit:
    Console(stderr=True).print(f"[red]error[/red] {escape(problem)}", highlight=False)
    return typer.Exit(code)


def _overview(found: dict[str, TraceStats]) -> Table:
    table = Table(caption="p50 / p90 / max; shares of prompt tokens, whole context: of later calls")
    table.add_column("", no_wrap=True)
    for path in found:
        table.add_column(escape(Path(path).name), justify="right")

    def row(label: str, *cells: str) -> None:
        table.add_row(label, *cells)

    each = list(found.values())
    row("workflows", *(f"{one.workflows:,}" for one in each))
    row("LLM calls", *(f"{one.calls:,}" for one in each))
    row("spawned threads", *(f"{one.threads:,}" for one in each))
    row("calls per workflow", *(_spread(one.calls_per_workflow) for one in each))
    row("prompt tokens", *(_spread(one.prompt_tokens) for one in each))
    row("new prompt tokens", *(_spread(one.new_tokens) for one in each))
    row("output tokens", *(_spread(one.output_tokens) for one in each))
    row("kept of earlier calls", *(f"{one.kept_share:.1%}" for one in each))
    row("ideal prefix hit", *(f"{one.ideal_hit_share:.1%}" for one in each))
    row("whole context kept", *(f"{one.whole_context_share:.1%}" for one in each))
    return table


def _tools(path: str, stats: TraceStats) -> Table:
    table = Table(title=f"tools of {escape(Path(path).name)} with the longest total time")
    table.add_column("tool")
    for name in ("calls", "errors", "timed", "seconds p50 / p90 / max", "share of time"):
        table.add_column(name, justify="right")
    total_s = sum(tool.seconds.total for tool in stats.tools)
    for tool in stats.tools[:TOP_TOOLS]:
        table.add_row(
            escape(f"{tool.tool} {tool.verb}" if tool.verb else tool.tool),
            f"{tool.calls:,}",
            f"{tool.errors:,}",
            f"{tool.seconds.count:,}",
            _spread(tool.seconds),
            f"{tool.seconds.total / total_s:.1%}" if total_s else "-",
        )
    return table


def _spread(spread: Spread) -> str:
    values = (spread.p50, spread.p90, spread.max)
    return (
        " / ".join(f"{value:,}" if isinstance(value, int) else f"{value:.3g}" for value in values)
        if spread.count
        else "-"
    )
