"""A replay: rounds of every arm in turns, each of them kept on disk as soon as it is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kvflow.config import CONFIG_VARIABLE
from kvflow.errors import ConfigError
from kvflow.patches.cpu.link import DirectionStatistics
from kvflow.patches.cpu.publish import SETTLED_S
from kvflow.replay.arms import Arm
from kvflow.replay.chat import chat_contents
from kvflow.replay.connection import Connection
from kvflow.replay.contents import HIGH, LOW, Contents
from kvflow.replay.folder import claim, file_digests, held, read_round, round_path, write_round
from kvflow.replay.player import Player, arrive
from kvflow.replay.preparing import Ready, prepare
from kvflow.replay.record import Round
from kvflow.replay.server import Engine, Running, serving
from kvflow.replay.watching import counted, reached, watched
from kvflow.replay.work import Load, Pace
from kvflow.sim.workload import Workload

_MACHINE = ("cpu", "cores", "gpus")
"""What of a machine times depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is replayed.

    Attributes:
        arms: the first is the one the others are compared with.
        engine: how servers are launched; None if every arm has a URL.
        rounds: of every arm.
        keep_servers: the servers of all arms stay up until the end, instead of one at a time for its round.
        seed: of the first round; round n draws programs and arrivals with ``seed + n``, the same for all arms.
        free: let the model answer what it likes.
        token_ids: of which prompts are made, from the first to below the second.
        chat: the model (folder or name) whose words and chat template make the prompts; None for mere token ids.
        page_tokens: of the servers; None to ask them.
        timeout_s: a call takes no longer.
        notes: settings that were resolved into the others, for the result.
    """

    arms: tuple[Arm, ...]
    engine: Engine | None
    load: Load
    pace: Pace = field(default_factory=Pace)
    rounds: int = 1
    keep_servers: bool = False
    seed: int = 0
    free: bool = False
    token_ids: tuple[int, int] = (LOW, HIGH)
    chat: str | None = None
    page_tokens: int | None = None
    timeout_s: float = 600.0
    notes: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain form, for the result; of the model's path only the last part, since the rest says nothing elsewhere."""
        plain = asdict(self)
        if self.engine is not None and Path(self.engine.model).is_absolute():
            plain["engine"]["model"] = Path(self.engine.model).name
        if self.chat is not None and Path(self.chat).is_absolute():
            plain["chat"] = Path(self.chat).name
        return plain


Progress = Callable[[str, int, int], None]
"""Told what is going on, calls answered so far, and calls in all."""


@contextlib.contextmanager
def claimed(
    plan: Plan, workload: Workload, folder: Path, *, fresh: bool = False, machine: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Keep a folder to this process for the length of a ``with`` block, in which the plan may be replayed.

    Args:
        plan: what will be done.
        workload: programs to draw from.
        folder: made if it is not there.
        fresh: drop the rounds that were kept, so that they are played again.
        machine: the one that this is; rounds of launched servers are kept for it alone.

    Raises:
        ConfigError: another replay has the folder, or it holds rounds of another plan (arms may have come or left),
            other traces, another machine, or another kvflow or SGLang.
    """
    marked = asdict(replace(plan, rounds=0, notes={})) | {"arms": {arm.slug: asdict(arm) for arm in plan.arms}}
    if machine is not None and plan.engine is not None:
        marked["machine"] = {name: machine.get(name) for name in _MACHINE}
    if plan.engine is not None:
        marked["settings files"] = file_digests(_settings_files(plan.arms, plan.engine))
    with held(folder):
        claim(folder, marked, workload, fresh=fresh)
        yield


def replay(
    plan: Plan, workload: Workload, folder: Path, progress: Progress, *, api_key: str | None = None
) -> Generator[Round, None, None]:
    """Play all rounds of all arms that have not been played yet, as long as the next one is asked for.

    Args:
        plan: what to do.
        workload: programs to draw from.
        folder: :func:`claimed`; rounds that are over are kept here, and not played again; logs, too.
        progress: told of every call.
        api_key: servers want, if they do; it is written nowhere.

    Yields:
        Rounds as they are over, those played before included.

    Raises:
        ConfigError: a found server has pages of another size than it was said to have, or a model is to be made where
            files of somebody else are.
        ServerUnavailableError: a server did not start, cannot do what its arm needs, or died; rounds that were over
            by then are kept.
    """
    if plan.engine is not None:
        plan.engine.make_model()  # which the prompts of found servers may be told by, too
    works = {index: plan.load.drawn(workload, plan.seed + index) for index in range(plan.rounds)}
    calls = {index: sum(len(program.calls) for program in work) for index, work in works.items()}
    total = len(plan.arms) * sum(calls.values())
    before = 0
    with contextlib.ExitStack() as kept:
        servers = _servers(plan, folder, kept, api_key)
        for index, arm in _turns(plan):
            path = round_path(folder, index, arm)
            label = f"round {index + 1} of {plan.rounds}, {arm.name}"
            if path.exists():
                before += calls[index]
                progress(f"{label}: played before", before, total)
                yield read_round(path)
                continue
            progress(f"{label}: starting", before, total)
            seen = Round(arm=arm.name, index=index, seed=plan.seed + index)

            def answered(name: str = label, sofar: int = before, record: Round = seen) -> None:
                progress(name, sofar + len(record.calls), total)

            with servers(arm) as running:
                asyncio.run(_play(plan, running, seen, works[index], answered))
            write_round(path, seen)
            before += calls[index]
            yield seen


def comparable(plan: Plan, rounds: Sequence[Round]) -> tuple[Plan, list[Round]]:
    """Choose what can be compared of a replay that was broken off: arms that have a round, and rounds they all have."""
    of_arm = {arm.name: [seen for seen in rounds if seen.arm == arm.name] for arm in plan.arms}
    arms = tuple(arm for arm in plan.arms if of_arm[arm.name])
    least = min((len(of_arm[arm.name]) for arm in arms), default=0)
    return replace(plan, arms=arms, rounds=least), [seen for arm in arms for seen in of_arm[arm.name][:least]]


def _settings_files(arms: Sequence[Arm], engine: Engine) -> set[str]:
    """Files that tell launched servers their settings; that of the shell is for all of them."""
    found = {path for arm in arms if arm.url is None for path in engine.settings_files(arm)}
    return found | set(filter(None, [os.environ.get(CONFIG_VARIABLE)]))


def _servers(
    plan: Plan, folder: Path, kept: contextlib.ExitStack, api_key: str | None
) -> Callable[[Arm], contextlib.AbstractContextManager[Running]]:
    """How rounds come by their servers: each starts its own, or those that were started run on until the end."""
    started: dict[str, Running] = {}

    def running(arm: Arm) -> contextlib.AbstractContextManager[Running]:
        server = serving(arm, plan.engine, folder, api_key)
        if not plan.keep_servers:
            return server
        if arm.name not in started:
            started[arm.name] = kept.enter_context(server)
        return contextlib.nullcontext(started[arm.name])

    return running


async def _play(plan: Plan, running: Running, seen: Round, work: Sequence[Any], answered: Callable[[], None]) -> None:
    async with running.client(plan.timeout_s) as client:
        ready = await prepare(running, client, free=plan.free)
        page_tokens = _page_tokens(plan, running, ready)
        seen.device_tokens = ready.device_tokens
        before = running.link()
        began_s = time.perf_counter()
        connection = Connection(client, running.arm, free=plan.free, began_s=began_s, timeout_s=plan.timeout_s)
        player = Player(connection, seen, _contents(plan), plan.pace, page_tokens, answered)
        async with watched(running, client, seen):
            async with connection.telling():
                await arrive(player, plan.load.arrivals(work, seen.seed), plan.load.at_once)
                await reached(running, client, seen, connection.lost, connection.refused)
            if ready.kvflow:
                await counted(client, seen, ready)
        if before is not None:
            await asyncio.sleep(SETTLED_S)
            _enter_loads(seen, (running.link() or before).since(before), plan.engine)


def _enter_loads(seen: Round, loads: DirectionStatistics, engine: Engine | None) -> None:
    seen.stall_s = loads.stalled_s
    if engine is not None and engine.token_bytes is not None:
        seen.loaded_tokens = loads.copied_bytes // engine.token_bytes


def _page_tokens(plan: Plan, running: Running, ready: Ready) -> int:
    """A launched server may have had its reasons to change the page size; a found one has to have the right one."""
    if running.process is None and plan.page_tokens is not None and ready.page_tokens not in (None, plan.page_tokens):
        raise ConfigError(
            f"{running.arm.name}: pages of {running.url} have {ready.page_tokens} tokens, "
            f"--page-tokens is {plan.page_tokens}: leave it out"
        )
    return ready.page_tokens or plan.page_tokens or 16


def _contents(plan: Plan) -> Contents:
    return Contents(*plan.token_ids) if plan.chat is None else chat_contents(plan.chat)


def _turns(plan: Plan) -> Iterator[tuple[int, Arm]]:
    """Rounds begin with another arm each, so that what drifts hits all of them."""
    for index in range(plan.rounds):
        shift = index % len(plan.arms)
        yield from ((index, arm) for arm in (*plan.arms[shift:], *plan.arms[:shift]))
