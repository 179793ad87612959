"""What the replay benchmarks have in common: each is ``kvflow replay`` with a workload, arms and sizes of its own."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import httpx
from typer.main import get_command

from kvflow.cli import app
from kvflow.replay.arms import PRESETS, Arm
from kvflow.replay.connection import Connection
from kvflow.replay.contents import Contents
from kvflow.replay.player import Player, arrive
from kvflow.replay.record import Round
from kvflow.replay.work import Pace
from kvflow.trace import Program

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAST_LINK = "1.4e9"
"""Bytes per second at which loading a token takes a nineteenth of computing it, as for an 8B model on an H200."""

Further = list[tuple[str, ...]]
"""Options of ``kvflow replay``, each with its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Options of ``kvflow replay`` for one profile.

    Attributes:
        traces: files.
        options: names without dashes, and values.
        arms: unless the user chooses others.
    """

    traces: tuple[Path, ...]
    options: dict[str, str | int | float]
    arms: tuple[str, ...] = ("lru", "no-host", "lpm", "kvflow", "kvflow-infer")

    def words(self, further: Further) -> list[str]:
        """The command line, without the options that the user gives himself."""
        words = [str(path) for path in self.traces]
        for name, value in self.options.items():
            if f"--{name}" not in names(further):
                words += [f"--{name}", str(value)]
        return words


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Options all replay benchmarks have; :func:`read` reads them."""
    made = argparse.ArgumentParser(
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --arm is an option of `kvflow replay`, not short for --arms
        epilog="Options of `kvflow replay` are taken too, anywhere: --rounds, --programs, --json, --dry-run ...",
    )
    made.add_argument("--profile", choices=("cpu", "gpu"), default="cpu", help="a tiny model, or an 8B geometry")
    made.add_argument("--arms", nargs="+", help="instead of the usual ones, as is --arm; all: every arm there is")
    made.add_argument("--fast-link", action="store_true", help="cpu: a link as fast as an H200's, for its speed")
    return made


def read(made: argparse.ArgumentParser, own: Sequence[str] = ()) -> tuple[argparse.Namespace, Further]:
    """Read this process's command line: a benchmark's options, and those of `kvflow replay`. Ends if there are others.

    Args:
        made: knows the benchmark's.
        own: options of `kvflow replay` that the benchmark has itself, beside --profile.
    """
    foreign = {name: flag for name, flag in replay_options().items() if name not in ("--profile", *own)}
    words: list[str] = []
    further: Further = []
    rest = iter(sys.argv[1:])
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in foreign:
            words.append(word)
        elif equals or foreign[name]:
            further.append((word,))
        else:
            further.append((word, *(value for value in (next(rest, None),) if value is not None)))
    return made.parse_args(words), further


def replay_options() -> dict[str, bool]:
    """Options of `kvflow replay`, and whether they have no value."""
    command = get_command(app).commands["replay"]  # pyright: ignore[reportAttributeAccessIssue]
    return {name: getattr(option, "is_flag", False) for option in command.params for name in option.opts}


def names(further: Further) -> set[str]:
    """Which options of `kvflow replay` these are."""
    return {words[0].partition("=")[0] for words in further}


def run(preset: Preset, options: argparse.Namespace, further: Further) -> int:
    """Run ``kvflow replay``, which is also told what asks this process to end; returns its exit status."""
    arms = [*PRESETS] if options.arms == ["all"] else options.arms or ()
    if not arms and "--arm" not in names(further):
        arms = preset.arms
    command = [sys.executable, "-m", "kvflow", "replay", *preset.words(further)]
    if not names(further) & {"--launch", "--url"}:
        command += ["--profile", options.profile]
    if options.fast_link and options.profile == "cpu":
        command += ["--link", FAST_LINK]
    for arm in arms:
        command += ["--arm", arm]
    # A group of its own: a terminal would ask it to end, too, and a second time is one too many.
    with subprocess.Popen([*command, *chain.from_iterable(further)], process_group=0) as replay:
        for number in _ASKING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, lambda number, frame: replay.send_signal(number))
        return replay.wait()


async def play(
    client: httpx.AsyncClient, work: Sequence[Program], pace: Pace, *, hints: bool, at_once: int | None = None
) -> Round:
    """Play programs against a server that runs, in order, so many at once; the model answers what it likes."""
    seen = Round(arm="", index=0, seed=0)
    connection = Connection(client, Arm(name="", hints=hints), free=True, began_s=time.perf_counter())
    player = Player(connection, seen, Contents(), pace, page_tokens=16)
    async with connection.telling():
        arrivals = [(0.0, program, f"{order}:{program.start.workflow}") for order, program in enumerate(work)]
        await arrive(player, arrivals, at_once)
    failed = [call.error for call in seen.calls if call.error]
    if failed:
        raise RuntimeError(f"{len(failed)} calls failed, the first because of: {failed[0]}")
    return seen
