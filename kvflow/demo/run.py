"""Playing the demonstration: rounds of workflows, arms in alternation, one comparison."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

import kvflow
from kvflow.demo.arms import ARMS, ArmResult, ArmServer
from kvflow.demo.compare import compare, differing_calls, identical_tokens
from kvflow.demo.corpus import source_files, trace_documents
from kvflow.demo.measure import REQUEST_TIMEOUT_S, MeasuredModel, RoundRecord
from kvflow.demo.program import GRAPH, Review
from kvflow.errors import ServerUnavailableError, require_installed
from kvflow.graph import to_dict
from kvflow.patches.cpu.publish import SETTLED_S, forget_statistics
from kvflow.replay.preparing import flush


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What is run.

    Attributes:
        device_tokens: size of the device tier.
        host_ratio: size of the host tier, in device tiers.
        link_bytes_per_s: bandwidth between the tiers, each direction.
        prompt_chars: length of the manual in every agent's fixed prompt; a character is a token.
        rounds: rounds per arm, each on other documents and starting with an empty cache.
        workflows: workflows per round.
        at_once: how many of them run at a time.
        stagger_s: time between the first ``at_once`` of them, which would run in lockstep otherwise.
        trace: file to take documents from instead of source files.
    """

    device_tokens: int = 18_432
    host_ratio: float = 1.5
    link_bytes_per_s: float = 1e8
    page_tokens: int = 16
    prompt_chars: int = 2_048
    document_chars: int = 700
    output_tokens: int = 32
    rounds: int = 3
    workflows: int = 12
    at_once: int = 3
    stagger_s: float = 1.5
    trace: Path | None = None


Progress = Callable[[str, int, int], None]
"""Told what is going on, workflows done and workflows in all."""


def run_demo(settings: DemoSettings, folder: Path, progress: Progress) -> dict[str, Any]:
    """Run both arms and compare them.

    Args:
        folder: where the model and the servers' logs go.
        progress: called whenever something has happened.

    Returns:
        arms, comparison and settings; the caller adds where and when it was run.

    Raises:
        require_installed: SGLang is not installed.
        ServerUnavailableError: a server died, or an arm is not what it should be.
        ConfigError: the trace cannot be used.
    """
    require_installed("sglang", "sglang", "the demonstration")
    from kvflow.patches.cpu.launch import start_server
    from kvflow.patches.cpu.model import build_model

    documents = _documents(settings)
    folder.mkdir(parents=True, exist_ok=True)
    progress("building a tiny model", 0, 0)
    model = build_model(folder / "model")
    with contextlib.ExitStack() as running:
        starting = []
        for arm in ARMS:
            slug = arm.name.replace(" ", "-")
            link_path = folder / f"{slug}.link"
            forget_statistics(link_path)
            environment = {
                "KVFLOW_CPU_LINK_BYTES_PER_S": str(settings.link_bytes_per_s),
                "KVFLOW_CPU_LINK_STATISTICS": str(link_path),
                "KVFLOW_STRICT": "1",
            }
            ready = running.enter_context(
                start_server(
                    model,
                    log_path=folder / f"{slug}.log",
                    extra_args=[*_shared_flags(settings), *arm.flags],
                    env=environment,
                )
            )
            starting.append((arm, ready, link_path))
        progress("starting servers: " + ", ".join(arm.name for arm in ARMS), 0, 0)
        servers = [ArmServer(arm, ready().url, link_path) for arm, ready, link_path in starting]
        results = asyncio.run(_play(settings, servers, documents, progress))
    return {
        "kind": "demo",
        "settings": {
            **asdict(settings),
            "host_tokens": int(settings.host_ratio * settings.device_tokens),
            "trace": settings.trace.name if settings.trace else None,
        },
        "seams_hold": all(server.seams_hold for server in servers if server.arm.kvflow),
        "identical_tokens": identical_tokens(*(result.rounds for result in results)),
        "differing_calls": differing_calls(*(result.rounds for result in results)),
        "graph": to_dict(GRAPH),
        "arms": [result.as_dict() for result in results],
        "comparison": compare(results[0], results[1]),
    }


def _shared_flags(settings: DemoSettings) -> list[str]:
    return [
        "--enable-hierarchical-cache",
        "--hicache-ratio",
        str(settings.host_ratio),
        "--hicache-write-policy",
        "write_through",
        "--page-size",
        str(settings.page_tokens),
        "--max-total-tokens",
        str(settings.device_tokens),
        "--max-running-requests",
        str(2 * settings.at_once),
        "--sleep-on-idle",  # the other arm's server must not take the processor
    ]


def _documents(settings: DemoSettings) -> list[str]:
    count = settings.rounds * settings.workflows
    if settings.trace is not None:
        return trace_documents(settings.trace, count, settings.document_chars)
    return source_files(count, settings.document_chars)


async def _play(
    settings: DemoSettings, servers: Sequence[ArmServer], documents: Sequence[str], progress: Progress
) -> list[ArmResult]:
    results = [ArmResult(server.arm) for server in servers]
    total = len(servers) * settings.rounds * settings.workflows
    done = 0

    for index in range(settings.rounds):
        batch = documents[index * settings.workflows : (index + 1) * settings.workflows]
        order = range(len(servers)) if index % 2 == 0 else reversed(range(len(servers)))
        for which in order:
            server, result = servers[which], results[which]

            def workflow_done(name: str = server.arm.name, round_number: int = index + 1) -> None:
                nonlocal done
                done += 1
                progress(f"round {round_number} of {settings.rounds}: {name}", done, total)

            try:
                await _play_round(settings, server, result, index, batch, workflow_done)
            except httpx.HTTPError as error:
                raise ServerUnavailableError(
                    f"{server.arm.name}: {server.url} does not answer any more ({error!r}): see its log in the "
                    "demonstration's folder"
                ) from None
    return results


async def _play_round(
    settings: DemoSettings,
    server: ArmServer,
    result: ArmResult,
    index: int,
    documents: Sequence[str],
    workflow_done: Callable[[], None],
) -> None:
    from kvflow.patches.cpu.model import ModelSpec

    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=server.url, timeout=REQUEST_TIMEOUT_S, limits=limits) as client:
        await server.check(client)
        await client.post("/generate", json={"text": "warm up", "sampling_params": {"max_new_tokens": 2}})
        await flush(server.arm.name, client)
        kvflow.instrument(client)
        before = server.link()
        record = RoundRecord(index, settings.page_tokens)
        waiting = list(enumerate(documents))[::-1]

        async def worker(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            while waiting:
                number, document = waiting.pop()
                name, start_s = f"r{index}w{number}", record.now_s()
                model = MeasuredModel(client, record, name, settings.output_tokens)
                await Review(model, settings.prompt_chars).run(document)
                record.workflows.append({"round": index, "workflow": name, "start_s": start_s, "end_s": record.now_s()})
                workflow_done()

        observed = server.observed(client, result.residency) if index == 0 else contextlib.nullcontext()
        try:
            async with observed, asyncio.TaskGroup() as workers:
                for number in range(settings.at_once):
                    workers.create_task(worker(number * settings.stagger_s))
        except ExceptionGroup as failed:  # what goes wrong for one goes wrong for all
            raise failed.exceptions[0] from None
        result.rounds.append(record)
        await asyncio.sleep(SETTLED_S)
        loads = server.link().since(before)
        result.stall_s += loads.stalled_s
        result.loaded_tokens += loads.copied_bytes // ModelSpec().kv_bytes_per_token
        await asyncio.to_thread(kvflow.flush)
