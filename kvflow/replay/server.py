"""The servers of a replay: started or found, warmed up, emptied, watched."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from kvflow.client.server import KEEPALIVE_S
from kvflow.errors import ServerUnavailableError
from kvflow.patches.cpu.launch import ServerProcess, launch_server
from kvflow.patches.cpu.link import Direction
from kvflow.patches.cpu.publish import read_statistics
from kvflow.replay.arms import Arm
from kvflow.replay.forcing import FLAG
from kvflow.replay.record import Round

_EMPTY_TIMEOUT_S = 60.0
_WATCH_S = 1.0
_DEAD_AFTER = 30
"""Checks of its health that fail in a row; a busy server may be slow to answer."""
_WARM = [9] * 256
"""Token ids of the prompt by which a server is warmed up and an empty cache is told from one that is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How servers are launched.

    Attributes:
        model: for ``--model-path``.
        flags: of SGLang, shared by all arms.
        host_flags: those of the host tier, for arms that have one.
        env: variables, shared by all arms.
        ready_s: how long a server may take to start.
    """

    model: str
    device: str = "cpu"
    flags: tuple[str, ...] = ()
    host_flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ready_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server of an arm.

    Attributes:
        process: None for one that was found.
        link_path: file with what the CPU engine measures of its link; None elsewhere.
    """

    arm: Arm
    url: str
    process: ServerProcess | None = None
    link_path: Path | None = None

    def client(self, timeout_s: float) -> httpx.AsyncClient:
        """Make a client; each request may take so long."""
        limits = httpx.Limits(max_connections=4096, max_keepalive_connections=512, keepalive_expiry=KEEPALIVE_S)
        return httpx.AsyncClient(base_url=self.url, timeout=timeout_s, limits=limits, trust_env=False)

    def stall_s(self) -> float | None:
        """Seconds forward passes have waited for load-backs; None where nobody measures that."""
        if self.link_path is None:
            return None
        return read_statistics(self.link_path)[Direction.HOST_TO_DEVICE].stalled_s


@contextlib.contextmanager
def serving(arm: Arm, engine: Engine | None, folder: Path) -> Iterator[Running]:
    """Run an arm's server for the length of a ``with`` block, or use the one it names.

    Args:
        arm: which.
        engine: how to launch it; may be None if the arm has a URL.
        folder: for its log.

    Raises:
        ServerUnavailableError: it did not start; the message ends with the end of its log.
    """
    if arm.url is not None:
        yield Running(arm=arm, url=arm.url)
        return
    if engine is None:
        raise ServerUnavailableError(f"arm {arm.name!r} has no URL, and there is nothing to launch")
    slug = arm.name.replace(" ", "-")
    link_path = folder / f"{slug}.link"
    link_path.unlink(missing_ok=True)
    env = {"KVFLOW_STRICT": "1", "KVFLOW_CPU_LINK_STATISTICS": str(link_path), **engine.env, **dict(arm.env)}
    flags = [*engine.flags, *(engine.host_flags if arm.host else ()), FLAG, *arm.flags]
    with launch_server(
        engine.model,
        log_path=folder / f"{slug}.log",
        extra_args=flags,
        env=env,
        device=engine.device,
        timeout_s=engine.ready_s,
    ) as process:
        yield Running(
            arm=arm, url=process.url, process=process, link_path=link_path if engine.device == "cpu" else None
        )


async def prepare(running: Running, client: httpx.AsyncClient) -> None:
    """Warm a server up, empty its cache, and make sure that it is empty.

    Raises:
        ServerUnavailableError: it does not answer, or its cache cannot be emptied.
    """
    await _warm(client)
    await _warm(client)
    await _flush(running, client)
    cached = await _warm(client)
    if cached:
        raise ServerUnavailableError(f"{running.arm.name}: {cached} tokens were still cached after a flush")
    await _flush(running, client)
    if running.arm.kvflow:
        await client.get("/kvflow/v1/stats", params={"reset": True})


@contextlib.asynccontextmanager
async def watched(running: Running, client: httpx.AsyncClient, seen: Round) -> AsyncIterator[None]:
    """Watch a server while a round runs: how much memory it takes, and that it is alive.

    Raises:
        ServerUnavailableError: it is not; the round is broken off.
    """
    round_task = asyncio.current_task()
    assert round_task is not None
    died: list[str] = []

    def died_of(reason: str) -> None:
        died.append(reason)
        round_task.cancel()

    watcher = asyncio.create_task(_watch(running, client, seen, died_of))
    before_s, own_before_s = _cpu_s(running), time.process_time()
    try:
        yield
        after_s = _cpu_s(running)
        if before_s is not None and after_s is not None:
            seen.server_cpu_s = after_s - before_s
        seen.client_cpu_s = time.process_time() - own_before_s
    except asyncio.CancelledError:
        if not died:
            raise
        raise ServerUnavailableError(f"{running.arm.name}: {died[0]}") from None
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


async def counted(running: Running, client: httpx.AsyncClient, seen: Round) -> None:
    """Enter what a server's kvflow has counted, and whether it is whole."""
    if not running.arm.kvflow:
        return
    stats = (await client.get("/kvflow/v1/stats")).raise_for_status().json()
    status = (await client.get("/kvflow/v1/status")).raise_for_status().json()
    states = [{name: replica.get(name) for name in ("policy", "guard", "degraded")} for replica in status["replicas"]]
    seen.stats = stats["total"] | {"replicas": states}
    seen.broken_seams = [seam["name"] for seam in status["seams"] if not seam["holds"]]


async def _watch(running: Running, client: httpx.AsyncClient, seen: Round, died_of: Any) -> None:
    silent = 0
    while True:
        await asyncio.sleep(_WATCH_S)
        if running.process is not None:
            if running.process.process.poll() is not None:
                died_of(f"the server has died\n{running.process.log_tail()}")
                return
            resident = _summed(running.process.process.pid, lambda process: process.memory_info().rss)
            seen.peak_memory_bytes = max(seen.peak_memory_bytes or 0, round(resident))
            continue
        try:
            silent = 0 if (await client.get("/health", timeout=10)).is_success else silent + 1
        except httpx.HTTPError:
            silent += 1
        if silent >= _DEAD_AFTER:
            died_of(f"{running.url} does not answer any more")
            return


def _cpu_s(running: Running) -> float | None:
    """Processor time a server has taken so far; None where its processes cannot be seen."""
    if running.process is None:
        return None
    return _summed(running.process.process.pid, lambda process: sum(process.cpu_times()[:2]))


def _summed(pid: int, measure: Callable[[Any], float]) -> float:
    """Add something up over a process and all below it."""
    import psutil  # comes with SGLang, and whoever launches servers has that

    total = 0.0
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += measure(process)
    return total


async def _warm(client: httpx.AsyncClient) -> int:
    """Let a server answer once; returns tokens of the prompt it had cached."""
    body = {"input_ids": _WARM, "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}}
    try:
        response = (await client.post("/generate", json=body)).raise_for_status()
    except httpx.HTTPError as error:
        raise ServerUnavailableError(f"{client.base_url} does not answer: {error!r}") from None
    return int(response.json()["meta_info"]["cached_tokens"])


async def _flush(running: Running, client: httpx.AsyncClient) -> None:
    deadline_s = time.monotonic() + _EMPTY_TIMEOUT_S
    while (await client.post("/flush_cache")).status_code != httpx.codes.OK:  # refused while anything is under way
        if time.monotonic() > deadline_s:
            raise ServerUnavailableError(
                f"{running.arm.name}: the cache could not be emptied; is anybody else using it?"
            )
        await asyncio.sleep(0.1)
