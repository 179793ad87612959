"""``kvflow replay``: recorded programs against live servers, arms in turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kvflow.cli.circumstances import circumstances
from kvflow.cli.ending import ended_by_signals
from kvflow.cli.reading import check_folders, read, told_as_usage, write
from kvflow.errors import ConfigError, KVFlowError

if TYPE_CHECKING:
    from kvflow.replay.arms import Arm
    from kvflow.replay.engines import Sizes
    from kvflow.replay.run import Plan
    from kvflow.replay.server import Engine
    from kvflow.sim.workload import Workload

DEVICE_SIZE, HOST_SIZE = "33%", "67%"
FILE_WIDTH = 200
"""Characters of a line that goes to a file: nothing is cut off there."""
LINK_BYTES_S = 3.4e7
"""Of the CPU engine: loading 2,048 tokens takes it as long as decoding 32, KVFlow's ratio."""


def replay(
    traces: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="Traces, of any format we read.")],
    arm: Annotated[
        list[str] | None, typer.Option(help="NAME of a known arm, or NAME=SETTINGS; repeatable. Default: lru, kvflow.")
    ] = None,
    launch: Annotated[
        str | None, typer.Option(help="Flags of sglang.launch_server; default is the CPU engine.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="A server that runs already; its cache is flushed!")] = None,
    profile: Annotated[
        str, typer.Option(help="cpu: a tiny model on the CPU engine. gpu: an 8B geometry, made-up weights.")
    ] = "cpu",
    flags: Annotated[str, typer.Option(help="Further flags of SGLang for the profile's servers.")] = "",
    device_tokens: Annotated[
        str | None, typer.Option(help="Device tier: tokens, or a share of the live contexts. Profiles: 33%.")
    ] = None,
    host_tokens: Annotated[
        str | None, typer.Option(help="Host tier, likewise; none for no host tier. Profiles: 67%.")
    ] = None,
    link: Annotated[float, typer.Option(min=0, help="Bytes per second of the CPU engine's link; 0: no limit.")] = (
        LINK_BYTES_S
    ),
    page_tokens: Annotated[int, typer.Option(min=1, help="SGLang's page size.")] = 16,
    programs: Annotated[
        int | None, typer.Option(min=1, help="Programs per round, drawn anew for each. Default 24.")
    ] = (24),
    concurrency: Annotated[
        list[int] | None, typer.Option(min=1, help="Programs at once; repeatable. Default: all of them.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0, help="Programs that arrive a minute. Default: all at once.")] = (
        None
    ),
    scale: Annotated[float, typer.Option(min=0.0001, help="Factor of contexts and answers.")] = 1.0,
    time_scale: Annotated[float, typer.Option(min=0, help="Factor of tools and pauses.")] = 1.0,
    max_gap: Annotated[float, typer.Option(min=0, help="Longest tool or pause that is kept, in seconds.")] = 600.0,
    tool_s: Annotated[float, typer.Option(min=0, help="Duration of tools whose time is not recorded.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of every arm.")] = 2,
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
    timeout: Annotated[float, typer.Option(min=1, help="Longest time of one call, in seconds.")] = 600.0,
    folder: Annotated[Path, typer.Option(help="Where rounds are kept; those that are over are not played again.")] = (
        Path(".replay")
    ),
    json_path: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Write the result here.")] = None,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a report with charts here.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
) -> None:
    """Play recorded programs against live servers, and compare arms.

    Prompts have the recorded lengths and share what they shared; answers are the recorded ones; calls wait for what
    they waited for, tools take their time. docs/replay.md says how to read the numbers.

    Example: kvflow replay runs.jsonl.gz --arm lru --arm kvflow --arm 'mine=@kvflow --kvflow-policy steps'
    """
    from kvflow.replay.arms import DEFAULT, parse_arms
    from kvflow.replay.run import Plan
    from kvflow.replay.work import Load, Pace

    console = Console()
    with told_as_usage():
        check_folders(json_path, html)
        arms = parse_arms(arm or DEFAULT)
        if url is not None:
            arms = [replace(each, url=each.url or url.rstrip("/")) for each in arms]
        workload = read(traces, console)
        load = Load(programs=programs, per_min=rate or None, tokens=scale, time=time_scale)
        plan = Plan(
            arms=tuple(arms),
            engine=None,
            load=load,
            pace=Pace(max_gap_s=max_gap, tool_s=tool_s),
            rounds=rounds,
            keep_servers=keep_servers,
            seed=seed,
            free=free,
            token_ids=_range(token_ids),
            page_tokens=page_tokens,
            timeout_s=timeout,
        )
        loads: list[int | None] = [*sorted(concurrency)] if concurrency else [None]
        plans = [replace(plan, load=replace(load, at_once=at_once)) for at_once in loads]
        sized = []
        found, own = all(each.url for each in arms), launch is not None
        for each in plans:
            sizes = None
            if not found and not (own and device_tokens is None):
                sizes = _sizes(each, workload, device_tokens or DEVICE_SIZE, host_tokens or HOST_SIZE, link)
            engine = None if found else _engine(launch, profile, folder, sizes, flags)
            chat = _chat(prompts, tokenizer, engine)
            sized.append(replace(each, engine=engine, chat=chat, notes=_notes(each, sizes, workload)))
    _show(console, sized)
    if dry_run:
        return
    result = circumstances() | _play(sized, workload, folder, console)
    from kvflow.report import replay_tables, write_replay_html

    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    for table in replay_tables(result):
        console.print(table)
    if json_path:
        write(json_path, lambda: json_path.write_text(json.dumps(result, indent=1)), console)
    if html:
        write(html, lambda: write_replay_html(result, html), console)


def _play(plans: Sequence[Plan], workload: Workload, folder: Path, console: Console) -> dict[str, object]:
    from kvflow.replay.document import document
    from kvflow.replay.run import replay as play

    played = []
    try:
        for plan in plans:
            own = folder / f"{plan.load.at_once or 'all'}-at-once"
            with ended_by_signals(), _progress(console) as progress:
                played.append((plan, play(plan, workload, own, progress)))
    except KVFlowError as error:
        console.print(f"[red]error[/red] {escape(str(error))}", highlight=False)
        console.print(f"Rounds that are over are in {folder}: the same command goes on from there.", highlight=False)
        raise typer.Exit(1) from None
    return document(played, workload)


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    if not (low.isdecimal() and high.isdecimal() and int(high) - int(low) > 1):
        raise ConfigError(f"--token-ids is {text!r}: give the smallest and the one after the largest, e.g. 10:250")
    return int(low), int(high)


def _sizes(plan: Plan, workload: Workload, device: str, host: str, link: float) -> Sizes:
    from kvflow.replay.engines import Sizes
    from kvflow.replay.work import live_tokens, longest_request
    from kvflow.sim.workload import parse_size

    work = plan.load.drawn(workload, plan.seed)
    live, page = live_tokens(work, plan.load.at_once), plan.page_tokens
    longest = max(longest_request(plan.load.drawn(workload, plan.seed + n)) for n in range(plan.rounds))
    # A request that does not fit alone would be refused; one that fits barely would wait for all others.
    tokens = max(parse_size(device).resolve(live), longest + longest // 4 + 2 * page)
    return Sizes(
        device_tokens=-(-tokens // page) * page,
        host_tokens=parse_size(host).resolve(live),
        page_tokens=page,
        link_bytes_s=link,
    )


def _engine(launch: str | None, profile: str, folder: Path, sizes: Sizes | None, flags: str) -> Engine:
    from kvflow.replay.engines import cpu_engine, gpu_engine, user_engine

    if launch is not None or sizes is None:
        return user_engine(launch or "", sizes)
    engines = {"cpu": cpu_engine, "gpu": gpu_engine}
    if profile not in engines:
        raise ConfigError(f"--profile is {profile!r}: give cpu or gpu")
    return engines[profile](folder, sizes, flags)


def _chat(prompts: str, tokenizer: str | None, engine: Engine | None) -> str | None:
    """The model whose chat template is used, if one is."""
    if prompts not in ("ids", "chat"):
        raise ConfigError(f"--prompts is {prompts!r}: give ids or chat")
    if prompts == "ids":
        return None
    model = tokenizer or (engine.model if engine else None)
    if model is None:
        raise ConfigError("--prompts chat needs the model's tokenizer: give its folder or name by --tokenizer")
    from kvflow.replay.chat import chat_contents

    chat_contents(model)
    return model


def _notes(plan: Plan, sizes: Sizes | None, workload: Workload) -> dict[str, object]:
    from kvflow.replay.work import live_tokens

    work = plan.load.drawn(workload, plan.seed)
    tiers: dict[str, object] = {}
    if sizes is not None:
        tiers |= {name: value for name, value in asdict(sizes).items() if name != "page_tokens"}
    return tiers | {
        "live_tokens": round(live_tokens(work, plan.load.at_once)),
        "calls": sum(len(program.calls) for program in work),
        "programs": len(work),
    }


def _show(console: Console, plans: Sequence[Plan]) -> None:
    for plan in plans:
        notes = plan.notes
        console.print(
            f"{notes['programs']} programs, {plan.load.at_once or 'all'} at once, {notes['calls']:,} calls, "
            f"{plan.rounds} rounds; {notes['live_tokens']:,} tokens live{_tiers(notes)}",
            highlight=False,
            soft_wrap=True,
        )
    for arm in plans[0].arms:
        console.print(f"  {arm.name}: {escape(_told(arm, plans[0].engine))}", highlight=False, soft_wrap=True)


def _tiers(notes: dict[str, Any]) -> str:
    if "device_tokens" not in notes:
        return ""
    return f": device {notes['device_tokens']:,}, host {notes['host_tokens']:,}"


def _told(arm: Arm, engine: Engine | None) -> str:
    told = " hints" if arm.hints else " no hints"
    if arm.url is not None or engine is None:
        return f"{arm.url},{told}"
    variables = " ".join(f"{name}={value}" for name, value in arm.env)
    flags = [*engine.flags, *(engine.host_flags if arm.host else ()), *arm.flags]
    return f"{variables} --device {engine.device} {' '.join(flags)},{told}".strip()


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total or None)

        yield show
