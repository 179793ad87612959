"""The server of a benchmark: a tiny random model on the CPU engine, or the geometry of an 8B model on a GPU."""

from __future__ import annotations

import argparse
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from kvflow.config import Reuse
from kvflow.patches.cpu.launch import launch_server
from kvflow.patches.cpu.model import build_model
from kvflow.replay.engines import GPU_FLAGS, write_geometry

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
