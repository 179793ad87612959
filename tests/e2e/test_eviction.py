"""The real server keeps and drops KV by what the program does next, on both tiers."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvflow.hints import envelope, step_action
from tests.e2e.conftest import Server
from tests.e2e.test_hints import eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]

GRAPH = {
    "name": "t",
    "agents": {name: {} for name in ("first", "near", "far")},
    "edges": [["START", "first"], ["first", "near"], ["near", "far"]],
}
FIXED_TOKENS = 480


def text(label: str, chars: int = FIXED_TOKENS) -> str:
    """Text that differs from its first page on."""
    rng = random.Random(label)
    return "".join(rng.choice("abcdefghijklmnop ") for _ in range(chars))


def cached(server: Any, prompt: str) -> dict[str, int]:
    """Where the server finds a prompt when it comes again."""
    details = server.generate(prompt + "?", tokens=1)["meta_info"]["cached_tokens_details"] or {}
    return {"device": details.get("device") or 0, "host": details.get("host") or 0}


def settle(server: Any) -> None:
    """Wait until write-through backups are through, so that nothing is locked."""
    deadline_s = time.monotonic() + 20
    while server.get("stats")["total"]["copies_under_way"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def costs(server: Any) -> dict[str, float]:
    """What decisions go by now."""
    return server.get("status")["replicas"][0]["costs"]


def superseded_tokens(server: Any) -> int:
    """What of the device is of states that newer ones have replaced."""
    settle(server)
    return server.get("cache")["replicas"][0]["tokens"].get("device/superseded", 0)


def prepare(server: Any) -> dict[str, str]:
    """Three agents with fixed prompts of their own; the workflow stands at the first one."""
    server.client.put("/kvflow/v1/graphs/t", json=GRAPH)
    prompts = {agent: text(agent) for agent in ("near", "far", "first")}
    for agent in ("near", "far"):  # near is the older one
        server.step("warm", agent, prompts[agent] + text(f"warm {agent}", 32), fixed_prompt_tokens=FIXED_TOKENS)
    server.end("warm")
    server.step("w", "first", prompts["first"] + text("first tail", 32), fixed_prompt_tokens=FIXED_TOKENS)
    settle(server)
    return prompts


def flood(server: Any, tokens: int, label: str) -> None:
    """Traffic that no workflow claims."""
    for index in range(tokens // FIXED_TOKENS):
        server.generate(text(f"{label}{index}"), tokens=1)
        settle(server)


@pytest.mark.parametrize(("policy", "kept_tokens"), [("cost", FIXED_TOKENS), ("steps", FIXED_TOKENS), ("lru", 0)])
def test_device_eviction_spares_the_agent_that_runs_next(server: Any, policy: str, kept_tokens: int) -> None:
    server.set_policy(policy)
    prompts = prepare(server)
    flood(server, 3 * FIXED_TOKENS, "x")
    assert cached(server, prompts["near"])["device"] == kept_tokens
    if policy != "lru":
        evicted = server.get("stats")["total"]["evicted_tokens"]
        assert evicted["device/unclaimed"] + evicted["device/retired"] > 0


@pytest.mark.parametrize("policy", ["cost", "steps", "lru"])
def test_host_eviction_follows_the_graph_too(server: Any, policy: str) -> None:
    server.set_policy(policy)
    prompts = prepare(server)
    flood(server, 16 * FIXED_TOKENS, "y")  # three times what both tiers hold
    found = cached(server, prompts["near"])
    kept = found["device"] + found["host"]
    assert kept == (0 if policy == "lru" else FIXED_TOKENS)


def test_a_load_back_is_counted_and_gives_the_same_tokens(server: Any) -> None:
    prompt = text("again", 960)
    first = server.generate(prompt, tokens=8)
    settle(server)
    flood(server, 4 * FIXED_TOKENS, "z")
    again = server.generate(prompt, tokens=8)
    assert (again["meta_info"]["cached_tokens_details"] or {}).get("host", 0) > 0
    assert again["output_ids"] == first["output_ids"]
    total = server.get("stats")["total"]
    assert total["load_backs"] >= 1
    assert total["load_back_tokens"] == total["hit_tokens"]["host"] > 0
    assert total["load_back_s"] > 0
    server.step("w", "agent", text("while a workflow lives the schedulers are asked how long loads take"))
    load_token_s = total["load_back_s"] / total["load_back_tokens"]
    assert eventually(lambda: costs(server)["load_token_s"] == pytest.approx(load_token_s, rel=0.05))


def test_recomputed_tokens_are_those_that_had_been_cached(server: Any) -> None:
    server.set_policy("lru")
    prompt = text("gone", 960)
    server.generate(prompt, tokens=1)
    settle(server)
    flood(server, 16 * FIXED_TOKENS, "v")
    before = server.get("stats")["total"]["recomputed_tokens"]
    server.generate(prompt, tokens=1)
    assert server.get("stats")["total"]["recomputed_tokens"] - before == 960


def test_what_requests_compute_at_the_same_time_none_of_them_has_lost(server: Any) -> None:
    body = {"text": [text("fan out", 400)] * 4, "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}}
    assert server.client.post("/generate", json=body).status_code == 200
    total = server.get("stats")["total"]
    assert total["requests"] == 4
    assert total["recomputed_tokens"] == 0
    assert total["guard"]["lost_tokens"] == 0


def test_policies_switch_at_run_time_and_unknown_ones_are_refused(server: Any) -> None:
    server.set_policy("lru")
    assert server.get("status")["replicas"][0]["policy"] == "lru"
    response = server.client.put("/kvflow/v1/policy", json={"policy": "nonsense"})
    assert response.status_code == 400
    assert "choose one of lru, " in response.text
    response = server.client.put("/kvflow/v1/policy", json={"policy": "belady-cost"})
    assert response.status_code == 400
    assert "needs the future" in response.text
    assert server.client.put("/kvflow/v1/policy", json=["steps"]).status_code == 400
    assert server.get("status")["replicas"][0]["policy"] == "lru"


def test_a_flush_empties_the_cache_and_workflows_go_on(server: Any) -> None:
    prompts = prepare(server)
    server.flush()
    assert server.get("cache")["replicas"][0]["nodes"] == 0
    assert "w" in server.workflows()
    server.step("w", "near", prompts["near"], fixed_prompt_tokens=FIXED_TOKENS)
    assert server.get("cache")["replicas"][0]["tokens"]["device/fixed"] == FIXED_TOKENS


def test_fixed_prompts_are_found_without_being_declared(server: Any) -> None:
    prompt = text("shared")
    for workflow in ("w1", "w2"):
        server.step(workflow, "agent", prompt + text(workflow, 64))
    held = server.get("cache")["replicas"][0]["fixed_prompts"]["agent"]["device"]
    assert held == FIXED_TOKENS


def test_a_state_that_a_newer_one_replaced_leaves_before_live_ones(server: Any) -> None:
    server.set_policy("cost")
    states = {name: text(f"state {name}") for name in ("other", "old", "new")}
    server.step("w2", "agent", states["other"])  # the oldest
    server.step("w1", "agent", states["old"])
    server.step("w1", "agent", states["new"])
    assert superseded_tokens(server) >= FIXED_TOKENS
    flood(server, 2 * FIXED_TOKENS, "s")
    kept = {name: cached(server, states[name])["device"] for name in ("other", "new", "old")}
    assert kept == {"other": FIXED_TOKENS, "new": FIXED_TOKENS, "old": 0}


def test_conversations_that_one_agent_carries_on_in_turn_are_all_kept(server: Any) -> None:
    server.set_policy("cost")
    talks = {name: text(f"talk {name}", 256) for name in ("one", "two")}
    for turn in range(2):
        for name, talk in talks.items():
            talks[name] = talk + text(f"turn {turn}", 64)
            server.step("w", "agent", talks[name])
    assert superseded_tokens(server) < 64  # answers, which the next prompts leave out
    server.step("w", "agent", text("another", 256))
    assert superseded_tokens(server) >= 256


def test_contexts_of_an_agent_that_is_asked_several_times_at_once_are_all_kept(server: Any) -> None:
    def ask(number: int) -> None:
        hints = envelope([step_action(workflow_id="w", agent="agent", workflow_type="t")])
        server.generate(text(f"part {number}", 256), tokens=64, kv_hints=hints)

    server.set_policy("cost")
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(ask, range(3)))
    assert superseded_tokens(server) == 0
    ask(3)
    assert superseded_tokens(server) >= 256


def test_the_guard_measures_what_following_predictions_gains(server: Any) -> None:
    prompts = prepare(server)
    flood(server, 4 * FIXED_TOKENS, "g")
    assert sum(cached(server, prompts[agent])["device"] for agent in ("near", "first")) == 2 * FIXED_TOKENS
    stats = server.get("stats")
    assert stats["replicas"][0]["guard"]["share"] == 1.0
    regret = stats["total"]["guard"]
    assert regret["gained_s"] > regret["lost_s"]
    assert regret["fallbacks"] == 0
    assert "share" not in stats["total"]["guard"]
    server.set_policy("lru")
    guard = server.get("status")["replicas"][0]["guard"]
    assert (guard["guarded"], guard["share"]) == (False, 1.0)


def test_wrong_predictions_are_trusted_less_and_less(server: Any) -> None:
    """Claims that are never used are kept over what comes back, until the guard has seen enough of it."""
    for index in range(3):
        server.step(f"liar{index}", "agent", text(f"liar {index}"))
    settle(server)
    honest = [text(f"honest {index}") for index in range(3)]
    found = []
    for _ in range(10):
        for prompt in honest:
            found.append(cached(server, prompt)["device"])
            settle(server)
    guard = server.get("status")["replicas"][0]["guard"]
    assert guard["mistakes"] >= 1
    assert guard["share"] < 1.0
    assert 0 in found[3:]  # LRU would have had them all
    assert set(found[-6:]) == {FIXED_TOKENS}
    metrics = server.client.get("/metrics").text
    assert "kvflow_guard_mistakes_total" in metrics
    assert "kvflow_regret_lost_seconds_total" in metrics
    assert {"kvflow_guard_share", "kvflow_degraded", "kvflow_programs"} <= set(re.findall(r"kvflow_\w+", metrics))


def test_dozens_of_workflows_leave_nothing_behind(server: Any) -> None:
    for index in range(60):
        server.step(f"w{index}", "agent", text(f"p{index}", 96), fixed_prompt_tokens=32)
        server.events(step_action(workflow_id=f"w{index}", agent="END", workflow_type="t", final=True))
    assert server.workflows() == {}
    assert server.get("stats")["total"]["live_workflows"] == 0


@pytest.fixture(scope="module")
def _without_host(start: Callable[..., Any]) -> Iterator[Server]:
    env = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "20"}
    with start("--enable-kvflow", "--max-total-tokens", "2048", env=env) as server:
        yield server


@pytest.fixture
def without_host(_without_host: Server) -> Server:
    """A server without a host tier, which retracts requests that run beside others now and then."""
    _without_host.fresh()
    return _without_host


@pytest.mark.beside
def test_without_a_host_tier_the_next_agent_survives(without_host: Server) -> None:
    survivors = {}
    for policy in ("lru", "steps"):
        without_host.set_policy(policy)
        without_host.fresh()
        prompts = prepare(without_host)
        flood(without_host, 3 * FIXED_TOKENS, f"d{policy}")
        survivors[policy] = cached(without_host, prompts["near"])["device"]
    assert survivors == {"lru": 0, "steps": FIXED_TOKENS}


@pytest.mark.beside
def test_what_a_retracted_request_computes_again_is_counted(without_host: Server) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda i: without_host.generate(text(f"long{i}", 96), tokens=60), range(4)))
    retractions = sum(answer["meta_info"]["num_retractions"] for answer in answers)
    total = without_host.get("stats")["total"]
    running = without_host.get("status")["replicas"][0]["guard"]["running"]
    assert retractions > 0
    assert total["requests"] == 4
    # Each retry computes a prompt of 96 tokens and up to 60 of its answer, less what is still cached.
    assert 0 < total["recomputed_tokens"] <= retractions * (96 + 60)
    assert running == 0
