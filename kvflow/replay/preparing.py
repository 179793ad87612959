"""Before a round of a replay: servers that can do what their arms need, warmed up, their caches empty."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from kvflow.errors import ServerUnavailableError
from kvflow.patches.switch import ENABLE_VARIABLE
from kvflow.replay.arms import flag_of
from kvflow.replay.asking import About, about, asked, read
from kvflow.replay.forcing import FLAG, forced
from kvflow.replay.server import Running

_EMPTY_TIMEOUT_S = 60.0
_WARM_TOKEN = 9
_WARM_TOKENS = 32
_FORCED = [9, 9, 9, 9]
"""An answer nobody gives who is not made to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What a server that is ready says of itself.

    Attributes:
        kvflow: whether it runs kvflow.
        page_tokens: its page size; None if it does not say.
        device_tokens: what its device tier holds; None if it does not say.
        degraded: how often parts of its kvflow have failed so far.
        reused_tokens: put into prompts so far.
    """

    kvflow: bool
    page_tokens: int | None
    device_tokens: int | None = None
    degraded: Mapping[str, int] = field(default_factory=dict)
    reused_tokens: int = 0


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
    stores = found.stores or running.stores
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
    ready = Ready(kvflow=kvflow, page_tokens=found.page_tokens, device_tokens=found.device_tokens)
    if not kvflow:
        return ready
    stats = read(await asked(client, "GET", "/kvflow/v1/stats", params={"reset": True}), "total")["total"]
    status = read(await asked(client, "GET", "/kvflow/v1/status"), "replicas", "degraded")
    if running.arm.reuse:
        _check_reuse(running, status)
    return replace(ready, degraded=status["degraded"], reused_tokens=reused_tokens(stats))


def reused_tokens(stats: Mapping[str, Any]) -> int:
    """Tokens that a server has put into prompts since it started, but for those that it computed nevertheless.

    Args:
        stats: ``total`` of what it counts.
    """
    counted = Counter[str](stats.get("reuse"))
    return counted["grafted_tokens"] + counted["continued_tokens"] - counted["repaired_tokens"]


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


async def _runs_kvflow(running: Running, client: httpx.AsyncClient) -> bool:
    """Whether a server runs kvflow; its arm may need that, or that it does not."""
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
    told = running.arm.kvflow or "--enable-kvflow" in running.flags or ENABLE_VARIABLE in dict(running.arm.env)
    if runs and running.process is not None and not told:
        raise ServerUnavailableError(
            f"{running.arm.name}: its server runs kvflow, which the arm does not have: give the arm --enable-kvflow, "
            "or take kvflow out of whatever else the server is told (a file of --config)"
        )
    return runs


def _check_reuse(running: Running, status: Mapping[str, Any]) -> None:
    """kvflow serves requests that ask for reuse without it, where it is off or cannot be had."""
    reasons = [replica.get("reuse") for replica in status["replicas"]]
    off = next((reason for reason in reasons if reason != "on"), None)
    if off is not None:
        raise ServerUnavailableError(
            f"{running.arm.name}: nothing is reused at {running.url} ({off}): launch it with KVFLOW_REUSE__MODE, or "
            "take reuse out of the arm"
        )


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
