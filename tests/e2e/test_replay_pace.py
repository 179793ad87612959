"""Replays on the real server keep to the trace: prompts, answers, order and pauses. Nothing else may run meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvflow.replay import run as running
from kvflow.replay.arms import Arm
from kvflow.replay.connection import Connection
from kvflow.replay.record import CallRecord, Round
from kvflow.replay.server import Running
from kvflow.replay.work import Load, Pace
from kvflow.sim.workload import read_workload
from kvflow.trace import LLMCall, Program, ToolEnd, ToolStart
from tests.e2e.test_replay import SESSIONS, _forked, plan_of, played, synthetic

__all__ = ["_forked"]

pytestmark = [pytest.mark.server, pytest.mark.slow]

TRACES = os.environ.get("KVFLOW_TEST_TRACES")
"""Folder with recorded traces; they are not part of the repository."""
Counted = dict[tuple[str, str], int]
"""Tokens of a call's prompt as the server counted them, by workflow and call."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """What the server says of each prompt's length, call by call."""
    told: Counted = {}
    original = Connection._stream

    async def stream(self: Connection, body: Any, seen: CallRecord, computed: Any) -> dict[str, Any] | None:
        last = await original(self, body, seen, computed)
        if last is not None:
            told[seen.workflow, seen.call] = last["meta_info"]["prompt_tokens"]
        return last

    monkeypatch.setattr(Connection, "_stream", stream)
    return told


def check_reproduced(seen: Round, drawn: list[Program], pace: Pace, counted: Counted) -> None:
    """Prompts, answers, order and gaps are those of the trace."""
    late_s: list[float] = []
    assert len(seen.workflows) == len(drawn)
    assert not any(call.error for call in seen.calls)
    calls = defaultdict(list)
    for call in seen.calls:
        calls[call.workflow, call.thread].append(call)
    for number, program in enumerate(drawn):
        workflow = f"{seen.seed}.{number}:{program.start.workflow}"
        for thread, events in program.threads.items():
            asked = [event for event in events if isinstance(event, LLMCall)]
            got = sorted(calls[workflow, thread], key=lambda call: call.asked_s)
            expected = [(call.call, call.agent, call.prompt.tokens, call.output_tokens) for call in asked]
            assert [(c.call, c.agent, counted[workflow, c.call], c.output_tokens) for c in got] == expected
            gaps_s = [after.asked_s - before.ended_s for before, after in pairwise(got)]
            for gap_s, least_s in zip(gaps_s, waits(events, pace), strict=True):
                assert least_s - 0.001 <= gap_s
                late_s.append(gap_s - least_s)
    late_s.sort()
    assert late_s[len(late_s) // 2] < 0.25
    assert late_s[len(late_s) * 19 // 20] < 0.75
    assert late_s[-1] < 1.5, "the machine may hold up one call"


def waits(events: list[Any], pace: Pace) -> list[float]:
    """What the trace puts between two calls of a thread: tools, which may overlap, and pauses."""
    ends = {event.tool_call: event for event in events if isinstance(event, ToolEnd)}
    found: list[float] = []
    now_s = 0.0
    ends_s: dict[str, float] = {}
    for event in events:
        if isinstance(event, LLMCall):
            found.append(now_s + pace.of_pause(event))
            now_s = 0.0
        elif isinstance(event, ToolStart):
            ends_s[event.tool_call] = now_s + pace.of_tool(ends[event.tool_call])
        elif isinstance(event, ToolEnd):
            now_s = max(now_s, ends_s[event.tool_call])
    return found[1:]


def test_sessions_are_played_as_they_were_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: Counted
) -> None:
    """32 agents with tools at once, twice, on a server that is started once and begins every round empty."""
    started = []

    @contextlib.contextmanager
    def one_more(arm: Arm, *how: Any) -> Iterator[Running]:
        started.append(arm.name)
        with original(arm, *how) as found:
            yield found

    original = running.serving
    monkeypatch.setattr(running, "serving", one_more)
    workload, plan = synthetic(), plan_of(tmp_path, rounds=2, keep_servers=True)
    rounds = played(plan, workload, tmp_path)
    assert started == ["lru"]
    for seen in rounds:
        check_reproduced(seen, plan.load.drawn(workload, seen.seed), plan.pace, counted)
        assert len(seen.tools) > SESSIONS
        assert seen.peak_memory_bytes is not None
        assert seen.stall_s is not None
        assert seen.loaded_tokens is not None
        assert seen.server_cpu_s is not None
        assert seen.client_cpu_s is not None
        assert seen.server_cpu_s > seen.client_cpu_s > 0
        assert min(call.device_tokens + call.host_tokens for call in seen.calls) == 0, "it began empty"
        device_tokens = sum(call.device_tokens for call in seen.calls)
        assert device_tokens > 0.5 * sum(call.prompt_tokens for call in seen.calls), "forced answers are found cached"


@pytest.mark.skipif(TRACES is None, reason="KVFLOW_TEST_TRACES names no folder with recorded traces")
def test_recorded_sessions_are_played_as_they_were_recorded(tmp_path: Path, counted: Counted) -> None:
    workload = read_workload([Path(str(TRACES)) / "swe_mini_swe_agent" / "sessions.jsonl.gz"])
    plan = plan_of(tmp_path, load=Load(programs=SESSIONS, tokens=0.02, time=0.02))
    (seen,) = played(plan, workload, tmp_path)
    check_reproduced(seen, plan.load.drawn(workload, 0), plan.pace, counted)
