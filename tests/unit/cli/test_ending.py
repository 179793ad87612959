"""Commands that are asked to end leave no server behind, however they are asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvflow.cli import app, sim
from kvflow.cli.ending import ended_by_signals
from kvflow.patches.cpu.launch import stop

STUBBORN = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
ASKING = [signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", ASKING)
def test_a_signal_unwinds_the_stack(number: signal.Signals) -> None:
    ours = signal.signal(number, signal.SIG_DFL)  # the tests themselves may be run by nohup
    try:
        with pytest.raises(SystemExit) as ended, ended_by_signals():
            signal.raise_signal(number)
        assert ended.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, ours)


def test_a_command_that_shall_outlive_its_terminal_does() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_interrupt_leaves_no_server_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", STUBBORN]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        wait = process.wait

        def interrupted(timeout: float | None = None) -> int:
            if timeout is not None:
                raise KeyboardInterrupt
            return wait(60)

        monkeypatch.setattr(process, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stop(process)
        assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", ASKING)
def test_a_measurement_ends_the_server_it_has_started(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    @contextmanager
    def server(url: str | None) -> Iterator[str]:
        try:
            os.kill(os.getpid(), number)
            yield "http://nowhere"
        finally:
            ended.append(url)

    monkeypatch.setattr(sim, "_server", server)
    before = signal.signal(number, lambda *_: None)
    try:
        result = CliRunner().invoke(app, ["sim", "measure", "--out", str(tmp_path / "samples.json")])
    finally:
        signal.signal(number, before)
    assert (result.exit_code, ended) == (128 + number, [None])
