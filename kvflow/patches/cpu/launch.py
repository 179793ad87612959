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
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import httpx

from kvflow.errors import ServerUnavailableError
from kvflow.patches.cpu.environment import server_environment

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
STOP_GRACE_S = 10.0
POLL_S = 0.1
PROGRESS_S = 5.0
PORTS = range(20_000, 31_000)
"""Below the ephemeral ports: between a server's start and its first answer its own ranks take dozens of those."""
PORTS_TRIED = 100
PORT_TAKEN = "address already in use"
"""What the log of a server says whose port was free when it was chosen."""
STARTS = 3
"""How often a server is started at most, each time on another port."""


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
        model: what ``--model-path`` gets: a folder, or a name on a model hub.
        log_path: file for the output of all its processes; overwritten.
        extra_args: further flags of SGLang, e.g. ``--enable-hierarchical-cache``. None are needed for the CPU engine.
        env: variables on top of those of `server_environment`.
        tensor_parallel: ranks that split the model; more than one needs no further flags.
        data_parallel: replicas, each with its own cache.
        python_path: folders to import from before the installed packages, e.g. another SGLang or a test's plugin.
        device: as SGLang calls it; any but ``cpu`` runs without the CPU engine.
        spawn: starts its first process.
    """
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--device", device]
    command += ["--tp-size", str(tensor_parallel), "--dp-size", str(data_parallel), *extra_args]
    ranks = tensor_parallel * data_parallel
    local = Path(model).exists()
    environment = server_environment(ranks=ranks, python_path=python_path, device=device, offline=local)
    environment |= dict(env or {})
    server = _Starting(partial(spawn, env=environment), command, Path(log_path))
    try:
        yield server.ready
    finally:
        stop(server.process)


class _Starting:
    """A server that starts, and starts again if somebody has taken its port before it listened there.

    Args:
        spawn: starts a process.
        command: without host and port.
        log_path: file for its output.
    """

    def __init__(self, spawn: Callable[..., subprocess.Popen[bytes]], command: list[str], log_path: Path) -> None:
        self._spawn = spawn
        self._command = command
        self._log_path = log_path
        self._began_s = time.monotonic()
        self.process, self._url = self._start()

    def ready(self, timeout_s: float = 180.0, on_progress: Callable[[float, str], None] | None = None) -> ServerProcess:
        """Wait until it answers."""
        deadline_s, on_progress = self._began_s + timeout_s, on_progress or _log_progress
        for started in range(1, STARTS + 1):
            try:
                _wait_until_ready(self.process, self._url, self._log_path, deadline_s, on_progress)
                break
            except ServerUnavailableError:
                if started == STARTS or not self._lost_its_port():
                    raise
                logger.warning("%s was taken before the server listened there; starting it on another port", self._url)
                stop(self.process)
                self.process, self._url = self._start()
        ready_s = time.monotonic() - self._began_s
        logger.info("server ready after %.1f s at %s", ready_s, self._url)
        return ServerProcess(url=self._url, process=self.process, log_path=self._log_path, ready_s=ready_s)

    def _lost_its_port(self) -> bool:
        return self.process.poll() is not None and PORT_TAKEN in self._log_path.read_text(errors="replace")

    def _start(self) -> tuple[subprocess.Popen[bytes], str]:
        port = free_port()
        with self._log_path.open("wb") as log:
            process = self._spawn(
                [*self._command, "--host", HOST, "--port", str(port)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return process, f"http://{HOST}:{port}"


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
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        logger.warning("server %d did not stop in %.0f s; killing it", process.pid, STOP_GRACE_S)
    finally:  # another interrupt must not leave it behind
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
