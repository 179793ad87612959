"""The servers of a replay: started or found, warmed up, emptied, watched."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from kvflow.client.server import KEEPALIVE_S
from kvflow.errors import ServerUnavailableError
from kvflow.patches.cpu.launch import ServerProcess, launch_server
from kvflow.patches.cpu.link import Direction, DirectionStatistics
from kvflow.patches.cpu.publish import read_statistics
from kvflow.replay.arms import Arm, flag_of
from kvflow.replay.asking import About, about, asked, read
from kvflow.replay.forcing import FLAG, forced
from kvflow.replay.record import Round

_EMPTY_TIMEOUT_S = 60.0
_WATCH_S = 1.0
_DEAD_AFTER = 30
"""Checks of its health that fail in a row; a busy server may be slow to answer."""
_SELDOM = 10
"""A launched server is asked only at every tenth check: its calls are being timed."""
_STORAGE_FLAG = "--hicache-storage-backend"
_STORAGE_VARIABLE = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"
_WARM_TOKEN = 9
_WARM_TOKENS = 32
_FORCED = [9, 9, 9, 9]
"""An answer nobody gives who is not made to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How servers are launched.

    Attributes:
        model: for ``--model-path``.
        flags: of SGLang, shared by all arms.
        host_flags: those of the host tier, for arms that have one.
        env: variables, shared by all arms.
        context_tokens: longest context of the model; None if it is not known.
        token_bytes: what a token of its takes on the link; None if that is not known.
        ready_s: how long a server may take to start.
    """

    model: str
    device: str = "cpu"
    flags: tuple[str, ...] = ()
    host_flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    context_tokens: int | None = None
    token_bytes: int | None = None
    ready_s: float = 600.0

    def flags_of(self, arm: Arm) -> tuple[str, ...]:
        """Flags of SGLang for the server of an arm."""
        return (*self.flags, *(self.host_flags if arm.host else ()), *arm.flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server of an arm.

    Attributes:
        process: None for one that was found.
        flags: it was launched with.
        link_path: file with what the CPU engine measures of its link; None elsewhere.
        api_key: it wants; None for none.
    """

    arm: Arm
    url: str
    process: ServerProcess | None = None
    flags: tuple[str, ...] = ()
    link_path: Path | None = None
    api_key: str | None = field(default=None, repr=False)

    def client(self, timeout_s: float) -> httpx.AsyncClient:
        """Make a client; each of its steps, such as waiting for the next piece of an answer, may take so long."""
        limits = httpx.Limits(max_connections=4096, max_keepalive_connections=512, keepalive_expiry=KEEPALIVE_S)
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.AsyncClient(base_url=self.url, timeout=timeout_s, limits=limits, headers=headers, trust_env=False)

    def link(self) -> DirectionStatistics | None:
        """What has come from the host so far, and how long forward passes have waited for it; None if not measured."""
        return None if self.link_path is None else read_statistics(self.link_path)[Direction.HOST_TO_DEVICE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What a server that is ready says of itself.

    Attributes:
        kvflow: whether it runs kvflow.
        page_tokens: its page size; None if it does not say.
        device_tokens: what its device tier holds; None if it does not say.
    """

    kvflow: bool
    page_tokens: int | None
    device_tokens: int | None = None


@contextlib.contextmanager
def serving(arm: Arm, engine: Engine | None, folder: Path, api_key: str | None = None) -> Iterator[Running]:
    """Run an arm's server for the length of a ``with`` block, or use the one it names.

    Args:
        arm: which.
        engine: how to launch it; may be None if the arm has a URL.
        folder: for its log.
        api_key: it wants, if it does.

    Raises:
        ServerUnavailableError: it did not start; the message ends with the end of its log.
    """
    if arm.url is not None:
        yield Running(arm=arm, url=arm.url, api_key=api_key)
        return
    if engine is None:
        raise ServerUnavailableError(f"arm {arm.name!r} has no URL, and there is nothing to launch")
    link_path, storage = folder / f"{arm.slug}.link", folder / f"{arm.slug}.storage"
    link_path.unlink(missing_ok=True)
    flags = engine.flags_of(arm)
    env = {"KVFLOW_STRICT": "1", "KVFLOW_CPU_LINK_STATISTICS": str(link_path), **engine.env}
    env |= {_STORAGE_VARIABLE: str(storage), **dict(arm.env)} if _stores(flags) else dict(arm.env)
    with launch_server(
        engine.model,
        log_path=folder / f"{arm.slug}.log",
        extra_args=[FLAG, *flags],
        env=env,
        device=engine.device,
        timeout_s=engine.ready_s,
    ) as process:
        measured = link_path if engine.device == "cpu" else None
        yield Running(arm=arm, url=process.url, process=process, flags=flags, link_path=measured, api_key=api_key)


async def prepare(running: Running, client: httpx.AsyncClient, *, free: bool = False) -> Ready:
    """Make sure that a server can do what its arm needs, warm it up, and empty its cache.

    Args:
        running: the server.
        client: of it.
        free: it need not be able to give recorded answers.

    Raises:
        ServerUnavailableError: it does not answer, cannot do what is needed, has less memory than it was asked to have,
            or its cache cannot be emptied.
    """
    found = await about(client)
    _check_size(running, found)
    stores = found.stores or _stores(running.flags)
    kvflow = await _runs_kvflow(running, client)
    prompt = [_WARM_TOKEN] * max(_WARM_TOKENS, 2 * (found.page_tokens or 0))
    if not free:
        await _check_forcing(running, client, prompt)
    await _warm(client, prompt)
    await _warm(client, prompt)
    await _empty(running.arm.name, client, stores=stores)
    cached = await _warm(client, prompt)
    if cached:
        raise ServerUnavailableError(f"{running.arm.name}: {cached} tokens were still cached after a flush")
    await _empty(running.arm.name, client, stores=stores)
    if kvflow:
        await asked(client, "GET", "/kvflow/v1/stats", params={"reset": True})
    return Ready(kvflow=kvflow, page_tokens=found.page_tokens, device_tokens=found.device_tokens)


async def flush(name: str, client: httpx.AsyncClient) -> None:
    """Empty a server's cache, as soon as it has nothing under way.

    Args:
        name: what to call the server if that fails.
        client: talks to it.

    Raises:
        ServerUnavailableError: it cannot be emptied.
    """
    deadline_s = time.monotonic() + _EMPTY_TIMEOUT_S
    while (await asked(client, "POST", "/flush_cache")).is_error:  # refused while anything is under way
        if time.monotonic() > deadline_s:
            raise ServerUnavailableError(f"{name}: the cache could not be emptied; is anybody else using it?")
        await asyncio.sleep(0.1)


async def _empty(name: str, client: httpx.AsyncClient, *, stores: bool) -> None:
    """Empty all tiers of a server; what is in storage outlives a flush, and the server."""
    await flush(name, client)
    if stores and (await asked(client, "POST", "/hicache/storage-backend/clear")).is_error:
        raise ServerUnavailableError(f"{name}: its storage tier could not be emptied")


def _stores(flags: Sequence[str]) -> bool:
    return flag_of(flags, _STORAGE_FLAG) is not None


def _check_size(running: Running, found: About) -> None:
    """SGLang makes a device tier that does not fit as large as there is room, and goes on."""
    wanted = flag_of(running.flags, "--max-total-tokens")
    if wanted is None or not wanted.isdecimal() or found.device_tokens is None:
        return
    page_tokens = found.page_tokens or 1
    if found.device_tokens < int(wanted) // page_tokens * page_tokens:
        raise ServerUnavailableError(
            f"{running.arm.name}: its device tier has {found.device_tokens:,} tokens instead of {int(wanted):,}, for "
            "which there is no room: give a smaller --device-tokens (--max-total-tokens), or a larger "
            "--mem-fraction-static"
        )


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


async def counted(client: httpx.AsyncClient, seen: Round) -> None:
    """Enter what a server's kvflow has counted, and whether it is whole."""
    stats = read(await asked(client, "GET", "/kvflow/v1/stats"), "total")
    status = read(await asked(client, "GET", "/kvflow/v1/status"), "replicas", "seams")
    states = [{name: replica.get(name) for name in ("policy", "guard", "degraded")} for replica in status["replicas"]]
    seen.stats = stats["total"] | {"replicas": states}
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


async def _runs_kvflow(running: Running, client: httpx.AsyncClient) -> bool:
    """Whether a server runs kvflow; its arm may need that."""
    response = await asked(client, "GET", "/kvflow/v1/status")
    if response.is_server_error:
        read(response)
    # Some front ends answer any path with 200 and a page.
    runs = response.is_success and "json" in response.headers.get("content-type", "")
    if running.arm.kvflow and not runs:
        raise ServerUnavailableError(
            f"{running.arm.name}: there is no kvflow at {running.url} to take hints: launch it with --enable-kvflow, "
            "or give the arm no-hints"
        )
    return runs


async def _check_forcing(running: Running, client: httpx.AsyncClient, prompt: list[int]) -> None:
    """Make sure that a server gives the answers it is made to give."""
    extra = forced(_FORCED)
    sampling = {"max_new_tokens": len(_FORCED), "temperature": 0, "ignore_eos": True, **extra.pop("sampling_params")}
    body = {"input_ids": prompt, "sampling_params": sampling, **extra}
    response = await asked(client, "POST", "/generate", json=body)
    if response.is_error or read(response).get("output_ids") != _FORCED:
        raise ServerUnavailableError(
            f"{running.arm.name}: {running.url} does not give recorded answers ({response.text[:200]}): launch it with "
            f"{FLAG} where kvflow is installed, or let the model answer what it likes with --free"
        )


async def _warm(client: httpx.AsyncClient, prompt: list[int]) -> int:
    """Let a server answer once; returns tokens of the prompt it had cached."""
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    response = await asked(client, "POST", "/generate", json={"input_ids": prompt, "sampling_params": sampling})
    return int(read(response, "meta_info")["meta_info"]["cached_tokens"])
