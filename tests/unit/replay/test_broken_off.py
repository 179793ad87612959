"""A replay that is broken off tells what was over by then, and so do the benchmarks that run one."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvflow.cli import app
from kvflow.errors import ServerUnavailableError
from kvflow.replay import run as running
from kvflow.replay.arms import parse_arms
from kvflow.replay.folder import held
from kvflow.replay.record import CallRecord, Round, WorkflowRecord
from kvflow.replay.run import Plan, comparable
from kvflow.replay.work import Load
from kvflow.trace import SynthOptions, synthetic_trace, write_trace

BENCH = Path(__file__).parents[3] / "bench"
ASKED = {KeyboardInterrupt(): 130, SystemExit(143): 143, ServerUnavailableError("lru: the server has died"): 1}
REPLAY = """
import signal, sys, time
def end(number, frame):
    time.sleep(0.5)
    print("servers stopped by", number, flush=True)
    sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, end)
print("started", flush=True)
time.sleep(60)
"""


def a_round(arm: str, index: int) -> Round:
    call = CallRecord(workflow="w", thread="main", agent="a", call="c", asked_s=0.0)
    call.first_s, call.ended_s, call.prompt_tokens, call.output_tokens, call.queue_s = 0.5, 1.0, 8, 4, 0.0
    workflow = WorkflowRecord(workflow="w", arrived_s=0.0, started_s=0.0, ended_s=1.0, failed_calls=0)
    return Round(arm=arm, index=index, seed=index, span_s=1.0, calls=[call], workflows=[workflow])


def test_arms_that_have_a_round_are_compared_by_the_rounds_they_all_have() -> None:
    plan = Plan(arms=tuple(parse_arms(["lru", "kvflow", "lpm"])), engine=None, load=Load(), rounds=5)
    over = [a_round(arm, index) for arm, index in (("lru", 0), ("kvflow", 0), ("kvflow", 1), ("lru", 1), ("kvflow", 2))]
    cut, rounds = comparable(plan, over)
    assert ([arm.name for arm in cut.arms], cut.rounds) == (["lru", "kvflow"], 2)
    assert [(seen.arm, seen.index) for seen in rounds] == [("lru", 0), ("lru", 1), ("kvflow", 0), ("kvflow", 1)]
    assert comparable(plan, []) == (Plan(arms=(), engine=None, load=Load(), rounds=0), [])


@pytest.mark.parametrize("error", ASKED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("over", [0, 2])
def test_the_command_writes_what_was_over(
    error: BaseException, over: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replay(plan: Plan, *_: Any, **__: Any) -> Iterator[Round]:
        yield from [a_round(arm.name, 0) for arm in plan.arms][:over]
        raise error

    monkeypatch.setattr(running, "replay", replay)
    path, out = tmp_path / "trace.jsonl", tmp_path / "result.json"
    write_trace(path, *synthetic_trace("chain", SynthOptions(workflows=1, turns=1)))
    words = ["replay", path, "--rounds", "3", "--arm", "lru", "--arm", "kvflow", "--arm", "lpm", "--json", out]
    result = CliRunner().invoke(app, [*map(str, words), "--folder", str(tmp_path / "f")])
    assert result.exit_code == ASKED[error], result.output
    assert "goes on from there" in " ".join(result.output.split())
    assert out.exists() == bool(over)
    if over:
        document = json.loads(out.read_text())
        assert document["broken_off"]
        assert [arm["name"] for arm in document["loads"][0]["arms"]] == ["lru", "kvflow"]
        assert "Caution. The replay was broken off" in result.output


def test_a_fresh_replay_has_dropped_the_rounds_of_all_loads_when_it_is_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_off(*_: Any, **__: Any) -> Iterator[Round]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(running, "replay", broken_off)
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, *synthetic_trace("chain", SynthOptions(workflows=4, turns=1)))
    of_later = tmp_path / "f" / "3-at-once" / "round-0-lru.json"
    of_later.parent.mkdir(parents=True)
    words = ["replay", trace, "--concurrency", "2", "--concurrency", "3", "--arm", "lru", "--folder", tmp_path / "f"]
    for more, kept in ([], True), (["--fresh"], False):
        of_later.write_text("{}")
        result = CliRunner().invoke(app, [*map(str, words), *more])
        assert result.exit_code == 130, result.output
        assert of_later.exists() == kept


def test_what_refuses_a_later_load_is_told_before_the_first_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "replay", lambda *_, **__: pytest.fail("it has been played"))
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, *synthetic_trace("chain", SynthOptions(workflows=4, turns=1)))
    words = ["replay", trace, "--concurrency", "2", "--concurrency", "3", "--arm", "lru", "--folder", tmp_path / "f"]
    with held(tmp_path / "f" / "3-at-once"):
        result = CliRunner().invoke(app, list(map(str, words)))
    assert (result.exit_code, "in use by another replay" in result.output) == (1, True), result.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_benchmark_waits_until_its_replay_has_ended(number: signal.Signals, tmp_path: Path) -> None:
    """The one it runs is not killed meanwhile, and hears of it once."""
    replay = tmp_path / "replay"
    replay.write_text(f"#!{sys.executable}\n{REPLAY}")
    replay.chmod(0o700)
    options = argparse.Namespace(arms=["lru"], profile="cpu", fast_link=False)
    bench = (
        "import signal, sys; from argparse import Namespace\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may be run in the background\n"
        f"sys.path.insert(0, {str(BENCH)!r})\n"
        f"import replaying; sys.executable = {str(replay)!r}\n"
        f"sys.exit(replaying.run(replaying.Preset(traces=(), options={{}}), {options!r}, []))"
    )
    with subprocess.Popen([sys.executable, "-c", bench], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(number)
        began_s = time.monotonic()
        told = process.stdout.read()
        assert (process.wait(), told) == (7, f"servers stopped by {number.value}\n")
        assert time.monotonic() - began_s > 0.4
