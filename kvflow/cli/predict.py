"""``kvflow predict``: see how well kvflow's models predict what programs do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvflow.cli.reading import tell_bad_rows
from kvflow.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from kvflow.predict.evaluate import Evaluation
    from kvflow.predict.trials.agents import AgainScores, AgentScores
    from kvflow.predict.trials.tools import ToolScores
    from kvflow.predict.trials.uses import UseScores

app = typer.Typer(help="See how well kvflow predicts what programs do.", no_args_is_help=True)


@app.callback()
def _predict() -> None:
    """Keep ``eval`` a command of its own: Typer would leave out the name of an only one."""


@app.command("eval")
def evaluation(
    traces: Annotated[list[Path], typer.Argument(help="Traces, of kvflow's own format or any it can import.")],
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Predict every event of the traces from those before it, and compare.

    Nothing is learned from one trace for the next. docs/prediction.md explains the numbers.
    """
    from rich.console import Console

    from kvflow.predict.evaluate import evaluate
    from kvflow.trace import BadRow, open_trace

    bad_rows: list[BadRow] = []
    results = []
    for path in traces:
        try:
            header, events = open_trace(path, bad_rows.append)
            results.append((path, header.source, evaluate(events)))
        except TraceError as error:
            raise typer.BadParameter(str(error)) from None
    tell_bad_rows(bad_rows)
    if as_json:
        report = [{"trace": str(path), "source": source, **scores.to_dict()} for path, source, scores in results]
        typer.echo(json.dumps(report, indent=2))
        return
    console = Console()
    for path, source, scores in results:
        console.print(
            f"{path} ({source}): {scores.workflows} workflows, {scores.llm_calls} LLM calls",
            style="bold",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        _show(console, scores)


def _show(console: Console, scores: Evaluation) -> None:
    if scores.tools is not None:
        _show_tools(console, scores.tools)
    if scores.agents is not None:
        _show_agents(console, scores.agents)
    if scores.again is not None:
        _show_again(console, scores.again)
    if scores.uses:
        _show_uses(console, scores.uses)


def _show_tools(console: Console, tools: ToolScores) -> None:
    rows = [
        ("by tool", *map(_number, tools.by_tool_auc.values())),
        ("by verb", *map(_number, tools.by_verb_auc.values())),
    ]
    for name, model in (("others", tools.left_out), ("online", tools.online)):
        if model is not None:
            shares = map(_percent, model.coverage.values())
            losses = map(_number, model.log_loss.values())
            rows.append((name, *map(_number, model.auc.values()), *losses, *shares, _number(model.error_factor)))
    columns = ("", "AUC 2 s", "AUC 10 s", "loss 2 s", "loss 10 s", "in 50%", "in 80%", "in 95%", "factor")
    long_calls = ", ".join(f"{count} over {limit_s:g} s" for limit_s, count in tools.long_calls.items())
    _table(console, f"Tool durations: {tools.calls} calls, {long_calls}", columns, rows)


def _show_agents(console: Console, agents: AgentScores) -> None:
    rows = [(str(order), _percent(each.accuracy), _number(each.log_loss)) for order, each in agents.orders.items()]
    title = f"Next agent: {agents.steps} steps, {agents.unseen} of agents not seen before"
    _table(console, title, ("order", "right", "loss"), rows)


def _show_again(console: Console, again: AgainScores) -> None:
    rows = [(str(each.count), _percent(each.predicted), _percent(each.observed)) for each in again.bins]
    title = (
        f"Used again: {again.uses} uses, {_percent(again.share)} followed by another; Brier {_number(again.brier)} "
        f"(a constant: {_number(again.base_brier)}), loss {_number(again.log_loss)}"
    )
    _table(console, title, ("uses", "predicted", "observed"), rows)
    console.print("η: " + ", ".join(f"{name} {eta:.2f}" for name, eta in again.eta.items()))


def _show_uses(console: Console, uses: dict[str, UseScores]) -> None:
    rows = [
        (
            kind,
            str(each.forecasts),
            _percent(each.used),
            _number(each.brier),
            _percent(each.covered),
            _percent(each.below_median),
            *map(_number, each.auc.values()),
        )
        for kind, each in uses.items()
    ]
    columns = ("by", "cases", "used", "Brier", "in 80%", "< median", "AUC 2 s", "AUC 10 s", "AUC 60 s")
    _table(console, "Time of the next use", columns, rows)


def _table(console: Console, title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    console.print(title, soft_wrap=True, highlight=False)
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"
