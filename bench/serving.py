"""The server of a benchmark: a tiny random model on the CPU engine, or the geometry of an 8B model on a GPU."""

from __future__ import annotations

import argparse
import json
import random
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from kvflow.config import Reuse
from kvflow.patches.cpu.launch import launch_server
from kvflow.patches.cpu.model import build_model
from kvflow.replay.engines import GPU_FLAGS
from kvflow.replay.models import write_geometry

READY_S = 600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let a benchmark's user choose the device, and add flags of SGLang."""
    parser.add_argument("--device", default="cpu", help="cuda: the geometry of an 8B model, random weights")
    parser.add_argument("--layers", type=int, default=4, help="of the tiny model; repair computes the first two")
    parser.add_argument("--repair-share", type=float, default=Reuse().repair_share, help="as reuse.repair_share")
    parser.add_argument("--flags", default="", help="further flags of SGLang, e.g. '--attention-backend triton'")


def require_whole(url: str) -> None:
    """Make sure that no part of a server's kvflow, if it has one, has failed: it would measure something else.

    Raises:
        SystemExit: names the parts.
    """
    response = httpx.get(f"{url}/kvflow/v1/status", timeout=60, trust_env=False)
    if response.status_code == httpx.codes.NOT_FOUND:
        return
    status = response.raise_for_status().json()
    if status["degraded"] or not status["seams_hold"]:
        raise SystemExit(f"parts of kvflow failed, and SGLang went on without them: {status['degraded']}; see its log")


@contextmanager
def serve(options: argparse.Namespace, flags: Sequence[str], env: Mapping[str, str]) -> Iterator[httpx.Client]:
    """Run a server for the length of a ``with`` block.

    Args:
        options: those of :func:`add_options`.
        flags: of SGLang, besides those for the device.
        env: variables.
    """
    device = options.device
    env = {**env, "KVFLOW_REUSE__REPAIR_SHARE": str(options.repair_share)}
    flags = [*flags, *shlex.split(options.flags)]
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        if device == "cpu":
            build_model(model, layers=options.layers)
        else:
            write_geometry(model)
            flags = [*flags, *GPU_FLAGS]
        server = launch_server(
            model, log_path=Path(folder) / "log", extra_args=flags, env=env, device=device, timeout_s=READY_S
        )
        with server as started, httpx.Client(base_url=started.url, timeout=600) as client:
            yield client
            require_whole(started.url)


def words(name: str, tokens: int) -> list[int]:
    """Tokens that only a name decides: printable ASCII, one byte each."""
    rng = random.Random(name)
    return [rng.randrange(32, 127) for _ in range(tokens)]


def cache_prefix(client: httpx.Client, tokens: list[int], salt: str) -> None:
    """Have a prefix in the cache, in a namespace of its own."""
    body = {"input_ids": tokens, "cache_salt": salt, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    client.post("/generate", json=body).raise_for_status()


def first_token(client: httpx.Client, body: Mapping[str, Any], answer_tokens: int) -> tuple[float, dict[str, Any]]:
    """Ask for an answer of so many tokens; returns seconds to the first of them, and the whole of the last message."""
    # the first token comes at once, the others in few pieces
    params = {"temperature": 0, "max_new_tokens": answer_tokens, "ignore_eos": True, "stream_interval": 64}
    start_s, first_s, last = time.perf_counter(), 0.0, {}
    asked = {**body, "sampling_params": params, "stream": True}
    with client.stream("POST", "/generate", json=asked) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                first_s = first_s or time.perf_counter() - start_s
                last = json.loads(line.removeprefix("data: "))
    return first_s, last
