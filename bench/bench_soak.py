"""Whether anything breaks: full pressure with hints that lie, on the real server, every answer compared.

Workers run made-up multi-agent programs against SGLang with kvflow, a device tier for a fraction of them, a host tier
not much larger, a slow link between the two, and storage behind them. Requests are cancelled, clients die, facts are
wrong, commands come at random, the eviction order changes. The same prompts come up again and again, cached differently
each time; every answer is compared with the first to the same prompt, and at the end with those of a server without any
cache. SGLang checks its own tree and pools whenever it is idle, and does not survive a leak; so the run ends with an
idle server that must still answer, and whose cache can be flushed. kvflow then knows of nothing any more, and no part
of it has failed. Without storage the host tier drops its copies of what has been loaded.

Two answers to one prompt may differ where two tokens are equally likely and rounding decides, because how much of a
prompt is computed at once depends on what is cached; such ties are told from faults by the likelihoods.

Usage: python bench/bench_soak.py [--minutes 30] [--workers 12] [--seed 0] [--no-storage] [--no-kvflow] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from kvflow.cli.circumstances import circumstances
from kvflow.cli.ending import ended_by_signals
from kvflow.hints import VERBS, command_action, envelope, step_action, tool_action
from kvflow.patches.cpu.launch import launch_server
from kvflow.patches.cpu.model import build_model

PAGE_TOKENS, DEVICE_TOKENS, HOST_RATIO, LINK_BYTES_S = 16, 6144, 1.5, 2e7
PROGRAMS, AGENTS, TURNS, OUTPUT_TOKENS = 48, 5, (2, 6), 8
LONG, LONG_TOKENS = 0.05, (2000, 3000)
"""Share of turns that bring a long text, half of the device, computed in many chunks; no more than one a program, since
its context has to fit."""
POLICIES = ("cost", "cost", "cost", "lru", "steps", "ttl", "saga")
FLAGS = (
    "--page-size", str(PAGE_TOKENS), "--max-total-tokens", str(DEVICE_TOKENS), "--chunked-prefill-size", "256",
    "--max-running-requests", "8", "--enable-hierarchical-cache", "--hicache-ratio", str(HOST_RATIO),
    "--hicache-write-policy", "write_through_selective",
)  # fmt: skip
STORAGE_FLAGS = ("--hicache-storage-backend", "file")
KVFLOW_FLAGS = ("--enable-kvflow",)
CANCELLED, DYING, LYING, UNHINTED, COMMANDING = 0.06, 0.02, 0.15, 0.1, 0.1
"""Shares: requests cancelled, clients that vanish after a call, wrong facts, requests without any, requests with
a command on their prompt; as often commands follow an answer."""
TIE_NATS = 1e-3
"""Rounding moves likelihoods of this float32 model by up to 1e-4."""
VERIFIED = 300


@dataclass
class Script:
    """A program: which agent speaks in which turn, and what it is given beside the history."""

    name: str
    turns: list[tuple[str, list[int]]]


@dataclass
class Seen:
    """What has been asked and answered."""

    answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    differing: list[tuple[tuple[int, ...], list[int]]] = field(default_factory=list)

    def add(self, prompt: list[int], answer: list[int]) -> None:
        key = tuple(prompt)
        first = self.answers.setdefault(key, answer)
        self.counts["answers"] += 1
        self.counts["repeated"] += first is not answer
        if first != answer:
            self.differing.append((key, answer))


def scripts(seed: int) -> tuple[dict[str, list[int]], list[Script]]:
    """Fixed prompts of the agents, and programs that call them."""
    rng = random.Random(seed)

    def words(least: int, most: int) -> list[int]:
        return [rng.randrange(32, 127) for _ in range(rng.randint(least, most))]

    fixed = {f"agent{number}": words(64, 480) for number in range(AGENTS)}

    def turn(long: bool) -> tuple[str, list[int]]:
        return rng.choice(sorted(fixed)), words(*(LONG_TOKENS if long else (8, 160)))

    made = []
    for number in range(PROGRAMS):
        turns = rng.randint(*TURNS)
        long = rng.randrange(turns) if rng.random() < LONG * turns else None
        made.append(Script(f"program{number}", [turn(index == long) for index in range(turns)]))
    return fixed, made


class Worker:
    """Runs programs, badly; ``tells`` the server of them, if it has kvflow."""

    def __init__(self, client: httpx.AsyncClient, rng: random.Random, seen: Seen, name: str, *, tells: bool) -> None:
        self._tells = tells
        self._client = client
        self._rng = rng
        self._seen = seen
        self._name = name
        self._runs = 0

    async def work(self, fixed: dict[str, list[int]], programs: list[Script], until_s: float) -> None:
        while time.monotonic() < until_s:
            self._runs += 1
            await self._run(fixed, self._rng.choice(programs), f"{self._name}-{self._runs}")

    async def _run(self, fixed: dict[str, list[int]], script: Script, workflow: str) -> None:
        rng, histories = self._rng, {}
        for number, (agent, words) in enumerate(script.turns):
            last = number == len(script.turns) - 1
            history = histories.setdefault(agent, list(fixed[agent]))
            history += words
            answer = await self._ask(history, self._hints(workflow, agent, len(fixed[agent]), last))
            if answer is None:
                return  # without a word of farewell
            history += answer
            if rng.random() < DYING:
                self._seen.counts["deaths"] += 1
                return
            if rng.random() < 0.3:
                await self._tool(workflow, agent)
            if rng.random() < COMMANDING:
                target = {"kind": "agent", "workflow_id": workflow, "agent": agent}
                await self._tell([self._command(target)])

    def _hints(self, workflow: str, agent: str, fixed_tokens: int, last: bool) -> dict[str, Any] | None:
        rng = self._rng
        if rng.random() < UNHINTED:
            return None
        if rng.random() < LYING:
            self._seen.counts["lies"] += 1
            agent = f"agent{rng.randrange(AGENTS)}"
            fixed_tokens = rng.randrange(1, 2000)
            last = rng.random() < 0.5
            workflow = rng.choice([workflow, f"{self._name}-1"])
        step = step_action(
            workflow_id=workflow, workflow_type="soak", agent=agent, final=last, fixed_prompt_tokens=fixed_tokens
        )
        own = [self._command({"kind": "prompt"})] if rng.random() < COMMANDING else []
        return envelope([step, *own])

    def _command(self, target: dict[str, Any]) -> dict[str, Any]:
        rng = self._rng
        self._seen.counts["commands"] += 1
        return command_action(rng.choice(VERBS), target=target, ttl_s=rng.choice([0.2, 2.0, 60.0]))

    async def _ask(self, prompt: list[int], hints: dict[str, Any] | None) -> list[int] | None:
        """Ask; None if the request was cancelled."""
        body: dict[str, Any] = {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": OUTPUT_TOKENS, "ignore_eos": True},
        }
        if hints is not None:
            body["kv_hints"] = hints
        patience_s = self._rng.uniform(0.01, 1.5) if self._rng.random() < CANCELLED else None
        try:
            response = await self._client.post("/generate", json=body, timeout=patience_s or 300)
        except httpx.TimeoutException:
            if patience_s is None:
                raise
            self._seen.counts["cancelled"] += 1
            return None
        answer = response.raise_for_status().json()["output_ids"]
        self._seen.add(prompt, answer)
        return list(answer)

    async def _tool(self, workflow: str, agent: str) -> None:
        rng = self._rng
        started = tool_action(workflow_id=workflow, agent=agent, tool=rng.choice("abc"), event="start")
        await self._tell([started])
        await asyncio.sleep(rng.choice([0.0, 0.05, 0.4]))
        if rng.random() > LYING:
            await self._tell([{**started, "payload": {**started["payload"], "event": "end"}}])

    async def _tell(self, actions: list[dict[str, Any]]) -> None:
        if self._tells:
            (await self._client.post("/kvflow/v1/events", json=envelope(actions))).raise_for_status()


async def soak(url: str, options: argparse.Namespace) -> tuple[Seen, dict[str, Any]]:
    """Keep the server busy, then see whether it is well."""
    seen = Seen()
    fixed, programs = scripts(options.seed)
    until_s = time.monotonic() + 60 * options.minutes
    limits = httpx.Limits(max_connections=4 * options.workers)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=300) as client:
        async with asyncio.TaskGroup() as group:
            for number in range(options.workers):
                chance = random.Random(f"{options.seed}/{number}")
                worker = Worker(client, chance, seen, f"w{number}", tells=not options.no_kvflow)
                group.create_task(worker.work(fixed, programs, until_s))
            group.create_task(report(seen, until_s))
            if not options.no_kvflow:
                group.create_task(switch(client, random.Random(options.seed), until_s))
        await asyncio.sleep(2)  # idle: SGLang checks its tree and pools
        (await client.get("/server_info")).raise_for_status()
        state: dict[str, Any] = {}
        if not options.no_kvflow:
            state["stats"] = (await client.get("/kvflow/v1/stats")).raise_for_status().json()["total"]
            state["degraded"] = (await client.get("/kvflow/v1/status")).raise_for_status().json()["degraded"]
            state["left"] = await left(client)
        (await client.post("/flush_cache")).raise_for_status()
        await asyncio.sleep(2)
        (await client.get("/health_generate")).raise_for_status()
    return seen, state


async def left(client: httpx.AsyncClient) -> dict[str, int]:
    """End every workflow that still lives, and see what kvflow knows of them then: nothing, if it keeps its books."""
    every = {"limit": 1_000_000}
    living = (await client.get("/kvflow/v1/workflows", params=every)).raise_for_status().json()["workflows"]
    for flow in living:
        over = step_action(workflow_id=flow["workflow_id"], agent="END", final=True)
        (await client.post("/kvflow/v1/events", json=envelope([over]))).raise_for_status()
    await client.post("/generate", json={"input_ids": [5] * 8, "sampling_params": {"max_new_tokens": 1}})
    await asyncio.sleep(2)
    total = (await client.get("/kvflow/v1/stats")).raise_for_status().json()["total"]
    return {
        "workflows": total["live_workflows"],
        "programs": total["admission"]["programs"],
        "held": total["admission"]["held"],
        "guarded_requests": total["guard"]["running"],
    }


async def switch(client: httpx.AsyncClient, rng: random.Random, until_s: float) -> None:
    """Change the eviction order now and then."""
    while time.monotonic() < until_s:
        await asyncio.sleep(rng.uniform(1, 8))
        (await client.put("/kvflow/v1/policy", json={"policy": rng.choice(POLICIES)})).raise_for_status()


async def report(seen: Seen, until_s: float) -> None:
    """Say that it is still going."""
    while time.monotonic() < until_s:
        await asyncio.sleep(min(30, max(0.1, until_s - time.monotonic())))
        print(dict(seen.counts), f"{len(seen.answers)} prompts, {len(seen.differing)} differing", flush=True)


async def verify(url: str, seen: Seen, seed: int) -> dict[str, int]:
    """Compare answers with those of a server without cache, and look whether what differs is a tie."""
    found: Counter[str] = Counter()
    drawn = random.Random(seed).sample(sorted(seen.answers), min(VERIFIED, len(seen.answers)))
    chosen = dict.fromkeys(drawn) | dict.fromkeys(prompt for prompt, _ in seen.differing)  # its first answer, too
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        pairs = [(prompt, seen.answers[prompt]) for prompt in chosen] + seen.differing
        async for prompt, answer, reference in asked(client, pairs):
            found["verified"] += 1
            if answer != reference["output_ids"]:
                found["tied" if is_tie(answer, reference) else "wrong"] += 1
                print("differs:", len(prompt), answer, reference["output_ids"], flush=True)
    return {"verified": 0, "tied": 0, "wrong": 0} | found


async def asked(
    client: httpx.AsyncClient, pairs: list[tuple[tuple[int, ...], list[int]]]
) -> AsyncIterator[tuple[tuple[int, ...], list[int], dict[str, Any]]]:
    """What the server says to the same prompts, with likelihoods."""
    for prompt, answer in pairs:
        body = {
            "input_ids": list(prompt),
            "sampling_params": {"temperature": 0, "max_new_tokens": OUTPUT_TOKENS, "ignore_eos": True},
            "return_logprob": True,
            "top_logprobs_num": 2,
        }
        yield prompt, answer, (await client.post("/generate", json=body)).raise_for_status().json()


def is_tie(answer: list[int], reference: dict[str, Any]) -> bool:
    """Whether the first token that differs was as likely as the one given."""
    at = next(
        index for index, (one, other) in enumerate(zip(answer, reference["output_ids"], strict=True)) if one != other
    )
    (best, _, _), (second, token, _) = reference["meta_info"]["output_top_logprobs"][at][:2]
    return token == answer[at] and best - second < TIE_NATS


@contextlib.contextmanager
def server(folder: Path, name: str, *flags: str) -> Iterator[str]:
    """A server on the CPU engine; the end of its log is printed if anything fails."""
    environment = {
        "KVFLOW_CPU_LINK_BYTES_PER_S": str(LINK_BYTES_S),
        "KVFLOW_STRICT": "1",
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(folder / "storage"),
        "KVFLOW_EVICTION__EXCLUSIVE": "always",  # whatever the chunk size, but never above a storage tier
        "KVFLOW_COSTS__PREFILL_TOKEN_S": "1e-3",  # slow enough for holding programs to pay
        "KVFLOW_COSTS__LEARN_COMPUTE": "false",
        "SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK": "1",
        "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    }
    model = build_model(folder / "model")
    with launch_server(model, log_path=folder / f"{name}.log", extra_args=flags, env=environment) as process:
        try:
            yield process.url
        except BaseException:
            print(process.log_tail())
            raise


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-storage", action="store_true", help="no tier below the host, so that it drops copies")
    parser.add_argument("--no-kvflow", action="store_true", help="SGLang alone, to tell whose fault a fault is")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = [*FLAGS, *(() if options.no_storage else STORAGE_FLAGS), *(() if options.no_kvflow else KVFLOW_FLAGS)]
        with server(Path(folder), "soak", *flags) as url:
            seen, state = asyncio.run(soak(url, options))
        with server(Path(folder), "reference", "--disable-radix-cache") as url:
            found = asyncio.run(verify(url, seen, options.seed))
    result = {
        "bench": "soak",
        **circumstances(),
        "settings": {
            "minutes": options.minutes,
            "workers": options.workers,
            "seed": options.seed,
            "storage": not options.no_storage,
        },
        "counts": {**seen.counts, "prompts": len(seen.answers), "differing": len(seen.differing)},
        "answers": found,
        "end": state,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    print(json.dumps(result["counts"] | found))
    if found["wrong"] or state.get("degraded") or any(state.get("left", {}).values()):
        raise SystemExit("something broke; see above")
    if state and options.no_storage and not state["stats"]["dropped_copy_tokens"]:
        raise SystemExit("no copy was dropped, so that this has not been tried")


if __name__ == "__main__":
    with ended_by_signals():
        main()
