"""While a round of a replay runs: that its server lives, and what it takes and counts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from kvflow.errors import ServerUnavailableError
from kvflow.replay.asking import asked, read
from kvflow.replay.preparing import Ready, reused_tokens
from kvflow.replay.record import Round
from kvflow.replay.server import Running

_WATCH_S = 1.0
_DEAD_AFTER = 30
"""Checks of its health that fail in a row; a busy server may be slow to answer."""
_SELDOM = 10
"""A launched server is asked only at every tenth check: its calls are being timed."""


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


async def reached(running: Running, client: httpx.AsyncClient, seen: Round, lost: str, refused: str = "") -> None:
    """Make sure that a round that is over was one: its calls reached a server, and that still lives.

    Args:
        running: the server.
        client: of it.
        seen: what happened.
        lost: why a call did not reach it; empty if all did.
        refused: why it does not take hints; empty if it does.

    Raises:
        ServerUnavailableError: they did not, or it does not, or none of them was answered.
    """
    name = running.arm.name
    if lost and running.process is not None:
        await asyncio.sleep(2 * _WATCH_S)  # who watches it knows more, and breaks the round off
    if lost:
        raise ServerUnavailableError(f"{name}: calls did not reach {running.url}, or were cut off ({lost})")
    if refused:
        raise ServerUnavailableError(f"{name}: {running.url} does not take what its programs tell it: {refused}")
    if (await asked(client, "GET", "/health")).is_error:
        raise ServerUnavailableError(f"{name}: {running.url} is not healthy any more")
    if seen.calls and all(call.error for call in seen.calls):
        raise ServerUnavailableError(f"{name}: every call failed, the first because of: {seen.calls[0].error}")


async def counted(client: httpx.AsyncClient, seen: Round, ready: Ready) -> None:
    """Enter what a server's kvflow has counted, and whether it is whole.

    Args:
        client: of the server.
        seen: the round.
        ready: what the server said before it.
    """
    stats = read(await asked(client, "GET", "/kvflow/v1/stats"), "total")["total"]
    status = read(await asked(client, "GET", "/kvflow/v1/status"), "replicas", "seams", "degraded")
    states = [{name: replica.get(name) for name in ("policy", "guard", "degraded")} for replica in status["replicas"]]
    failed = Counter(status["degraded"]) - Counter(ready.degraded)
    seen.stats = stats | {"replicas": states, "degraded": dict(failed)}
    if "reuse" in stats:
        seen.stats["reused_tokens"] = reused_tokens(stats) - ready.reused_tokens
    seen.broken_seams = [seam["name"] for seam in status["seams"] if not seam["holds"]]


async def _watch(running: Running, client: httpx.AsyncClient, seen: Round, died_of: Any) -> None:
    silent, most = 0, _DEAD_AFTER if running.process is None else _DEAD_AFTER // _SELDOM
    for check in itertools.count():
        await asyncio.sleep(_WATCH_S)
        if running.process is not None:
            if running.process.process.poll() is not None:
                died_of(f"the server has died\n{running.process.log_tail()}")
                return
            resident = _summed(running.process.process.pid, lambda process: process.memory_info().rss)
            seen.peak_memory_bytes = max(seen.peak_memory_bytes or 0, round(resident))
            if check % _SELDOM:
                continue
        try:
            silent = 0 if (await client.get("/health", timeout=10)).is_success else silent + 1
        except httpx.HTTPError:
            silent += 1
        if silent >= most:
            died_of(f"{running.url} does not answer any more")
            return


def _cpu_s(running: Running) -> float | None:
    """Processor time a server has taken so far; None where its processes cannot be seen."""
    return cpu_s(running.process.process.pid) if running.process is not None else None


def cpu_s(pid: int) -> float:
    """Processor time, in seconds, that a process and all below it have taken so far."""
    return _summed(pid, lambda process: sum(process.cpu_times()[:2]))


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
