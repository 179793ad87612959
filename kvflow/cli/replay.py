"""``kvflow replay``: recorded programs against live servers, arms in turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kvflow.cli.circumstances import circumstances
from kvflow.cli.ending import ended_by_signals
from kvflow.cli.live import ApiKey
from kvflow.cli.reading import check_folders, check_made, check_report, finite, read, told_as_usage, write
from kvflow.errors import ConfigError, KVFlowError

if TYPE_CHECKING:
    from kvflow.replay.arms import Arm
    from kvflow.replay.record import Round
    from kvflow.replay.run import Plan
    from kvflow.replay.server import Engine
    from kvflow.sim.workload import Workload

FILE_WIDTH = 200
"""Characters of a line that goes to a file: nothing is cut off there."""


def replay(
    traces: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="Traces, of any format we read.")],
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME of a known arm, or NAME=SETTINGS; repeatable. "
            "Default: lru, kvflow; with --url silent=no-hints, telling=hints."
        ),
    ] = None,
    launch: Annotated[
        str | None, typer.Option(help="Flags of sglang.launch_server; default is the CPU engine.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="A server that runs already; its cache is flushed!")] = None,
    api_key: ApiKey = None,
    profile: Annotated[
        str | None,
        typer.Option(help="cpu: a tiny model on the CPU engine (default). gpu: an 8B geometry, made-up weights."),
    ] = None,
    flags: Annotated[str, typer.Option(help="Further flags of SGLang for the profile's servers.")] = "",
    device_tokens: Annotated[
        str | None, typer.Option(help="Device tier: tokens, or a share of the live contexts. Profiles: 33%.")
    ] = None,
    host_tokens: Annotated[
        str | None, typer.Option(help="Host tier, likewise; none for no host tier. Profiles: 67%.")
    ] = None,
    link: Annotated[
        float | None,
        typer.Option(
            min=0, callback=finite, help="Bytes per second of the CPU engine's link; 0: no limit. Default 4.9e7."
        ),
    ] = None,
    page_tokens: Annotated[
        int | None, typer.Option(min=1, help="SGLang's page size. Profiles: 16; others are asked for theirs.")
    ] = None,
    programs: Annotated[
        int | None, typer.Option(min=1, help="Programs per round, drawn anew for each. Default 24.")
    ] = (24),
    concurrency: Annotated[
        list[int] | None, typer.Option(min=1, help="Programs at once; repeatable. Default: all of them.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0, callback=finite, help="Programs that arrive a minute. Default: all at once.")
    ] = None,
    scale: Annotated[float, typer.Option(min=0.0001, callback=finite, help="Factor of contexts and answers.")] = 1.0,
    time_scale: Annotated[float, typer.Option(min=0, callback=finite, help="Factor of tools and pauses.")] = 1.0,
    max_gap: Annotated[
        float, typer.Option(min=0, callback=finite, help="Longest tool or pause that is kept, in seconds.")
    ] = 600.0,
    tool_s: Annotated[
        float, typer.Option(min=0, callback=finite, help="Duration of tools whose time is not recorded.")
    ] = 1.0,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of every arm; fewer than three tell no difference from chance.")
    ] = 3,
    keep_servers: Annotated[
        bool, typer.Option("--keep-servers", help="Servers of all arms at once, for many short rounds.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the first round; the next has the next.")] = 0,
    free: Annotated[bool, typer.Option("--free", help="Let the model answer what it likes, as long.")] = False,
    token_ids: Annotated[str, typer.Option(help="Range of token ids prompts are made of.")] = "10:250",
    prompts: Annotated[
        str, typer.Option(help="ids: mere token ids. chat: words, in messages, through the model's chat template.")
    ] = "ids",
    tokenizer: Annotated[str | None, typer.Option(help="For --prompts chat, if not the launched model's.")] = None,
    timeout: Annotated[
        float, typer.Option(min=1, callback=finite, help="Longest time of one call, in seconds.")
    ] = 600.0,
    folder: Annotated[Path, typer.Option(help="Where rounds are kept; those that are over are not played again.")] = (
        Path(".replay")
    ),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Drop the rounds that were kept, and play them again.")
    ] = False,
    json_path: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Write the result here.")] = None,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a report with charts here.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
) -> None:
    """Play recorded programs against live servers, and compare arms.

    Prompts have the recorded lengths and share what they shared; answers are the recorded ones; calls wait for what
    they waited for, tools take their time. docs/replay.md says how to read the numbers.

    Example: kvflow replay runs.jsonl.gz --arm lru --arm kvflow --arm 'mine=@kvflow --kvflow-policy steps'
    """
    from kvflow.cli.planning import Asked, planned, token_range
    from kvflow.replay.arms import parse_arms
    from kvflow.replay.run import Plan
    from kvflow.replay.work import Load, Pace

    console = Console()
    with told_as_usage():
        check_folders(json_path, html)
        check_report(html)
        check_made(folder)
        arms = parse_arms(arm or (), url)
        workload = read(traces, console)
        plan = Plan(
            arms=tuple(arms),
            engine=None,
            load=Load(programs=programs, per_min=rate or None, tokens=scale, time=time_scale),
            pace=Pace(max_gap_s=max_gap, tool_s=tool_s),
            rounds=rounds,
            keep_servers=keep_servers,
            seed=seed,
            free=free,
            token_ids=token_range(token_ids),
            page_tokens=page_tokens,
            timeout_s=timeout,
        )
        asked = Asked(
            launch=launch,
            profile=profile,
            flags=flags,
            device_tokens=device_tokens,
            host_tokens=host_tokens,
            link=link,
            page_tokens=page_tokens,
            prompts=prompts,
            tokenizer=tokenizer,
            folder=folder,
        )
        plans = planned(plan, asked, workload, sorted(set(concurrency)) if concurrency else [None])
    _show(console, plans)
    if dry_run:
        return
    where = circumstances()
    played, status = _play(plans, workload, folder, console, api_key=api_key, fresh=fresh, machine=where["machine"])
    failed = _tell(where | played, json_path, html, console)
    if status or failed:
        raise typer.Exit(status or 1)


def _play(
    plans: Sequence[Plan],
    workload: Workload,
    folder: Path,
    console: Console,
    *,
    api_key: str | None,
    fresh: bool,
    machine: dict[str, Any],
) -> tuple[dict[str, Any], int]:
    """Play, and return the document, of what was over if the replay was broken off, with the exit status then."""
    from kvflow.replay.document import document
    from kvflow.replay.run import claimed, comparable
    from kvflow.replay.run import replay as play

    played: list[tuple[Plan, list[Round]]] = []
    status = 0
    folders = [folder / f"{plan.load.at_once or 'all'}-at-once" for plan in plans]
    try:
        with ended_by_signals(), ExitStack() as claims:
            for plan, own in zip(plans, folders, strict=True):  # before hours are spent on the first
                claims.enter_context(claimed(plan, workload, own, fresh=fresh, machine=machine))
            for plan, own in zip(plans, folders, strict=True):
                rounds: list[Round] = []
                played.append((plan, rounds))
                with (
                    _progress(console) as progress,
                    closing(play(plan, workload, own, progress, api_key=api_key)) as over,
                ):
                    for seen in over:
                        rounds.append(seen)
    except (KVFlowError, KeyboardInterrupt, SystemExit) as error:
        status = _broken_off(error, folder, console, fresh=fresh)
        played = [each for each in (comparable(plan, rounds) for plan, rounds in played) if each[1]]
        if not played:
            raise typer.Exit(status) from None
    rounds = [seen for _, of_plan in played for seen in of_plan]
    kept = sum(seen.kept for seen in rounds)
    if kept:
        told = f"{kept} of {len(rounds)} rounds were kept in {folder} by an earlier run: --fresh plays them again."
        console.print(told, style="yellow", highlight=False, soft_wrap=True)
    return document(played, workload) | {"broken_off": status != 0}, status


def _broken_off(error: BaseException, folder: Path, console: Console, *, fresh: bool) -> int:
    """Say why a replay goes no further, and how it can; returns the exit status."""
    if isinstance(error, KVFlowError):
        console.print(f"[red]error[/red] {escape(str(error))}", highlight=False)
    if not isinstance(error, ConfigError):
        again = "the same command without --fresh" if fresh else "the same command"
        told = f"Rounds that are over are in {folder}: {again} goes on from there, with fewer arms, too."
        console.print(told, highlight=False, soft_wrap=True)
    if isinstance(error, SystemExit):
        return int(error.code or 1)
    return 1 if isinstance(error, KVFlowError) else 130


def _tell(result: dict[str, Any], json_path: Path | None, html: Path | None, console: Console) -> bool:
    """Print and write a result; returns whether calls failed."""
    from kvflow.report import replay_tables, write_replay_html

    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    for table in replay_tables(result):
        console.print(table)
    if json_path:
        write(json_path, lambda: json_path.write_text(json.dumps(result, indent=1)), console)
    if html:
        write(html, lambda: write_replay_html(result, html), console)
    failed = any(arm["measures"]["failed_calls"] for load in result["loads"] for arm in load["arms"])
    if failed:
        console.print("[red]error[/red] calls failed", highlight=False)
    return failed


def _show(console: Console, plans: Sequence[Plan]) -> None:
    for plan in plans:
        notes = plan.notes
        arrivals = f", {plan.load.per_min:g} arriving a minute" if plan.load.per_min else ""
        console.print(
            f"{notes['programs']} programs, {plan.load.at_once or 'all'} at once{arrivals}, {notes['calls']:,} calls, "
            f"{plan.rounds} rounds; {notes['live_tokens']:,} tokens live{_tiers(notes)}",
            highlight=False,
            soft_wrap=True,
        )
    for arm in plans[0].arms:
        console.print(f"  {arm.name}: {escape(_told(arm, plans[0].engine))}", highlight=False, soft_wrap=True)


def _tiers(notes: dict[str, Any]) -> str:
    tiers = [f"{tier} {notes[f'{tier}_tokens']:,}" for tier in ("device", "host") if f"{tier}_tokens" in notes]
    return f": {', '.join(tiers)}" if tiers else ""


def _told(arm: Arm, engine: Engine | None) -> str:
    told = " hints" if arm.hints else " no hints"
    if arm.url is not None or engine is None:
        return f"{arm.url},{told}"
    variables = " ".join(f"{name}={value}" for name, value in arm.env)
    return f"{variables} --device {engine.device} {' '.join(engine.flags_of(arm))},{told}".strip()


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total or None)

        yield show
