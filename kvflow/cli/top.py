"""``kvflow top``: a running server at a glance, refreshed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from kvflow.cli.live import DEFAULT_URL, ApiKey, Url, connect, get
from kvflow.errors import ServerUnavailableError

_MOST_WORKFLOWS = 20
_SOON_S = 1.0


def top(
    every_s: Annotated[float, typer.Option("--every", min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end; for scripts and bug reports.")] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Show tiers, hits, loads, the link, claims, guard and workflows of a running server.

    Example: kvflow top --url http://127.0.0.1:30000
    """
    console = Console()
    try:
        with connect(url, api_key) as client:
            views = looks(client)
            if once:
                console.print(next(views))
                return
            with Live(next(views), console=console, screen=True, auto_refresh=False) as live:
                while True:
                    time.sleep(every_s)
                    live.update(next(views), refresh=True)
    except ServerUnavailableError as error:
        raise typer.BadParameter(str(error)) from None
    except KeyboardInterrupt:
        return


def looks(client: httpx.Client) -> Iterator[RenderableType]:
    """What there is to see, look by look; rates are those since the look before.

    Raises:
        ServerUnavailableError: there is no answer to the first; later ones show what was seen last.
    """
    before: dict[str, Any] = {}
    before_s = 0.0
    view: RenderableType | None = None
    while True:
        now_s = time.monotonic()
        try:
            status, stats = get(client, "status"), get(client, "stats")
            cache, workflows = get(client, "cache"), get(client, "workflows")
        except ServerUnavailableError as error:
            if view is None:
                raise
            before = {}  # it may come back as another
            told = f"no answer for {time.monotonic() - before_s:.0f} s: {error}"
            yield Group(f"[yellow]{escape(told)}[/yellow]", view)
            continue
        total = stats["total"]
        if before and total["requests"] < before["requests"]:
            before = {}
        passed_s = now_s - before_s if before else 0.0
        view = Group(
            _head(status, total),
            _claims(workflows["workflows"], stats["live_workflows"]),
            _link(total, before, passed_s, len(status["replicas"])),
            _tiers(cache),
            _traffic(total, before, passed_s),
            _workflows(workflows["workflows"], stats["live_workflows"]),
        )
        yield view
        before, before_s = total, now_s


def _head(status: dict[str, Any], total: dict[str, Any]) -> str:
    replicas = status["replicas"]
    policies = ", ".join(sorted({str(replica["policy"]) for replica in replicas}))
    shares = ", ".join(f"{replica['guard']['share']:.0%}" for replica in replicas if replica["guard"])
    line = (
        f"kvflow {status['version']} on SGLang {status['sglang']}: {policies}, trusts predictions for {shares or '-'}"
    )
    if "admission" in total:
        line += f"; {total['admission']['programs']} programs, {total['admission']['held']} requests held"
    if not status["seams_hold"] or status["degraded"]:
        line += "\n[red]something is degraded: see /kvflow/v1/status, or kvflow doctor[/red]"
    return line


def _claims(workflows: list[dict[str, Any]], live: int) -> str:
    """How many contexts are expected again, how soon, and how many of them are kept for it."""
    uses_s = [use["in_s"] for flow in workflows for use in flow["next_use"].values() if use["in_s"] is not None]
    pins = sum(len(flow["pins"]) for flow in workflows)
    soon = sum(in_s < _SOON_S for in_s in uses_s)
    whose = f"{live:,} workflows" if live <= len(workflows) else f"the latest {len(workflows)} of {live:,} workflows"
    return f"claims: {len(uses_s)} contexts of {whose}, {soon} within {_SOON_S:g} s, {pins} pinned"


def _link(total: dict[str, Any], before: dict[str, Any], passed_s: float, replicas: int) -> str:
    """How much of the time contexts were loaded from the host, of all replicas' links."""
    if not passed_s:
        return f"link: {total['load_back_tokens']:,} tokens in {total['load_back_s']:.2f} s since start or reset"
    busy_s = (total["load_back_s"] - before["load_back_s"]) / replicas
    tokens = total["load_back_tokens"] - before["load_back_tokens"]
    return f"link: taken {busy_s / passed_s:.0%} of the time, {tokens / passed_s:,.0f} tokens a second"


def _tiers(cache: dict[str, Any]) -> Table:
    tokens: dict[str, dict[str, int]] = {"device": {}, "host": {}}
    for replica in cache["replicas"]:
        for place, count in replica["tokens"].items():
            tier, cls = place.split("/")
            tokens[tier][cls] = tokens[tier].get(cls, 0) + count
    classes = sorted({cls for held in tokens.values() for cls in held})
    table = Table("tokens cached", *classes, "all", box=None)
    for tier, held in tokens.items():
        cells = [f"{held.get(cls, 0):,}" for cls in classes]
        table.add_row(tier, *cells, f"{sum(held.values()):,}")
    return table


def _traffic(total: dict[str, Any], before: dict[str, Any], passed_s: float) -> Table:
    rows = {
        "requests": ("requests",),
        "prompt tokens": ("prompt_tokens",),
        "found on the device": ("hit_tokens", "device"),
        "found on the host": ("hit_tokens", "host"),
        "computed again": ("recomputed_tokens",),
        "loaded back": ("load_back_tokens",),
        "loaded ahead": ("prefetched_tokens",),
        "  used": ("prefetch_used_tokens",),
        "  late": ("prefetch_late_tokens",),
        "  wasted": ("prefetch_wasted_tokens",),
        "fetched from storage ahead": ("fetched_tokens",),
        "stalled, s": ("stall_s",),
    }
    table = Table("since start or reset", "", "a second", box=None)
    for label, path in rows.items():
        value, old = _at(total, path), _at(before, path)
        digits = 2 if label.endswith("s") and isinstance(value, float) else 0
        rate = f"{(value - old) / passed_s:,.{2 if digits else 1}f}" if before and passed_s else "-"
        table.add_row(label, f"{value:,.{digits}f}", rate)
    return table


def _at(data: dict[str, Any], path: tuple[str, ...]) -> float:
    value: Any = data
    for name in path:
        value = value.get(name, 0) if isinstance(value, dict) else 0
    return value


def _workflows(workflows: list[dict[str, Any]], live: int) -> Table:
    table = Table("workflow", "type", "runs", "next", "pinned", "idle", box=None, title_justify="left")
    for flow in sorted(workflows, key=lambda flow: flow["idle_s"])[:_MOST_WORKFLOWS]:
        ahead = sorted(
            (use["in_s"], agent) for agent, use in flow["next_use"].items() if use["in_s"] and use["in_s"] > 0
        )
        table.add_row(
            escape(flow["workflow_id"]),
            escape(flow["workflow_type"]),
            escape(", ".join(flow["running"])),
            escape(", ".join(f"{agent} in {in_s:.1f} s" for in_s, agent in ahead[:2])),
            escape(", ".join(pin["agent"] for pin in flow["pins"])),
            f"{flow['idle_s']:.1f} s",
        )
    if live > _MOST_WORKFLOWS:
        table.add_row(f"and {live - _MOST_WORKFLOWS:,} more", "", "", "", "", "")
    return table
