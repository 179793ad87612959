"""``kvflow simulate``: programs of traces against a simulated server, under several eviction orders."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvflow.cli.circumstances import circumstances
from kvflow.cli.reading import check_folders, check_report, finite, read, told_as_usage, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvflow.sim.admission import Admission
    from kvflow.sim.compare import Plan, Setup
    from kvflow.sim.workload import Size, Workload

DEFAULT_SEEDS = 3
DEFAULT_CONCURRENCY = 16
DEFAULT_DEVICE = ("50%",)
SWEEP_DEVICES = ("30%", "50%", "70%")
SIZE_HELP = "tokens (400k, 1.5M) or a share of the live contexts (50%); several: repeat, or 30%,50%"


def simulate(
    traces: Annotated[
        list[Path], typer.Argument(exists=True, dir_okay=False, help="Traces, of kvflow's format or importable.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Eviction order; repeatable. Default: lru, steps, ttl, saga, cost, belady."),
    ] = None,
    device_tokens: Annotated[list[str] | None, typer.Option(help=f"Device size: {SIZE_HELP}. Default 50%.")] = None,
    host_tokens: Annotated[list[str] | None, typer.Option(help="Host tier, likewise, or none. Default none.")] = None,
    storage_tokens: Annotated[str, typer.Option(help="Storage tier below the host tier: one size.")] = "none",
    concurrency: Annotated[
        list[int] | None, typer.Option(min=1, help="Programs that run at a time; repeatable. Default 16.")
    ] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Device sizes 30%, 50% and 70%, unless given.")] = False,
    profile: Annotated[str, typer.Option(help="How fast the server is: h200, a100, or a JSON file.")] = "h200",
    model: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="config.json of the model; default Llama 3.1 8B.")
    ] = None,
    admission: Annotated[
        str,
        typer.Option(
            help="Whose requests run: everyone's in turn (fcfs), or by what they have in the cache (lpm), or those of "
            "the programs that fit (workflow)."
        ),
    ] = "fcfs",
    prefetch: Annotated[bool, typer.Option(help="Load contexts back ahead of use, where predictions say so.")] = False,
    guard: Annotated[bool, typer.Option(help="Let the guard bound what predictions can cost.")] = True,
    seed: Annotated[list[int] | None, typer.Option(help="Seed of the programs' order; repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="So many seeds, from 0. Default 3.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Programs per seed; every seed draws others.")] = None,
    repeat: Annotated[
        int,
        typer.Option(min=1, help="Play the traces so many times, each time as new workflows with texts of their own."),
    ] = 1,
    tool_s: Annotated[
        float, typer.Option(min=0, callback=finite, help="Median of tool durations the traces lack.")
    ] = 1.0,
    tool_spread: Annotated[
        float,
        typer.Option(min=0, callback=finite, help="How far these vary: standard deviation of their logarithm."),
    ] = 1.0,
    delay_s: Annotated[
        float, typer.Option(min=0, callback=finite, help="Client time between events the traces lack.")
    ] = 0.0,
    max_delay_s: Annotated[
        float, typer.Option(min=0, callback=finite, help="Longest recorded pause or tool that is kept.")
    ] = 600.0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; by default one per core.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Write all numbers here.")] = None,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a report with charts here.")] = None,
) -> None:
    """Simulate a server with different eviction orders and compare what they lose.

    Options that are repeated form a grid. docs/simulator.md says what is simulated and how to read the numbers.

    Example: kvflow simulate runs.jsonl.gz --sweep --host-tokens none --host-tokens 200% --html report.html
    """
    from kvflow.report import simulation_tables, write_simulation_html
    from kvflow.sim import Waits, load_profile
    from kvflow.sim.compare import DEFAULT_POLICIES, Plan, check, compare, grid
    from kvflow.sim.summary import document

    console = Console()
    with told_as_usage():
        check_folders(json_path, html)
        check_report(html)
        workload = read(traces, console).repeated(repeat)
        setups = grid(
            workload,
            devices=_sizes(device_tokens or (SWEEP_DEVICES if sweep else DEFAULT_DEVICE)),
            hosts=_sizes(host_tokens or ["none"]),
            storages=_sizes([storage_tokens]),
            concurrencies=concurrency or [DEFAULT_CONCURRENCY],
            limit=limit,
        )
        plan = Plan(
            profile=load_profile(profile, model),
            setups=setups,
            policies=tuple(policy or DEFAULT_POLICIES),
            seeds=_seeds(seed, seeds),
            limit=limit,
            admission=cast("Admission", admission),  # checked below
            prefetch=prefetch,
            guard=guard,
            waits=Waits(tool_s=tool_s, tool_spread=tool_spread, delay_s=delay_s, max_delay_s=max_delay_s),
        )
        check(plan, workload)
    _show_plan(console, plan, workload)
    with _progress(console, plan, workload) as on_progress:
        runs = compare(plan, workload, jobs=jobs or os.cpu_count() or 1, on_progress=on_progress)
    result = circumstances() | document(plan, workload, runs)
    for table in simulation_tables(result):
        console.print(table)
    if json_path:
        write(json_path, lambda: json_path.write_text(json.dumps(result)), console)
    if html:
        write(html, lambda: write_simulation_html(result, html), console)


def _sizes(texts: Iterable[str]) -> list[Size]:
    """Sizes of a repeatable option; commas separate several in one."""
    from kvflow.sim.workload import parse_size

    return [parse_size(part) for text in texts for part in text.split(",")]


def _seeds(seed: list[int] | None, seeds: int | None) -> tuple[int, ...]:
    if seed and seeds:
        raise typer.BadParameter("give either --seed or --seeds")
    return tuple(dict.fromkeys(seed)) if seed else tuple(range(seeds or DEFAULT_SEEDS))


def _show_plan(console: Console, plan: Plan, workload: Workload) -> None:
    """Print the sizes that came of shares, and what does not fit."""
    from kvflow.report.simulation_record import amount

    programs = min(plan.limit or len(workload.programs), len(workload.programs))
    console.print(
        f"{plan.simulations} simulations: {len(plan.all_policies)} policies, "
        f"{len(plan.seeds)} seeds, {programs} programs each; profile {escape(plan.profile.name)}, "
        f"admission {plan.admission}; a program's longest context has {workload.context_tokens:,.0f} tokens on average",
        highlight=False,
        soft_wrap=True,
    )
    for setup in plan.setups:
        console.print(
            f"  {setup.concurrency} at a time: device {amount(setup.device_tokens, setup.device_size)}, "
            f"host {amount(setup.host_tokens, setup.host_size)}, "
            f"storage {amount(setup.storage_tokens, setup.storage_size)}{_misfits(setup, plan, workload)}",
            highlight=False,
            soft_wrap=True,
        )


def _misfits(setup: Setup, plan: Plan, workload: Workload) -> str:
    count = workload.too_long(setup.device_tokens, plan.settings(setup, "lru", 0).page_tokens)
    if not count:
        return ""
    longest = workload.request_tokens[-1]
    return f"; [yellow]{count:,} requests do not fit (the longest has {longest:,} tokens) and are rejected[/yellow]"


@contextmanager
def _progress(console: Console, plan: Plan, workload: Workload) -> Iterator[Callable[[int, int], None]]:
    """A bar of LLM calls, refreshed by hand: processes that are forked must not meet a thread of ours."""
    share = min(plan.limit or len(workload.programs), len(workload.programs)) / len(workload.programs)
    total = round(len(workload.request_tokens) * share * plan.simulations)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task(f"0 of {plan.simulations}", total=total)

        def show(runs: int, calls: int) -> None:
            known = calls if runs == plan.simulations else max(total, calls)
            bar.update(task, description=f"{runs} of {plan.simulations}", completed=calls, total=known, refresh=True)

        yield show
