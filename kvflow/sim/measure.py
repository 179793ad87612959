"""Measuring a running SGLang server through its HTTP interface, for :mod:`kvflow.sim.fit`.

Prompts are random token ids, so that nothing is in the cache that was not put there. The server must have nothing else
to do meanwhile, and what it has cached does not survive: loads are provoked by filling its memory.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import httpx

from kvflow.errors import ServerUnavailableError
from kvflow.sim.fit import DecodeSample, Measurements, PrefillSample, TransferSample
from kvflow.sim.stream import pieces

TIMEOUT_S = 600.0
_SETTLE_S = 0.2
_SETTLE_TRIES = 50
_FILL_PROMPTS = 8
_HEADROOM_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSettings:
    """What is measured.

    Attributes:
        lengths: prompts, in tokens; those the server has no room for are left out.
        shares: parts of them that are in the cache.
        concurrencies: requests that decode at a time.
        contexts: how long their contexts are.
        decode_tokens: how long they decode.
        load_lengths: prompts to load back from the host tier.
        max_fill_tokens: servers with more device memory than this are not filled, so their loads are not measured.
        low_id, high_id: range of the token ids, valid in any vocabulary by default.
    """

    lengths: tuple[int, ...] = (128, 512, 1024, 2048, 4096)
    shares: tuple[float, ...] = (0.0, 0.5, 0.9)
    concurrencies: tuple[int, ...] = (1, 2, 4, 8)
    contexts: tuple[int, ...] = (128, 1024, 4096)
    decode_tokens: int = 96
    load_lengths: tuple[int, ...] = (512, 1024, 2048)
    repeats: int = 3
    max_fill_tokens: int = 1_000_000
    low_id: int = 10
    high_id: int = 250
    seed: int | None = None


Progress = Callable[[str], None]


async def measure(
    url: str, name: str, settings: MeasureSettings, progress: Progress, api_key: str | None = None
) -> Measurements:
    """Measure a server.

    Args:
        url: base address.
        name: of the profile to be.
        progress: told what is being measured.
        api_key: the server's, if it wants one.

    Raises:
        ServerUnavailableError: it does not answer, not as SGLang does, or wants another key.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False) as client:
        server = await _Server.reach(client, settings)
        await server.ask(server.ids(64))  # whatever the first request costs, it costs only once
        prefill = await _prefill(server, settings, progress)
        decode = await _decode(server, settings, progress)
        load = await _loads(server, settings, progress)
        return Measurements(
            name=name,
            chunk_tokens=server.chunk_tokens,
            max_running=server.max_running,
            prefill=tuple(prefill),
            decode=tuple(decode),
            load=tuple(load),
        )


class _Server:
    """A server and what it says of itself."""

    def __init__(self, client: httpx.AsyncClient, info: dict[str, Any], settings: MeasureSettings) -> None:
        state = (info.get("internal_states") or [{}])[0]
        self.device_tokens = int(info.get("max_total_num_tokens") or 1 << 30)
        self.longest = min(int(info.get("max_req_input_len") or 1 << 30), self.device_tokens // 2)
        chunk = info.get("chunked_prefill_size")
        self.chunk_tokens = int(chunk) if chunk and int(chunk) > 0 else 1 << 20
        running = state.get("effective_max_running_requests_per_dp") or info.get("max_running_requests")
        self.max_running = int(running or 256)
        self._client = client
        self._settings = settings
        self._random = random.Random(settings.seed)

    @classmethod
    async def reach(cls, client: httpx.AsyncClient, settings: MeasureSettings) -> _Server:
        """Ask a server what it is."""
        try:
            response = await client.get("/server_info")
            if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                raise ServerUnavailableError(
                    f"{client.base_url} wants an API key: give --api-key, or set KVFLOW_API_KEY"
                )
            response.raise_for_status()
            return cls(client, response.json(), settings)
        except (httpx.HTTPError, ValueError) as error:
            raise ServerUnavailableError(f"no SGLang server answers at {client.base_url}: {error}") from None

    def ids(self, count: int) -> list[int]:
        """Draw token ids that no other prompt begins with."""
        return [self._random.randrange(self._settings.low_id, self._settings.high_id) for _ in range(count)]

    async def ask(self, ids: list[int]) -> tuple[float, int]:
        """Ask for one token; returns the seconds until it is there, and how many tokens were cached."""
        began_s = time.perf_counter()
        response = await self._client.post("/generate", json=_body(ids, 1))
        seconds = time.perf_counter() - began_s
        return seconds, int(_answer(response)["meta_info"]["cached_tokens"])

    async def decode(self, ids: list[int], tokens: int) -> list[tuple[float, int]]:
        """Ask for many; returns when so many had arrived.

        Raises:
            ServerUnavailableError: they have not.
        """
        arrivals = []
        async with self._client.stream("POST", "/generate", json=_body(ids, tokens) | {"stream": True}) as response:
            if response.status_code != httpx.codes.OK:
                raise ServerUnavailableError(f"the server answered {response.status_code}")
            async for piece in pieces(response):
                if "meta_info" not in piece:
                    raise ServerUnavailableError(f"the server answered {str(piece)[:300]}")
                arrivals.append((time.perf_counter(), int(piece["meta_info"]["completion_tokens"])))
        if not arrivals:
            raise ServerUnavailableError("the server answered nothing")
        return arrivals

    async def loads(self) -> tuple[int, float] | None:
        """Tokens loaded back so far, and the seconds that took; None if the server does not count."""
        response = await self._client.get("/kvflow/v1/stats")
        if response.status_code != httpx.codes.OK:
            return None
        try:
            total = response.json()["total"]
            return int(total["load_back_tokens"]), float(total["load_back_s"])
        except (ValueError, LookupError, TypeError):  # some front ends answer any path with 200 and a page
            return None


def _body(ids: list[int], tokens: int) -> dict[str, Any]:
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {"input_ids": ids, "sampling_params": sampling}


def _answer(response: httpx.Response) -> dict[str, Any]:
    if response.status_code != httpx.codes.OK:
        raise ServerUnavailableError(f"the server answered {response.status_code}: {response.text[:300]}")
    return response.json()


async def _prefill(server: _Server, settings: MeasureSettings, progress: Progress) -> list[PrefillSample]:
    """Time to first token by length and cached share."""
    samples = []
    for repeat in range(settings.repeats):
        progress(f"prefill, {repeat + 1} of {settings.repeats}")
        for length in settings.lengths:
            if length > server.longest:
                continue
            for share in settings.shares:
                ids = server.ids(length)
                if share:
                    await server.ask(ids[: int(share * length)])
                seconds, cached = await server.ask(ids)
                samples.append(PrefillSample(tokens=length, cached_tokens=cached, seconds=seconds))
    return samples


async def _decode(server: _Server, settings: MeasureSettings, progress: Progress) -> list[DecodeSample]:
    """Time of a decode step by number of requests and length of their contexts."""
    samples = []
    for repeat in range(settings.repeats):
        progress(f"decode, {repeat + 1} of {settings.repeats}")
        for count in settings.concurrencies:
            for context in settings.contexts:
                room = count * (context + settings.decode_tokens + _HEADROOM_TOKENS) <= server.device_tokens
                if count > server.max_running or context > server.longest or not room:
                    continue
                prompts = [server.ids(context) for _ in range(count)]
                for ids in prompts:
                    await server.ask(ids)  # so that all of them start to decode at almost the same time
                runs = await asyncio.gather(*(server.decode(ids, settings.decode_tokens) for ids in prompts))
                seconds = step_s(runs)
                if seconds is not None:
                    tokens = count * (context + settings.decode_tokens // 2)
                    samples.append(DecodeSample(sequences=count, context_tokens=tokens, seconds=seconds))
    return samples


def step_s(runs: list[list[tuple[float, int]]]) -> float | None:
    """Mean seconds per token while all requests decode; None if they never did.

    Args:
        runs: when how many tokens had arrived, per request.
    """
    began_s = max(run[0][0] for run in runs)
    ended_s = min(run[-1][0] for run in runs)
    counted = []
    for run in runs:
        within = [(at_s, count) for at_s, count in run if began_s <= at_s <= ended_s]
        if len(within) > 1 and within[-1][1] > within[0][1]:
            counted.append((within[-1][0] - within[0][0]) / (within[-1][1] - within[0][1]))
    return sum(counted) / len(runs) if len(counted) == len(runs) else None


async def _loads(server: _Server, settings: MeasureSettings, progress: Progress) -> list[TransferSample]:
    """Time to load prompts back that other prompts have pushed to the host tier; nothing if it cannot be told."""
    samples = []
    if server.device_tokens > settings.max_fill_tokens or await server.loads() is None:
        progress("loads: not measured")
        return []
    for repeat in range(settings.repeats):
        progress(f"loads, {repeat + 1} of {settings.repeats}")
        for length in settings.load_lengths:
            if length > server.longest:
                continue
            ids = server.ids(length)
            await server.ask(ids)
            filling = max(1, min(server.device_tokens // _FILL_PROMPTS, server.longest))
            for _ in range(ceil(server.device_tokens / filling) + 1):
                await server.ask(server.ids(filling))
            before = await _settled(server)
            await server.ask(ids)
            after = await _settled(server)
            tokens, seconds = after[0] - before[0], after[1] - before[1]
            if tokens > 0 and seconds > 0:
                samples.append(TransferSample(tokens=tokens, seconds=seconds))
    if not samples:
        progress("loads: not measured, nothing came from the host")
    return samples


async def _settled(server: _Server) -> tuple[int, float]:
    """Wait until the counters stand still."""
    last = await server.loads()
    for _ in range(_SETTLE_TRIES):
        await asyncio.sleep(_SETTLE_S)
        now = await server.loads()
        if now == last:
            break
        last = now
    assert last is not None, "the server has counted before"
    return last
