"""The five commands on the real server: what stays, what goes, what comes back, and what the caller is told."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kvflow.hints import command_action, envelope, step_action
from tests.e2e.conftest import Server
from tests.e2e.test_eviction import FIXED_TOKENS, cached, flood, settle, text

pytestmark = [pytest.mark.server, pytest.mark.slow]


def agent(workflow: str, name: str) -> dict[str, Any]:
    return {"kind": "agent", "workflow_id": workflow, "agent": name}


def command(server: Server, verb: str, target: dict[str, Any], **fields: Any) -> tuple[str, str]:
    response = server.client.post("/kvflow/v1/hints", json=envelope([command_action(verb, target=target, **fields)]))
    assert response.status_code == 200, response.text
    (outcome,) = response.json()["outcomes"]
    assert outcome["action_type"] == verb
    return outcome["status"], outcome["reason"]


def two_workflows(server: Server) -> dict[str, str]:
    """Two workflows whose contexts are in the cache, and of which nobody knows how they go on."""
    prompts = {name: text(name) for name in ("old", "new")}
    for name, prompt in prompts.items():
        server.step(name, "worker", prompt, workflow_type=name)
        settle(server)
    return prompts


def test_what_is_pinned_outlives_traffic_and_what_is_released_does_not(server: Server) -> None:
    server.set_policy("lru")
    prompts = two_workflows(server)
    assert command(server, "kv.pin", agent("old", "worker"), ttl_s=60) == ("accepted", "")
    flood(server, 2400, "one")
    assert cached(server, prompts["old"])["device"] >= FIXED_TOKENS - 16
    assert command(server, "kv.release", agent("old", "worker")) == ("accepted", "")
    flood(server, 2400, "two")
    assert cached(server, prompts["old"])["device"] == 0


def test_pins_never_keep_a_request_from_its_memory(server: Server) -> None:
    for number in range(4):
        server.step(f"w{number}", "worker", text(f"w{number}"), workflow_type=f"w{number}")
        settle(server)
        status, _ = command(server, "kv.pin", agent(f"w{number}", "worker"), ttl_s=600, priority=100)
        assert status == ("accepted" if number == 0 else "rejected"), "a tenant may pin a quarter: 512 tokens"
    assert server.generate(text("large", 1900), tokens=16)["meta_info"]["completion_tokens"] == 16


def test_a_pin_ends_by_itself(server: Server) -> None:
    server.set_policy("lru")
    prompts = two_workflows(server)
    assert command(server, "kv.pin", agent("old", "worker"), ttl_s=2.0) == ("accepted", "")
    assert pinned(server) >= FIXED_TOKENS - 16
    time.sleep(2.5)
    assert pinned(server) == 0
    flood(server, 2400, "one")
    assert cached(server, prompts["old"])["device"] == 0


def pinned(server: Server) -> int:
    """Tokens on the device that a pin holds."""
    return server.get("cache")["replicas"][0]["tokens"].get("device/pinned", 0)


def test_a_pin_lasts_as_long_as_it_says_while_no_workflow_lives(server: Server) -> None:
    time.sleep(2.5)  # nobody has told the schedulers the time since
    pin = command_action("kv.pin", target={"kind": "prompt"}, ttl_s=2.0)
    server.generate(text("mine"), kv_hints=envelope([pin]))
    server.step("w", "worker", text("another"), tenant="another")
    assert pinned(server) >= FIXED_TOKENS - 16
    assert command(server, "kv.pin", agent("w", "worker"), ttl_s=1.0)[0] == "accepted"
    assert pinned(server) >= 2 * (FIXED_TOKENS - 16)
    server.end("w")
    time.sleep(2.5)
    assert pinned(server) == 0


def there_and_back(server: Server) -> dict[str, str]:
    """One of two contexts leaves the device by command, and comes back by command."""
    prompts = two_workflows(server)
    assert command(server, "kv.demote", {"kind": "workflow", "workflow_id": "old"})[0] == "accepted"
    before = server.get("stats")["total"]["evicted_tokens"]
    assert sum(count for place, count in before.items() if place.startswith("device/")) >= FIXED_TOKENS
    status, reason = command(server, "kv.prefetch", agent("old", "worker"))
    assert (status, reason) == ("deferred", "loads as soon as the link and room allow")
    deadline_s = time.monotonic() + 10
    while server.get("stats")["total"]["prefetches"] == 0:
        assert time.monotonic() < deadline_s
    settle(server)
    return prompts


def test_demoted_context_leaves_at_once_and_is_loaded_again_by_order(server: Server) -> None:
    prompts = there_and_back(server)
    assert cached(server, prompts["old"])["host"] == 0
    assert command(server, "kv.prefetch", agent("old", "worker")) == ("accepted", "all of it is on the device")


def test_retained_context_leaves_the_device_but_is_not_lost(server: Server) -> None:
    server.set_policy("lru")
    prompts = two_workflows(server)
    assert command(server, "kv.retain", agent("old", "worker"), ttl_s=60)[0] == "accepted"
    flood(server, 9600, "one")  # more than both tiers hold
    assert cached(server, prompts["new"]) == {"device": 0, "host": 0}
    assert cached(server, prompts["old"])["host"] >= FIXED_TOKENS - 16


def test_a_request_pins_its_own_prompt_and_is_told(server: Server) -> None:
    server.set_policy("lru")
    actions = [
        step_action(workflow_id="w", agent="worker", workflow_type="t"),
        command_action("kv.pin", target={"kind": "prompt", "end_tokens": 240}, ttl_s=60),
        command_action("kv.pin", target=agent("nobody", "here")),
        {"action_id": "x", "action_type": "dynamo.prefetch", "action_version": "3", "payload": {"any": ["thing"]}},
    ]
    answer = server.generate(text("mine"), kv_hints=envelope(actions))
    outcomes = answer["meta_info"]["kvflow"]["outcomes"]
    assert [(o["action_type"], o["status"]) for o in outcomes] == [("kv.pin", "accepted"), ("kv.pin", "missing")]
    settle(server)
    flood(server, 2400, "one")
    assert cached(server, text("mine"))["device"] >= 240
    assert server.get("stats")["total"]["commands"] == {"accepted": 1, "missing": 1}
    counted = server.get("stats")["hints"]["outcomes"]
    assert counted["kv.pin"]["missing"] >= 1
    assert counted["other"]["unsupported"] >= 1


def with_prompt(server: Server, workflow: str, prompt: str, verb: str, **fields: Any) -> tuple[str, str]:
    """A step's request with a command on its own prompt, and what it is told."""
    said = command_action(verb, target={"kind": "prompt"}, **fields)
    step = step_action(workflow_id=workflow, agent="worker", workflow_type="t", tenant="one")
    answer = server.generate(prompt, kv_hints=envelope([step, said]))
    (outcome,) = answer["meta_info"]["kvflow"]["outcomes"]
    assert outcome["action_type"] == verb
    return outcome["status"], outcome["reason"]


def test_a_prompt_that_is_answered_twice_is_let_go_by_its_answers_alone(server: Server) -> None:
    """SGLang has it computed by a request of its own first, which is not what the workflow has asked for."""
    said = command_action("kv.demote", target={"kind": "prompt"})
    step = step_action(workflow_id="twice", agent="worker", workflow_type="t")
    params = {"n": 2, "max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    body = {"text": text("twice"), "sampling_params": params, "kv_hints": envelope([step, said])}
    answers = server.client.post("/generate", json=body).json()
    assert len(answers) == 2
    settle(server)
    told = commanded(server, "twice")
    deferred = [reason for reason in told if reason.startswith("kv.demote: deferred")]  # told of again when carried out
    assert told
    assert len(told) - len(deferred) <= 2


def commanded(server: Server, workflow: str) -> list[str]:
    entries = server.get("explain", workflow_id=workflow)["replicas"][0]["entries"]
    return [entry["reason"] for entry in entries if entry["event"] == "commanded"]


def test_a_request_lets_go_of_its_own_prompt_once_it_has_been_copied(server: Server) -> None:
    prompt = text("mine")
    assert with_prompt(server, "letting go", prompt, "kv.demote")[0] in ("accepted", "deferred")
    deadline_s = time.monotonic() + 10
    while not commanded(server, "letting go")[-1].startswith("kv.demote: accepted"):
        assert time.monotonic() < deadline_s, commanded(server, "letting go")
        time.sleep(0.05)
    assert not any(place.startswith("device") for place in server.get("cache")["replicas"][0]["tokens"])
    assert cached(server, prompt)["host"] >= FIXED_TOKENS - 16


def test_a_prompt_that_others_use_stays_and_the_request_is_told(server: Server) -> None:
    prompt = text("mine")
    server.step("other", "worker", prompt)
    settle(server)
    status, _ = with_prompt(server, "own", prompt, "kv.demote")
    assert status in ("clipped", "deferred", "rejected"), "its answer may go, the prompt stays"
    settle(server)
    assert cached(server, prompt)["device"] >= FIXED_TOKENS - 16


def test_a_prompt_is_retained_and_released_by_requests(server: Server) -> None:
    server.set_policy("lru")
    assert with_prompt(server, "keeping", text("mine"), "kv.retain", ttl_s=60) == ("accepted", "")
    assert with_prompt(server, "keeping", text("mine"), "kv.release") == ("accepted", "")
    assert with_prompt(server, "keeping", text("mine"), "kv.release")[0] == "missing"
    assert with_prompt(server, "keeping", text("mine"), "kv.prefetch") == ("accepted", "all of it is on the device")
    assert with_prompt(server, "keeping", "short", "kv.pin")[0] == "missing", "not a page of it can be cached"
    assert with_prompt(server, "keeping", text("mine", 960), "kv.pin")[0] == "clipped", "a quarter are 512 tokens"
    assert [reason.split(",")[0] for reason in commanded(server, "keeping")] == [
        "kv.retain: accepted",
        "kv.release: accepted",
        "kv.release: missing",
        "kv.prefetch: accepted",
        "kv.pin: missing",
        "kv.pin: clipped",
    ]


def test_a_tenant_named_once_can_release_what_its_later_requests_pin(server: Server) -> None:
    server.step("w", "worker", text("mine"), tenant="one")
    step = step_action(workflow_id="w", agent="worker", workflow_type="t")
    pin = command_action("kv.pin", target={"kind": "prompt"}, ttl_s=60)
    server.generate(text("mine"), kv_hints=envelope([step, pin]))
    assert command(server, "kv.release", agent("w", "worker")) == ("accepted", "")


def test_chat_completions_tell_it_with_the_meta_info_they_are_asked_for(server: Server) -> None:
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": text("chat")}],
        "max_tokens": 4,
        "n": 2,
        "return_meta_info": True,
        "kv_hints": envelope([command_action("kv.pin", target={"kind": "prompt", "end_tokens": 64}, ttl_s=9000)]),
    }
    response = server.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    for choice in response.json()["choices"]:
        (outcome,) = choice["meta_info"]["kvflow"]["outcomes"]
        assert (outcome["status"], outcome["reason"]) == ("clipped", "for 600 s (commands.max_ttl_s)")


def test_what_is_asked_beyond_limits_is_clipped_and_said(server: Server) -> None:
    two_workflows(server)
    assert command(server, "kv.pin", agent("old", "worker"), ttl_s=9000) == (
        "clipped",
        "for 600 s (commands.max_ttl_s)",
    )
    assert command(server, "kv.pin", {"kind": "prompt"})[0] == "rejected"
    assert command(server, "kv.pin", agent("no such", "worker"))[0] == "missing"
    assert set(server.get("status")["actions"]) >= {"kv.pin", "kv.retain", "kv.prefetch", "kv.demote", "kv.release"}
    assert server.get("status")["degraded"] == {}
