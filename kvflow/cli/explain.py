"""``kvflow explain``: why contexts were evicted, loaded and held back lately, and who waited for loads how long."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvflow.cli.live import DEFAULT_URL, ApiKey, Url, connect, get
from kvflow.errors import ServerUnavailableError


def explain(
    workflow: Annotated[str | None, typer.Argument(help="Workflow id; default all of them.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Latest decisions to show.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Say why a running server evicted, loaded or held back contexts lately.

    Example: kvflow explain my-workflow --limit 20
    """
    try:
        with connect(url, api_key) as client:
            answer = get(client, "explain", workflow_id=workflow, limit=limit)
    except ServerUnavailableError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    console = Console()
    for number, replica in enumerate(answer["replicas"]):
        if len(answer["replicas"]) > 1:
            console.print(f"replica {number}")
        stalled = replica["stalled"]["workflows"]
        if not replica["entries"] and not stalled:
            console.print("nothing was evicted, loaded or held back lately")
            continue
        if replica["entries"]:
            console.print(table_of(replica))
        if stalled:
            console.print(stalls_of(replica))
        console.print(waits_of(replica))


def table_of(replica: dict[str, Any]) -> Table:
    """One replica's decisions, the oldest first."""
    table = Table("s ago", "what", "tokens", "workflow / agent", "why", box=None)
    table.columns[0].justify = table.columns[2].justify = "right"
    for entry in replica["entries"]:
        owners = "\n".join(" / ".join(filter(None, owner)) for owner in entry["owners"]) or "-"
        ago_s = replica["now_s"] - entry["at_s"]
        table.add_row(f"{ago_s:.2f}", entry["event"], f"{entry['tokens']:,}", escape(owners), escape(entry["reason"]))
    return table


def stalls_of(replica: dict[str, Any]) -> Table:
    """Which workflows waited for loads, those that did longest first, and their latest request that did."""
    table = Table("s for loads", "requests", "workflow", "latest", box=None)
    table.columns[0].justify = table.columns[1].justify = "right"
    latest = {stall["workflow_id"]: stall for stall in replica["stalled"]["requests"]}
    for stall in replica["stalled"]["workflows"]:
        last = latest.get(stall["workflow_id"])
        told = f"{last['seconds']:.3f} s, {last['agent']}, request {last['request_id']}" if last else "-"
        table.add_row(f"{stall['seconds']:.2f}", str(stall["requests"]), escape(stall["workflow_id"]), escape(told))
    return table


def waits_of(replica: dict[str, Any]) -> str:
    """What its decisions have cost in time, in a line."""
    stalled_s = sum(stall["seconds"] for stall in replica["stalled"]["workflows"])
    turn_s = sum(entry["seconds"] for entry in replica["entries"] if entry["event"] == "let in")
    return f"waited {stalled_s:.2f} s for loads and {turn_s:.2f} s for a turn, as far as shown"
