"""Loads ahead of use on the real server, over a link so slow that requests come while they are under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvflow.cli.explain import stalls_of, waits_of
from kvflow.hints import envelope, step_action
from kvflow.patches.cpu.link import BANDWIDTH_VARIABLE
from tests.e2e.conftest import HOST_TIER, Server
from tests.e2e.test_commands import command
from tests.e2e.test_eviction import FIXED_TOKENS, GRAPH, text

pytestmark = [pytest.mark.server, pytest.mark.slow]

DEVICE_TOKENS = 1280
TOKEN_BYTES = 2 * 4 * 4 * 2 * 64
"""K and V, float32, 4 layers, 2 heads of 64."""
LOAD_S = 0.6
"""How long loading a fixed prompt takes."""
TRIES = 3
"""On a busy machine the load may end before the request comes; then that is tried again."""
TAIL = "and this is what it is about"


@pytest.fixture(scope="module")
def slow_link(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    env = {BANDWIDTH_VARIABLE: str(FIXED_TOKENS * TOKEN_BYTES / LOAD_S)}
    env["KVFLOW_COSTS__LOAD_TOKEN_S"] = str(LOAD_S / FIXED_TOKENS)
    env["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(tmp_path_factory.mktemp("storage"))
    flags = ("--enable-kvflow", "--max-total-tokens", str(DEVICE_TOKENS), *HOST_TIER, "--admin-api-key", "owner")
    owner = {"Authorization": "Bearer owner"}
    with start(*flags, env=env, headers=owner) as server:
        server.client.put("/kvflow/v1/graphs/t", json=GRAPH).raise_for_status()
        yield server


def step(server: Server, workflow: str, agent: str, *, tokens: int = 4) -> dict[str, Any]:
    action = step_action(workflow_id=workflow, workflow_type="t", agent=agent, fixed_prompt_tokens=FIXED_TOKENS)
    return server.generate(text(agent) + TAIL, tokens=tokens, kv_hints=envelope([action]))


def until(server: Server, name: str, least: int) -> dict[str, Any]:
    """Wait until a counter has come so far."""
    deadline_s = time.monotonic() + 20
    while (stats := server.get("stats")["total"])[name] < least:
        assert time.monotonic() < deadline_s, stats
        time.sleep(0.02)
    return stats


def on_host_only(server: Server) -> dict[str, Any]:
    """Compute every agent's prompt once, and then so much else that none of them is on the device any more."""
    server.fresh()
    answers = {}
    for agent in ("first", "near", "far"):
        answers[agent] = step(server, "before", agent)["text"]
        time.sleep(LOAD_S + 0.3)  # the copy to the host goes over the link too
    server.end("before")
    for number in range(2):
        server.generate(text(f"flood {number}", 600), tokens=1)
        time.sleep(2 * LOAD_S)
    server.get("stats", reset=True)
    return answers


def while_another_runs(server: Server, workflow: str, agent: str) -> str:
    """What a step says that begins while another request is being answered."""
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(server.generate, text("other", 64), tokens=128)
        time.sleep(0.1)
        said = pool.submit(step, server, workflow, agent).result()["text"]
        assert other.result()["meta_info"]["completion_tokens"] == 128
    return str(said)


def test_what_the_next_step_needs_is_there_when_it_comes(slow_link: Server) -> None:
    answers = on_host_only(slow_link)
    assert step(slow_link, "w", "first")["text"] == answers["first"]
    until(slow_link, "prefetches", 1)
    time.sleep(LOAD_S + 0.5)
    began_s = time.monotonic()
    near = step(slow_link, "w", "near")
    assert time.monotonic() - began_s < LOAD_S
    assert near["text"] == answers["near"]
    assert near["meta_info"]["cached_tokens_details"]["device"] >= FIXED_TOKENS
    stats = slow_link.get("stats")["total"]
    assert stats["prefetch_used_tokens"] >= FIXED_TOKENS
    assert stats["prefetch_wasted_tokens"] == 0
    assert slow_link.get("status")["degraded"] == {}


def test_a_request_that_comes_while_its_context_is_loaded_waits_for_it_layer_by_layer(slow_link: Server) -> None:
    for _ in range(TRIES):
        answers = on_host_only(slow_link)
        step(slow_link, "w", "first")
        until(slow_link, "prefetches", 1)
        near = step(slow_link, "w", "near")
        assert near["text"] == answers["near"], "it has read what had not arrived"
        stats = slow_link.get("stats")["total"]
        if stats["prefetch_late_tokens"]:
            break
    assert stats["prefetch_late_tokens"] >= FIXED_TOKENS
    assert stats["stall_s"] > 0.01
    (replica,) = slow_link.get("explain", workflow_id="w")["replicas"]
    stalled = [entry for entry in replica["entries"] if entry["event"] == "stalled"]
    assert stalled[-1]["owners"] == [["w", "near"]]
    assert 0.01 < stalled[-1]["seconds"] <= stats["stall_s"] + 0.05
    (request,) = (stall for stall in replica["stalled"]["requests"] if stall["request_id"] == near["meta_info"]["id"])
    assert (request["agent"], request["seconds"]) == ("near", stalled[-1]["seconds"])
    (workflow,) = replica["stalled"]["workflows"]
    assert workflow["seconds"] >= request["seconds"]
    assert f"{workflow['seconds']:.2f} s for loads" in waits_of(replica)
    assert [next(iter(column.cells)) for column in stalls_of(replica).columns][:3] == [
        f"{workflow['seconds']:.2f}",
        str(workflow["requests"]),
        "w",
    ]
    assert slow_link.get("status")["degraded"] == {}


def test_while_others_run_it_is_passed_over_and_they_do_not_wait(slow_link: Server) -> None:
    for _ in range(TRIES):
        answers = on_host_only(slow_link)
        step(slow_link, "w", "first")
        until(slow_link, "prefetches", 1)
        assert while_another_runs(slow_link, "w", "near") == answers["near"]
        stats = slow_link.get("stats")["total"]
        if stats["passed_over"]:
            break
    assert stats["passed_over"] > 0
    assert stats["prefetch_late_tokens"] >= FIXED_TOKENS
    slow_link.flush()  # refused while anything is locked or under way
    assert slow_link.get("status")["degraded"] == {}


def test_over_a_fast_link_nobody_is_passed_over(server: Server) -> None:
    answer = step(server, "before", "first")["text"]
    server.end("before")
    for number in range(4):
        server.generate(text(f"flood {number}", 600), tokens=1)
    server.get("stats", reset=True)
    assert while_another_runs(server, "w", "first") == answer
    stats = server.get("stats")["total"]
    assert stats["hit_tokens"]["host"] + stats["prefetched_tokens"] >= FIXED_TOKENS
    assert stats["passed_over"] == stats["background_loads"] == 0


def test_a_workflow_that_goes_another_way_loses_nothing_but_the_load(slow_link: Server) -> None:
    answers = on_host_only(slow_link)
    step(slow_link, "w", "first")
    until(slow_link, "prefetches", 1)
    slow_link.end("w")
    assert step(slow_link, "v", "far")["text"] == answers["far"]
    assert slow_link.get("stats")["total"]["recomputed_tokens"] < FIXED_TOKENS
    assert slow_link.get("status")["degraded"] == {}
    slow_link.flush()


def test_others_go_on_while_the_context_of_a_request_is_loaded(slow_link: Server) -> None:
    for _ in range(TRIES):
        answers = on_host_only(slow_link)
        assert while_another_runs(slow_link, "v", "far") == answers["far"]
        stats = slow_link.get("stats")["total"]
        if stats["background_loads"]:
            break
    assert stats["background_load_tokens"] >= stats["background_used_tokens"] >= FIXED_TOKENS
    assert stats["background_wasted_tokens"] == 0
    assert stats["stall_s"] < LOAD_S / 2
    assert slow_link.get("status")["replicas"][0]["guard"]["gained_s"] < LOAD_S / 2, "it was not there when it came"
    slow_link.flush()
    assert slow_link.get("status")["degraded"] == {}


def test_what_was_loaded_for_a_request_that_gave_up_is_wasted(slow_link: Server) -> None:
    for _ in range(TRIES):
        on_host_only(slow_link)
        action = step_action(workflow_id="v", workflow_type="t", agent="far", fixed_prompt_tokens=FIXED_TOKENS)
        body = {"text": text("far") + TAIL, "rid": "given up", "kv_hints": envelope([action])}
        with ThreadPoolExecutor(2) as pool:
            other = pool.submit(slow_link.generate, text("other", 64), tokens=128)
            time.sleep(0.1)
            pool.submit(slow_link.client.post, "/generate", json=body)
            time.sleep(LOAD_S / 3)
            slow_link.client.post("/abort_request", json={"rid": "given up"}).raise_for_status()
            other.result()
        stats = slow_link.get("stats")["total"]
        if stats["background_loads"] and not stats["background_used_tokens"]:
            break
    for number in range(2):
        slow_link.generate(text(f"new flood {number}", 600), tokens=1)
        time.sleep(LOAD_S)
    stats = slow_link.get("stats")["total"]
    assert stats["background_used_tokens"] == 0
    assert stats["background_wasted_tokens"] >= FIXED_TOKENS
    slow_link.flush()
    assert slow_link.get("status")["degraded"] == {}


def being_loaded(server: Server, prompt: str, workflow_type: str) -> None:
    """Have a context on the host only, and a load of it begin by command."""
    server.fresh()
    server.step("w", "near", prompt, workflow_type=workflow_type)
    time.sleep(2 * LOAD_S)  # the copy to the host goes over the link too
    context = {"kind": "workflow", "workflow_id": "w"}
    while not cached_on_host_only(server):
        command(server, "kv.demote", context)
        time.sleep(0.1)
    server.get("stats", reset=True)
    command(server, "kv.prefetch", context)
    until(server, "prefetches", 1)


def cached_on_host_only(server: Server) -> bool:
    tokens = server.get("cache")["replicas"][0]["tokens"]
    return {place.partition("/")[0] for place, count in tokens.items() if count} == {"host"}


@pytest.mark.timeout(60)
def test_who_computes_what_is_being_loaded_does_not_read_it_before_it_is_there(slow_link: Server) -> None:
    """A request that wants the logprobs of its prompt computes all of it, and is then moved onto what is cached."""
    prompt = text("near") + TAIL
    computed = slow_link.generate(prompt, tokens=16)["text"]
    being_loaded(slow_link, prompt, "computed")
    found = slow_link.generate(prompt, tokens=16, return_logprob=True, logprob_start_len=0)
    assert found["text"] == computed
    assert found["meta_info"]["cached_tokens"] == 0
    assert slow_link.get("status")["degraded"] == {}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("timeout_s", [0, 5])
def test_a_server_that_only_loads_ahead_is_idle(slow_link: Server, timeout_s: float) -> None:
    being_loaded(slow_link, text("near"), f"flushed {timeout_s}")
    assert slow_link.client.post("/flush_cache", params={"timeout": timeout_s}).status_code == 200
    assert slow_link.get("status")["degraded"] == {}


@pytest.mark.timeout(60)
def test_so_it_is_where_storage_is_attached_and_detached(slow_link: Server) -> None:
    place = "/hicache/storage-backend"
    being_loaded(slow_link, text("near"), "attached")
    attached = slow_link.client.put(place, json={"hicache_storage_backend": "file"})
    assert attached.status_code == 200, attached.text
    being_loaded(slow_link, text("far"), "detached")
    detached = slow_link.client.delete(place)
    assert detached.status_code == 200, detached.text
    assert slow_link.get("status")["degraded"] == {}
