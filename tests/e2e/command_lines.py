"""Runs command lines of SGLang's launcher that end by themselves: each in a process of its own, forked when all that
takes long has been imported. Started as a script, reads ``[[flags, environment], …]``, writes ``[[code, stderr], …]``.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvflow.patches.cpu.launch import server_environment

LAUNCHER = "sglang.launch_server"
CommandLine = tuple[Sequence[str], dict[str, str]]


def ended(model: Path, lines: Sequence[CommandLine]) -> list[tuple[int, str]]:
    """Exit code and stderr of each."""
    work = [(["--model-path", str(model), *flags], env) for flags, env in lines]
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(work), capture_output=True, text=True, timeout=300, check=True, env=server_environment(),
    )  # fmt: skip
    return [(code, stderr) for code, stderr in json.loads(done.stdout)]


def _run(flags: Sequence[str], env: dict[str, str]) -> tuple[int, str]:
    with tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if not child:
            os.dup2(stderr.fileno(), 2)
            os.dup2(2, 1)
            os._exit(_launch(flags, env))
        _, status = os.waitpid(child, 0)
        stderr.seek(0)
        return os.waitstatus_to_exitcode(status), stderr.read().decode()


def _launch(flags: Sequence[str], env: dict[str, str]) -> int:
    code: Any = 0
    os.environ.update(env)
    sys.argv = [LAUNCHER, *flags]
    try:
        runpy.run_module(LAUNCHER, run_name="__main__")
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def _main() -> None:
    import sglang.srt.entrypoints.http_server  # noqa: F401 - what takes long

    results = [_run(flags, env) for flags, env in json.load(sys.stdin)]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    _main()
