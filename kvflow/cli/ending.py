"""Commands that start servers, or programs, end them, too, when they are asked to end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ASKING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM, and a terminal that is closed, unwind the stack as SIGINT does, so that servers are stopped."""
    before = {number: signal.getsignal(number) for number in _ASKING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_program(command: list[str], environment: dict[str, str]) -> int:
    """Run a program until it ends. Interrupts of the terminal reach it, too, and what it does about them is its own.

    If we are asked to end, so is the program.

    Returns:
        Its exit status; of one that a signal has ended, 128 and that signal's number.

    Raises:
        OSError: it cannot be run.
    """
    with ended_by_signals(), subprocess.Popen(command, env=environment) as program:
        while program.returncode is None:
            try:
                program.wait()
            except KeyboardInterrupt:
                pass
            except SystemExit:
                program.terminate()
    return program.returncode if program.returncode >= 0 else 128 - program.returncode
