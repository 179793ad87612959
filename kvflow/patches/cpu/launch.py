"""Start the real SGLang server, on the CPU engine unless told otherwise, wait until it serves, and stop it."""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from kvflow.errors import ServerUnavailableError
from kvflow.patches.cpu import ENGINE_VARIABLE

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
STOP_GRACE_S = 10.0
POLL_S = 0.1
PROGRESS_S = 5.0
KEEP_ALIVE_S = 60
"""SGLang's own 5 s are those of most clients, who then write to a connection just as the server closes it."""

PORTS = range(20_000, 31_000)
"""Below the ephemeral ports: between a server's start and its first answer its own ranks take dozens of those."""
PORTS_TRIED = 100


class Ready(Protocol):
    """Waits until a server answers; what it takes and raises is said at `launch_server`."""

    def __call__(
        self, timeout_s: float = 180.0, on_progress: Callable[[float, str], None] | None = None
    ) -> ServerProcess:
        """Wait."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A running server.

    Attributes:
        url: base address, without a slash at the end.
        ready_s: seconds from start to the first answer.
    """

    url: str
    process: subprocess.Popen[bytes]
    log_path: Path
    ready_s: float

    def log_tail(self, lines: int = 40) -> str:
        """Give the last lines of the server's log."""
        return log_tail(self.log_path, lines)


@contextmanager
def launch_server(
    model: Path | str,
    *,
    timeout_s: float = 180.0,
    on_progress: Callable[[float, str], None] | None = None,
    **options: Any,
) -> Iterator[ServerProcess]:
    """Run ``python -m sglang.launch_server`` for the length of a ``with`` block.

    Args:
        model: what ``--model-path`` gets, see `kvflow.patches.cpu.model.build_model`.
        timeout_s: how long to wait for the first answer.
        on_progress: called every few seconds while waiting, with seconds waited and the last line of the log.
        options: as for `start_server`.

    Raises:
        ServerUnavailableError: it died, or did not answer in time; the message ends with the end of the log.
    """
    with start_server(model, **options) as ready:
        yield ready(timeout_s, on_progress)


@contextmanager
def start_server(
    model: Path | str,
    *,
    log_path: Path | str,
    extra_args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    tensor_parallel: int = 1,
    data_parallel: int = 1,
    python_path: Sequence[Path | str] = (),
    device: str = "cpu",
    spawn: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
) -> Iterator[Ready]:
    """As `launch_server`, but whoever enters decides when to wait, so that several servers can start at once.

    Args:
        model: what ``--model-path`` gets.
        log_path: file for the output of all its processes; overwritten.
        extra_args: further flags of SGLang, e.g. ``--enable-hierarchical-cache``. None are needed for the CPU engine.
        env: variables on top of those of `server_environment`.
        tensor_parallel: ranks that split the model; more than one needs no further flags.
        data_parallel: replicas, each with its own cache.
        python_path: folders to import from before the installed packages, e.g. another SGLang or a test's plugin.
        device: as SGLang calls it; any but ``cpu`` runs without the CPU engine.
        spawn: starts its first process.
    """
    log_path = Path(log_path)
    port = free_port()
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--device", device]
    command += ["--host", HOST, "--port", str(port)]
    command += ["--tp-size", str(tensor_parallel), "--dp-size", str(data_parallel), *extra_args]
    ranks = tensor_parallel * data_parallel
    environment = server_environment(ranks=ranks, python_path=python_path, device=device) | dict(env or {})
    began_s = time.monotonic()
    with log_path.open("wb") as log:
        process = spawn(
            command,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def ready(timeout_s: float = 180.0, on_progress: Callable[[float, str], None] | None = None) -> ServerProcess:
        url = f"http://{HOST}:{port}"
        _wait_until_ready(process, url, log_path, began_s + timeout_s, on_progress or _log_progress)
        ready_s = time.monotonic() - began_s
        logger.info("server ready after %.1f s at %s", ready_s, url)
        return ServerProcess(url=url, process=process, log_path=log_path, ready_s=ready_s)

    try:
        yield ready
    finally:
        stop(process)


def cpu_engine_args() -> list[str]:
    """Give the flags of SGLang the CPU engine needs beyond its environment; everything else has defaults there."""
    return ["--device", "cpu"]


def cpu_engine_environment(environment: Mapping[str, str], *, ranks: int = 1) -> dict[str, str]:
    """Add to an environment what a server on the CPU engine needs.

    Each rank gets an equal share of the cores this process may use, at least one, unless `environment` says otherwise.
    Its threads sleep at barriers instead of spinning: on a busy machine that is several times faster. Nothing is
    compiled here, so no process needs the compiler: importing it takes an eighth of a server's start. On a processor of
    Intel's MKL is told to give each row of a product the same bits whatever rows are beside it (strict conditional
    numerical reproducibility), which elsewhere makes it slower.
    """
    cores = sorted(os.sched_getaffinity(0))
    added = {"OMP_NUM_THREADS": str(max(1, len(cores) // ranks)), "OMP_WAIT_POLICY": "passive"}
    added["TORCHDYNAMO_DISABLE"] = "1"
    if _is_intel():
        added["MKL_CBWR"] = "AUTO,STRICT"
    if ranks > 1:
        added["SGLANG_CPU_OMP_THREADS_BIND"] = bind_list(cores, ranks)
    return added | dict(environment) | {ENGINE_VARIABLE: "1", "CUDA_VISIBLE_DEVICES": ""}


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def server_environment(
    *, ranks: int = 1, python_path: Sequence[Path | str] = (), device: str = "cpu"
) -> dict[str, str]:
    """Make the environment `launch_server` starts from.

    Inherited ``SGLANG_*`` and ``PYTHON*`` variables are dropped, so that a server is what its caller says; ``KVFLOW_*``
    stay. Nothing is looked up on model hubs, health checks do not generate (they would leave radix nodes), and idle
    connections stay open.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SGLANG_", "PYTHON"))}
    environment = (cpu_engine_environment(kept, ranks=ranks) if device == "cpu" else kept) | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
        "SGLANG_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
        "PYTHONUNBUFFERED": "1",
    }
    if python_path:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, python_path))
    return environment


def bind_list(cores: Sequence[int], ranks: int) -> str:
    """Share out cores for ``SGLANG_CPU_OMP_THREADS_BIND``; with fewer cores than ranks they are used more than once.

    SGLang refuses more ranks than NUMA nodes without it.
    """
    share = max(1, len(cores) // ranks)
    groups = [[cores[(rank * share + i) % len(cores)] for i in range(share)] for rank in range(ranks)]
    return "|".join(",".join(map(str, group)) for group in groups)


def free_port() -> int:
    """Find a TCP port nobody listens on.

    Raises:
        ServerUnavailableError: every port tried is taken.
    """
    for port in random.sample(PORTS, min(len(PORTS), PORTS_TRIED)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise ServerUnavailableError(f"no free port between {PORTS[0]} and {PORTS[-1]}: end a program that listens there")


def log_tail(log_path: Path, lines: int = 40) -> str:
    """Give the last lines of a log, without the noise native libraries print at exit."""
    text = log_path.read_text(errors="replace") if log_path.exists() else ""
    kept = [line for line in text.splitlines() if "leaked " not in line and "nanobind" not in line]
    return "\n".join(kept[-lines:])


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a server to end, then kill the process group it was started in."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            logger.warning("server %d did not stop in %.0f s; killing it", process.pid, STOP_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait_until_ready(
    process: subprocess.Popen[bytes],
    url: str,
    log_path: Path,
    deadline_s: float,
    on_progress: Callable[[float, str], None],
) -> None:
    began_s = reported_s = time.monotonic()
    with httpx.Client(trust_env=False, timeout=5.0) as client:
        while not _is_ready(client, url):
            now_s = time.monotonic()
            if process.poll() is not None:
                raise ServerUnavailableError(
                    f"the server ended with status {process.returncode} before it was ready\n{log_tail(log_path)}"
                )
            if now_s > deadline_s:
                raise ServerUnavailableError(
                    f"the server did not answer at {url} in {now_s - began_s:.0f} s\n{log_tail(log_path)}"
                )
            if now_s - reported_s > PROGRESS_S:
                reported_s = now_s
                on_progress(now_s - began_s, log_tail(log_path, lines=1))
            time.sleep(POLL_S)


def _is_ready(client: httpx.Client, url: str) -> bool:
    try:
        if client.get(f"{url}/health").status_code != httpx.codes.OK:
            return False
        # SGLang does this itself, but without a warm-up request it is often too early.
        client.post(f"{url}/freeze_gc")
    except httpx.TransportError:
        return False
    return True


def _log_progress(waited_s: float, last_line: str) -> None:
    logger.info("waiting for the server, %.0f s: %s", waited_s, last_line)
