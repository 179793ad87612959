"""Replays on the real server: they do what the trace did, and lose nothing when something goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvflow.cli import app
from kvflow.errors import ConfigError, ServerUnavailableError
from kvflow.replay import run as running
from kvflow.replay import server as serving
from kvflow.replay.arms import Arm, parse_arms
from kvflow.replay.connection import Connection
from kvflow.replay.contents import Contents
from kvflow.replay.engines import Sizes, cpu_engine
from kvflow.replay.forcing import FLAG
from kvflow.replay.player import Player, arrive
from kvflow.replay.preparing import Ready
from kvflow.replay.record import CallRecord, Round
from kvflow.replay.run import Plan, Progress, claimed, replay
from kvflow.replay.server import Running
from kvflow.replay.work import Load, Pace
from kvflow.sim.workload import Workload
from kvflow.trace import SynthOptions, programs, synthetic_trace, write_trace
from tests import forking
from tests.e2e.conftest import Server

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]

SESSIONS = 32


def synthetic(kind: str = "react", workflows: int = SESSIONS, output_tokens: int = 12) -> Workload:
    options = SynthOptions(
        workflows=workflows, seed=4, fixed_tokens=256, task_tokens=64, output_tokens=output_tokens, turns=3
    )
    return Workload(list(programs(synthetic_trace(kind, options)[1])))


def plan_of(folder: Path, arms: str = "lru", **more: Any) -> Plan:
    sizes = Sizes(device_tokens=8192, host_tokens=16384)
    settings: dict[str, Any] = {"load": Load(time=0.3), "pace": Pace(max_gap_s=1.0), **more}
    return Plan(arms=tuple(parse_arms(arms.split(","))), engine=cpu_engine(folder, sizes), **settings)


def played(plan: Plan, workload: Workload, folder: Path, progress: Progress = lambda *_: None) -> list[Round]:
    with claimed(plan, workload, folder / "rounds"):
        return list(replay(plan, workload, folder / "rounds", progress))


@pytest.fixture(autouse=True, scope="module")
def _forked() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "launch_server", partial(serving.launch_server, spawn=forking.spawn))
        yield


def test_rounds_that_are_over_are_not_played_again(server: Server, tmp_path: Path) -> None:
    workload, plan = synthetic(workflows=4), plan_of(tmp_path, f"here={server.url}", free=True)
    (first,) = played(plan, workload, tmp_path)
    kept = tmp_path / "rounds" / "round-0-here.json"
    written = kept.stat().st_mtime_ns
    again, second = played(replace(plan, rounds=2), workload, tmp_path)
    assert (again, second.kept) == (replace(first, kept=True), False)
    assert kept.stat().st_mtime_ns == written
    assert (second.index, second.seed) == (1, 1)
    with pytest.raises(ConfigError, match="holds rounds of another replay"):
        played(replace(plan, free=False), workload, tmp_path)


def test_a_server_that_dies_breaks_the_round_off_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed when the first call has been answered: clients cut off while they connect leak anyio's sockets."""
    original, servers, killed_s = running.prepare, [], []

    async def known(server: Any, client: Any, **more: Any) -> Any:
        servers.append(server)
        return await original(server, client, **more)

    def progress(_label: str, answered: int, _calls: int) -> None:
        if answered and not killed_s:
            killed_s.append(time.monotonic())
            os.killpg(servers[0].process.process.pid, signal.SIGKILL)

    monkeypatch.setattr(running, "prepare", known)
    with pytest.raises(ServerUnavailableError, match="lru: the server has died"):
        played(plan_of(tmp_path, load=Load()), synthetic(), tmp_path, progress)
    assert time.monotonic() - killed_s[0] < 30
    assert not list((tmp_path / "rounds").glob("round-*.json"))


def test_a_found_server_that_dies_leaves_no_round_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if all calls have failed before anybody has looked after it."""
    url = "http://127.0.0.1:9"

    async def ready_before_it_died(*_: Any, **__: Any) -> Ready:
        return Ready(kvflow=False, page_tokens=16)

    monkeypatch.setattr(running, "prepare", ready_before_it_died)
    with pytest.raises(ServerUnavailableError, match=f"here: calls did not reach {url}"):
        played(plan_of(tmp_path, f"here={url}", pace=Pace(max_gap_s=0.0)), synthetic(), tmp_path)
    assert not list((tmp_path / "rounds").glob("round-*.json"))


@pytest.fixture(scope="module")
def plain(start: Callable[..., Any]) -> Iterator[Server]:
    """A server that can give recorded answers, wants an API key, and knows nothing of kvflow."""
    key = {"Authorization": "Bearer sesame"}
    with start(FLAG, "--api-key", "sesame", "--max-total-tokens", "8192", headers=key) as server:
        yield server


def trace(path: Path, kind: str = "supervisor", **options: Any) -> Path:
    settings: dict[str, Any] = {"workflows": 3, "fixed_tokens": 128, "output_tokens": 8, **options}
    write_trace(path, *synthetic_trace(kind, SynthOptions(**settings)))
    return path


def command(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_command_plays_a_trace_and_compares_results(server: Server, model: Path, tmp_path: Path) -> None:
    """On a server that runs the arms differ in what programs tell it."""
    path, out = trace(tmp_path / "trace.jsonl"), tmp_path / "result.json"
    common = ("replay", path, "--max-gap", "0.2", "--scale", "0.5", "--free", "--rounds", "3", "--url", server.url)
    common += ("--prompts", "chat", "--tokenizer", model, "--folder", tmp_path / "f")
    result = command(*common, "--json", out, "--html", tmp_path / "r.html")
    assert result.exit_code == 0, result.output
    assert "workflow completion mean" in result.output
    assert "were kept" not in result.output
    document = json.loads(out.read_text())
    silent, telling = document["loads"][0]["arms"]
    assert [(arm["name"], arm["hints"], arm["kvflow"]) for arm in (silent, telling)] == [
        ("silent", False, True),
        ("telling", True, True),
    ]
    assert telling["measures"]["workflows"] == 9
    assert telling["measures"]["failed_calls"] == 0
    assert set(telling["against_first"]) == {"completion_s", "run_s", "ttft_s", "latency_s"}
    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") >= 4
    compared = command("compare", out, out)
    assert compared.exit_code == 0, compared.output
    for arm in document["loads"][0]["arms"]:
        arm["measures"]["failed_calls"] += 1
    worse = tmp_path / "worse.json"
    worse.write_text(json.dumps(document))
    assert command("compare", out, worse).exit_code == 3
    worse.write_text(json.dumps(document | {"traces_digest": "another"}))
    assert command("compare", out, worse).exit_code == 2
    assert command("compare", out, worse, "--force").exit_code == 3
    assert "6 of 6 rounds were kept" in command(*common).output
    assert "were kept" not in command(*common, "--fresh").output


def test_what_a_found_server_cannot_do_is_told_before_a_round(server: Server, plain: Server, tmp_path: Path) -> None:
    path = trace(tmp_path / "trace.jsonl")

    def refused(url: str, *words: str) -> str:
        result = command("replay", path, "--url", url, "--rounds", "1", "--folder", tmp_path / "f", *words)
        assert result.exit_code == 1, result.output
        assert not list((tmp_path / "f").rglob("round-*.json"))
        return " ".join(result.output.split())

    assert "launch it with --enable-custom-logit-processor" in refused(server.url)
    assert "give --api-key, or set KVFLOW_API_KEY" in refused(plain.url)
    key = ("--api-key", "sesame")
    assert "telling: there is no kvflow" in refused(plain.url, *key, "--arm", "telling=hints")
    assert "have 16 tokens, --page-tokens is 64" in refused(
        plain.url, *key, "--arm", "a=no-hints", "--page-tokens", "64"
    )


def test_an_api_key_is_used_and_not_written(plain: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = trace(tmp_path / "trace.jsonl", workflows=1), tmp_path / "result.json"
    words = ["replay", path, "--url", plain.url, "--arm", "a=no-hints", "--rounds", "1", "--max-gap", "0"]
    words += ["--folder", tmp_path / "f", "--json", out, "--api-key", "sesame"]
    monkeypatch.setattr("sys.argv", ["kvflow", *map(str, words)])
    result = command(*words)
    assert result.exit_code == 0, result.output
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(written) >= 4
    assert not [file for file in written if b"sesame" in file.read_bytes()]
    assert "--api-key …" in json.loads(out.read_text())["command"]


def test_answers_hold_what_others_take_for_the_end_of_a_line(plain: Server) -> None:
    """The byte tokenizer's ids are bytes of UTF-8; SGLang sends such characters as they are."""
    recorded = array("q", list("a\x85b\u2028c\u2029d".encode()))

    async def ask() -> CallRecord:
        seen = CallRecord(workflow="w", thread="main", agent="a", call="c", asked_s=0.0)
        arm = Arm(name="a")
        async with Running(arm=arm, url=plain.url, api_key="sesame").client(60.0) as client:
            connection = Connection(client, arm, free=False, began_s=time.perf_counter())
            await connection.ask(list(range(40, 80)), recorded, [], seen)
        return seen

    seen = asyncio.run(ask())
    assert (seen.error, seen.output_tokens) == ("", len(recorded))


def test_what_is_computed_again_is_told_by_who_computed_it_first_not_by_who_was_answered_first(plain: Server) -> None:
    """Two programs with the same fixed prompt: the second finds it, and is answered while the first still generates."""
    sizes = {"agents": 1, "turns": 1, "fixed_tokens": 256, "task_tokens": 32, "seed": 4}
    long, short, lost = (
        next(iter(programs(synthetic_trace("chain", SynthOptions(workflows=1, output_tokens=tokens, **sizes))[1])))
        for tokens in (400, 4, 4)
    )
    seen, arm = Round(arm="a", index=0, seed=0), Arm(name="a")

    async def play() -> None:
        async with Running(arm=arm, url=plain.url, api_key="sesame").client(60.0) as client:
            connection = Connection(client, arm, free=True, began_s=time.perf_counter())
            player = Player(connection, seen, Contents(), Pace(), page_tokens=1)
            await arrive(player, [(0.0, long, "long"), (0.7, short, "short")], None)
            await asyncio.to_thread(plain.flush)
            await arrive(player, [(0.0, lost, "lost")], None)

    asyncio.run(play())
    calls = {call.workflow: call for call in seen.calls}
    assert not any(call.error for call in seen.calls)
    assert calls["short"].device_tokens >= 256
    assert calls["short"].ended_s < calls["long"].ended_s
    assert calls["long"].recomputed_tokens == 0
    assert calls["lost"].recomputed_tokens >= 256


def test_programs_have_their_texts_put_in_where_their_arm_says_so(server: Server, tmp_path: Path) -> None:
    arms = "kvflow,rotate=@kvflow-reuse KVFLOW_REUSE__MODE=rotate"
    plain, reusing = played(plan_of(tmp_path, arms), synthetic("supervisor", 4, output_tokens=100), tmp_path)
    assert ("reused_tokens" in plain.stats, plain.answers == "") == (False, False)
    assert reusing.stats["reused_tokens"] > 500, "what a worker has said stands in its supervisor's prompt"
    assert not any(call.error for call in reusing.calls)
    with pytest.raises(ServerUnavailableError, match=r"nothing is reused at .* \(reuse.mode is off\)"):
        played(plan_of(tmp_path, f"here={server.url} reuse", free=True), synthetic(workflows=1), tmp_path / "refused")


def test_calls_that_fail_are_told_by_the_exit_status(server: Server, tmp_path: Path) -> None:
    short, long = (
        trace(tmp_path / "short.jsonl"),
        trace(tmp_path / "long.jsonl", "react", task_tokens=4000, workflows=1),
    )
    asked = ("replay", short, long, "--url", server.url, "--arm", "a=no-hints", "--free", "--rounds", "1")
    result = command(*asked, "--max-gap", "0", "--folder", tmp_path / "f", "--json", tmp_path / "result.json")
    assert result.exit_code == 1, result.output
    assert "calls failed" in result.output
    measures = json.loads((tmp_path / "result.json").read_text())["loads"][0]["arms"][0]["measures"]
    assert 0 < measures["failed_calls"] < measures["calls"]


def test_a_trace_of_short_prompts_runs_on_the_default_engine(tmp_path: Path) -> None:
    """Answers that come in parts are read as well, recorded ones and those that the model makes up."""
    path = trace(tmp_path / "trace.jsonl", "chain", workflows=1, fixed_tokens=16, task_tokens=8, turns=1)
    parts, out = "parts=@no-host --incremental-streaming-output", tmp_path / "result.json"
    plan = ("--arm", "no-host", "--arm", parts, "--rounds", "1", "--max-gap", "0", "--fresh", "--json", out)
    for free in (), ("--free",):
        assert command("replay", path, *plan, "--folder", tmp_path / "f", *free).exit_code == 0
        assert json.loads(out.read_text())["loads"][0]["identical_tokens"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--arm", "lur"), "there is no arm 'lur'"),
        (("--prompts", "words"), "--prompts is 'words'"),
        (("--prompts", "chat", "--url", "http://127.0.0.1:9"), "give its folder or name by --tokenizer"),
        (("--profile", "tpu"), "--profile is 'tpu'"),
        (("--token-ids", "10"), "--token-ids is '10'"),
        (("--device-tokens", "much"), "'much' is no size"),
        (("--launch", "--tp 2"), "--launch has no --model-path"),
        (("--json", "/nowhere/at/all.json"), "there is no folder"),
        (("--url", "http://127.0.0.1:9", "--arm", "kvflow"), "'kvflow' is a way to launch a server"),
        (("--url", "http://127.0.0.1:9", "--device-tokens", "9k"), "--device-tokens: no server is launched"),
        (("--scale", "10000"), "give --scale"),
    ],
)
def test_what_cannot_be_done_is_told_before_anything_is(
    arguments: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    path = trace(tmp_path / "trace.jsonl", "chain")
    result = command("replay", path, "--folder", tmp_path / "f", *arguments)
    assert result.exit_code == 2
    assert told in result.output


def test_the_gpu_profile_can_be_tried_dry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    path = trace(tmp_path / "trace.jsonl", "chain")
    result = command("replay", path, "--profile", "gpu", "--dry-run", "--folder", tmp_path / "f")
    assert result.exit_code == 0, result.output
    assert "--device cuda" in result.output
    assert not (tmp_path / "f").exists()
