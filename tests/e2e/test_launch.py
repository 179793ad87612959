"""Starting the server: flags, refusals, strictness, ranks, replicas, versions, and kvflow switched off."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvflow.hints import command_action, envelope, step_action, tool_action
from kvflow.patches import cpu
from kvflow.patches.cpu.environment import server_environment
from kvflow.patches.cpu.launch import free_port, stop
from tests import forking
from tests.e2e.conftest import Server
from tests.e2e.reusing import DOCUMENT, ask, reuse, text
from tests.e2e.test_commands import there_and_back
from tests.e2e.test_eviction import settle
from tests.e2e.test_hints import eventually
from tests.plugins import write_plugin

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]

HOST_TIER = ("--enable-hierarchical-cache", "--hicache-ratio", "2", "--hicache-write-policy", "write_through")


REFUSED = [
    (("--enable-kvflow", "--disable-radix-cache"), {}, "--disable-radix-cache"),
    (("--enable-kvflow",), {"SGLANG_RUST_SERVER": "1"}, "SGLANG_RUST_SERVER"),
    (("--enable-kvflow",), {"KVFLOW_EVICTOIN__POLICY": "lru"}, "KVFLOW_EVICTOIN__POLICY"),
    (("--enable-kvflow",), {"KVFLOW_EVICTION__POLICY": "newest"}, "'newest' does not exist; choose one of lru, "),
    (("--enable-kvflow", "--kvflow-policy", "belady"), {}, "needs the future: use it in `kvflow simulate`"),
    (("--enable-kvflow", "--kvflow-config", "/does/not/exist.yaml"), {}, "not a file"),
    (("--kvflow-policy", "lru"), {}, "need --enable-kvflow"),
]


def test_help_lists_our_flags(model: Path) -> None:
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=server_environment())
    assert "--enable-kvflow" in done.stdout
    assert "--kvflow-policy NAME" in done.stdout
    assert "saga, cost, or one that another package brings" in " ".join(done.stdout.split())


@pytest.mark.parametrize(("flags", "env", "message"), REFUSED)
def test_what_would_silently_not_work_is_refused_with_the_reason(
    model: Path, tmp_path: Path, flags: tuple[str, ...], env: dict[str, str], message: str
) -> None:
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), *flags]
    with (tmp_path / "log").open("wb") as log:
        process = forking.spawn(command, env=server_environment() | env, stdout=log)
    try:
        assert process.wait(60) != 0
    finally:
        stop(process)
    assert message in (tmp_path / "log").read_text().splitlines()[-1]


def test_connections_outlive_the_idle_time_of_http_clients(server: Server) -> None:
    url = httpx.URL(server.url)
    connection = http.client.HTTPConnection(url.host, url.port or 80, timeout=10)
    with contextlib.closing(connection):
        sockets = []
        for idle_s in (0.0, 5.5):  # httpx and uvicorn both give up after 5 s, and the one writes while the other closes
            time.sleep(idle_s)
            connection.request("GET", "/health")
            sockets.append(connection.sock)
            response = connection.getresponse()
            response.read()
            assert response.status == 200
            assert not response.will_close
        assert sockets[0] is sockets[1]


@pytest.fixture(scope="module")
def stock(start: Callable[..., Any]) -> Iterator[Server]:
    """SGLang without kvflow, which is installed, and with the memory of the shared server."""
    flags = (*HOST_TIER, "--max-total-tokens", "2048", "--admin-api-key", "owner")
    with start(*flags, spawn=subprocess.Popen, headers={"Authorization": "Bearer owner"}) as server:
        yield server


def settle_stock(server: Server) -> None:
    """As :func:`settle`: SGLang refuses to give up its storage, of which there is none, while anything is copied."""
    assert eventually(lambda: server.client.delete("/hicache/storage-backend").status_code == 200)


def hooks(server: Server) -> set[str]:
    """What SGLang says to have been hooked in the HTTP process."""
    return set(re.findall(r"Applied \d+ hook\(s\) to (\S+) \(from: ", server.log.read_text()))


def test_installed_but_off_nothing_of_kvflow_is_there(stock: Server, server: Server) -> None:
    assert "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request" in hooks(server), "the other way"
    assert stock.client.get("/kvflow/v1/status").status_code == 404
    assert not any(line.startswith("kvflow_") for line in stock.client.get("/metrics").text.splitlines())
    hinted = stock.generate("hello", kv_hints=envelope([step_action(workflow_id="w", agent="a")]))
    assert hinted["output_ids"]
    log = stock.log.read_text()
    assert "KvflowTreeCore" not in log
    assert "source=registered('kvflow')" not in log
    cpu_engine = {target.target for target in cpu.TARGETS}
    assert hooks(stock) - cpu_engine <= {
        f"sglang.srt.server_args.ServerArgs.{name}" for name in ("add_cli_args", "from_cli_args")
    }


def test_without_hints_both_tiers_hit_and_miss_as_in_stock_sglang(stock: Server, server: Server) -> None:
    """The same prompts one after another, several times what both tiers hold: every hit, by tier, is the same."""
    rng = random.Random(5)
    heads = ["".join(rng.choice("abcdef ") for _ in range(320)) for _ in range(6)]
    prompts = [rng.choice(heads) + "".join(rng.choice("uvwxyz ") for _ in range(160)) for _ in range(24)]
    sequence = [rng.choice(prompts) for _ in range(60)]

    def play(target: Server, settle: Callable[[Server], None]) -> list[tuple[list[int], Any]]:
        seen = []
        for prompt in sequence:
            answer = target.generate(prompt, tokens=2)
            details = answer["meta_info"]["cached_tokens_details"] or {}
            seen.append((answer["output_ids"], details.get("device"), details.get("host")))
            settle(target)  # write-through done: what is locked must not depend on timing
        return seen

    stock.flush()
    ours, theirs = play(server, settle), play(stock, settle_stock)
    assert sum(bool(host) for _, _, host in theirs) > 5
    assert ours == theirs


def test_tensor_parallel_ranks_decide_alike_under_pressure(start: Callable[..., Any]) -> None:
    env = {"SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1", "KVFLOW_EVICTION__EXCLUSIVE": "always"}
    flags = ("--enable-kvflow", *HOST_TIER, "--hicache-ratio", "1.1", "--max-total-tokens", "2048")
    with start(*flags, env=env, tensor_parallel=2, spawn=forking.spawn) as server:
        pressure(server)
        total = server.get("stats")["total"]
        assert sum(total["evicted_tokens"].values()) > 0
        assert total["dropped_copy_tokens"] > 0
        assert total["load_backs"] > 0
        server.fresh()
        prompts = there_and_back(server)
        said = server.generate(prompts["old"])
        server.flush()
        assert server.generate(prompts["old"])["output_ids"] == said["output_ids"]
        assert server.generate("still there")["output_ids"]  # on divergence the checker ends the server
        assert "Rank consensus checker is enabled" in server.log.read_text()


@pytest.mark.parametrize("flags", [("--enable-priority-scheduling",), ("--kvflow-admission", "fcfs")])
def test_whose_requests_run_can_be_left_to_sglang(start: Callable[..., Any], flags: tuple[str, ...]) -> None:
    with start("--enable-kvflow", *flags, "--max-total-tokens", "2048") as server:
        server.step("w", "a", "hello " * 40)
        stats = server.get("stats")["total"]
        assert stats["live_workflows"] == 1
        assert "admission" not in stats
        told = "whose requests run is left to SGLang" in server.log.read_text()
        assert told is ("--enable-priority-scheduling" in flags), "where nobody has said so"


def test_data_parallel_replicas_all_take_hints(start: Callable[..., Any]) -> None:
    with start("--enable-kvflow", *HOST_TIER, "--max-total-tokens", "2048", data_parallel=2) as server:
        pressure(server)
        stats = server.get("stats")
        assert len(stats["replicas"]) == 2
        assert stats["total"]["requests"] >= 40
        assert all(replica["requests"] for replica in stats["replicas"])
        live = [replica["live_workflows"] for replica in stats["replicas"]]
        assert live == [len(server.workflows())] * 2
        assert live[0] >= 3
        server.step("only", "a", "x" * 200)  # one replica has it, the other misses it
        pin = command_action("kv.pin", target={"kind": "agent", "workflow_id": "only", "agent": "a"}, ttl_s=60.0)
        assert [outcome["status"] for outcome in server.events(pin)] == ["accepted"]
        server.set_policy("lru")
        assert {replica["policy"] for replica in server.get("status")["replicas"]} == {"lru"}


@pytest.mark.skipif("KVFLOW_TEST_OLD_SGLANG" not in os.environ, reason="needs SGLang 0.5.22 beside the environment")
def test_the_older_supported_sglang_works_too(start: Callable[..., Any]) -> None:
    flags = ("--enable-kvflow", *HOST_TIER, "--hicache-ratio", "1.1", "--max-total-tokens", "2048")
    env = {"KVFLOW_REUSE__MODE": "rotate+repair", "KVFLOW_EVICTION__EXCLUSIVE": "always"}
    old = {"python_path": [os.environ["KVFLOW_TEST_OLD_SGLANG"]], "spawn": subprocess.Popen}
    with start(*flags, env=env, **old) as server:
        status = server.get("status")
        assert status["sglang"].startswith("0.5.22")
        assert status["seams_hold"]
        pressure(server)
        total = server.get("stats")["total"]
        assert total["load_backs"] > 0
        assert sum(total["evicted_tokens"].values()) > 0
        assert total["dropped_copy_tokens"] > 0
        assert server.get("cache")["replicas"][0]["fixed_prompts"].keys() >= {"agent0"}
        server.fresh()
        there_and_back(server)
        document = text("reused", DOCUMENT)
        for agent in ("first", "second"):
            ask(server, agent, document)
        assert reuse(server)["repaired_tokens"] > 0
        assert server.get("status")["degraded"] == {}


BREAKER = """
def register():
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    UnifiedRadixCache.touch_prefix = lambda self, other_name: None
"""


@pytest.fixture
def broken_sglang(tmp_path: Path) -> Path:
    """A plugin that changes the signature of a method kvflow needs, as a later SGLang might."""
    write_plugin(tmp_path, "aaa_breaker", BREAKER)
    return tmp_path


def test_a_seam_that_does_not_hold_turns_its_feature_off_loudly(start: Callable[..., Any], broken_sglang: Path) -> None:
    flags = ("--enable-kvflow", "--max-total-tokens", "2048")
    with start(*flags, env={"KVFLOW_STRICT": "0"}, python_path=[broken_sglang]) as server:
        assert server.step("w", "a", "still works")["output_ids"]
        status = server.get("status")
        assert status["seams_hold"] is False
        broken = [seam for seam in status["seams"] if not seam["holds"]]
        assert [seam["name"] for seam in broken] == ["tree.touch"]
        assert "other_name" in broken[0]["problem"]
        assert status["replicas"][0]["cache"] == "UnifiedRadixCache"
        assert server.client.get("/kvflow/v1/stats").status_code == 400
        log = server.log.read_text()
    assert "kvflow seam tree.touch" in log


def test_strict_makes_it_an_error(start: Callable[..., Any], broken_sglang: Path) -> None:
    from kvflow.errors import ServerUnavailableError

    with (
        pytest.raises(ServerUnavailableError, match=r"tree\.touch"),
        start("--enable-kvflow", "--max-total-tokens", "2048", python_path=[broken_sglang]),
    ):
        pass


def pressure(server: Any) -> None:
    """Forty hinted calls, six at a time, several times what the cache holds, with everything else that can happen.

    Tool pins that end and that expire, workflows that end, policies that change and a flush in between.
    """

    def call(index: int) -> None:
        workflow, agent = f"w{index % 4}", f"agent{index % 5}"
        server.step(workflow, agent, f"{agent} " * 40 + f"{index} " * 60, step_id=str(index))
        pin = {"workflow_id": workflow, "agent": agent, "tool": "t", "call_id": str(index)}
        server.events(tool_action(**pin, event="start", expected_s=0.2 if index % 3 else 30))
        if index % 2:
            server.events(tool_action(**pin, event="end"))
        if index % 10 == 9:
            server.end(workflow)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(call, range(20)))
        server.set_policy("lru")
        list(pool.map(call, range(20, 30)))
        server.flush()
        server.set_policy("cost")
        list(pool.map(call, range(30, 40)))
    status = server.get("status")
    assert status["degraded"] == {}
    assert {replica["guard"]["running"] for replica in status["replicas"]} == {0}


def test_kvflow_serve_starts_sglang_with_kvflow_and_its_routes_obey_the_api_key(model: Path, tmp_path: Path) -> None:
    port = free_port()
    command = [str(Path(sys.executable).parent / "kvflow"), "serve", str(model), "--cpu", "--policy", "lru", "--strict"]
    command += ["--admission", "fcfs", "--infer", "--", "--port", str(port), "--max-total-tokens", "2048"]
    command += ["--api-key", "secret", "--admin-api-key", "owner"]
    known = {"Authorization": "Bearer secret"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline_s = time.monotonic() + 120
        status = None
        while status is None and time.monotonic() < deadline_s:
            assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
            try:
                status = httpx.get(f"http://127.0.0.1:{port}/kvflow/v1/status", timeout=20, headers=known).json()
            except httpx.TransportError:
                time.sleep(0.3)
        assert status is not None
        assert status["replicas"][0]["policy"] == "lru"
        assert status["settings"]["strict"] is True
        assert status["settings"]["admission"]["mode"] == "fcfs"
        assert status["settings"]["intake"]["infer"] is True
        unknown = {"Authorization": "Bearer no"}
        for path in ("status", "stats", "workflows", "cache", "graphs", "explain"):
            assert httpx.get(f"http://127.0.0.1:{port}/kvflow/v1/{path}", headers=unknown).status_code == 401
        for path in ("hints", "events"):
            told = httpx.post(f"http://127.0.0.1:{port}/kvflow/v1/{path}", json=envelope([]), headers=unknown)
            assert told.status_code == 401
        url, change = f"http://127.0.0.1:{port}/kvflow/v1/policy", {"policy": "cost"}
        assert httpx.put(url, json=change, headers=known).status_code == 401, "for the administrator's key alone"
        assert httpx.put(url, json=change, headers={"Authorization": "Bearer owner"}, timeout=20).status_code == 200
    finally:
        stop(process)
