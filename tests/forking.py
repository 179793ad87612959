"""Servers that begin with SGLang imported already: forked from a process that has done so, as are their own processes.

Four fifths of a server's start are the same imports in each of its processes. What is started here is SGLang's launcher
all the same, with its arguments, its environment and a session of its own; it loads its plugins itself. Tests of
starting as such use real starts, and so do those that need other packages than the environment's.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.spawn
import multiprocessing.util
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from multiprocessing.spawn import get_preparation_data as _preparation_data
from types import SimpleNamespace
from typing import IO, Any
from unittest import mock

from kvflow.patches.cpu.environment import server_environment

PRELOADED = ["sglang.srt.entrypoints.http_server", "sglang.srt.managers.scheduler", "sglang.srt.models.registry"]


class Forked:
    """As much of a `subprocess.Popen` as whoever starts a server needs."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self._process.ident or 0, number)

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("a forked server", timeout or 0.0)
        return self.returncode


def spawn(command: Sequence[str], *, env: Mapping[str, str], stdout: IO[bytes], **_: Any) -> Forked:
    """Start ``python -m MODULE ARGUMENTS``; the options are `subprocess.Popen`'s."""
    with mock.patch.dict(os.environ, server_environment(), clear=True):
        multiprocessing.forkserver.set_forkserver_preload(PRELOADED)
        multiprocessing.forkserver.ensure_running()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_run, args=(list(command[2:]), dict(env), stdout.name))
    process.start()
    return Forked(process)


def _run(arguments: list[str], env: dict[str, str], log: str) -> None:
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _take(env)
    sys.path[:0] = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]
    vars(multiprocessing.process)["_parent_process"] = None  # nobody's child, as far as its modules can tell
    _fork_instead_of_spawning()
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _fork_instead_of_spawning() -> None:
    """Let all further processes be forked from a copy of this one as it is now, when SGLang has not done anything."""
    server, contexts = multiprocessing.forkserver, multiprocessing.context._concrete_contexts
    vars(server)["util"] = SimpleNamespace(**vars(multiprocessing.util) | {"spawnv_passfds": _copy})
    vars(multiprocessing.spawn)["get_preparation_data"] = _preparation
    contexts["spawn"] = contexts["forkserver"]
    server._forkserver.__init__()
    server.set_forkserver_preload([])
    server.ensure_running()


def _preparation(name: str) -> Any:
    return _Preparation(_preparation_data(name))


class _Preparation(dict[str, Any]):
    """What a child is told first; whoever reads it has the environment of whoever wrote it, as if just started."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (dict(os.environ), dict(self))


def _received(env: dict[str, str], data: dict[str, Any]) -> dict[str, Any]:
    _take(env)
    return data


def _take(env: Mapping[str, str]) -> None:
    """Have an environment, as far as it has been looked at already."""
    os.environ.clear()
    os.environ.update(env)
    sys.modules["torch"].set_num_threads(int(env["OMP_NUM_THREADS"]))


def _copy(_: bytes, command: Sequence[str], kept: Sequence[int]) -> int:
    """Fork what `multiprocessing` would start with a command; an error of its children is told their grandparent."""
    if child := os.fork():
        return child
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in {0, 1, 2, *kept}:
            with contextlib.suppress(OSError):
                os.close(number)
    vars(multiprocessing.forkserver._forkserver)["ensure_running"] = lambda: None  # children's children come from here
    parent = os.getppid()
    signal.signal(signal.SIGQUIT, lambda *_: os.kill(parent, signal.SIGQUIT))
    try:
        exec(command[-1])
    finally:
        os._exit(0)
