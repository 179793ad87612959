"""Hints reach the scheduler by every route, and bad ones are answered or ignored as documented."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvflow.hints import envelope, segments_action, step_action, tool_action

pytestmark = [pytest.mark.server, pytest.mark.slow]

GRAPH = {"name": "t", "agents": {"a": {}, "b": {}, "c": {}}, "edges": [["START", "a"], ["a", "b"], ["b", "c"]]}


def hints(workflow: str, agent: str, **fields: Any) -> dict[str, Any]:
    return envelope([step_action(workflow_id=workflow, agent=agent, workflow_type="t", **fields)])


SYSTEM_TOKENS, OTHER_TOKENS = 310, 29
"""Of :func:`chat_body` as the byte tokenizer's template renders it: the system message; the user's and what follows."""


def chat_body(workflow: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "You plan. " * 30}, {"role": "user", "content": "Plan this."}]
    return {
        "model": "default",
        "messages": messages,
        "max_tokens": 4,
        "temperature": 0,
        "kv_hints": hints(workflow, "a", fixed_prompt_messages=1),
        **body,
    }


def fixed_tokens(server: Any) -> dict[str, Any]:
    return server.get("cache")["replicas"][0]["fixed_prompts"]


def test_generate_carries_hints(server: Any) -> None:
    server.step("w", "a", "hello " * 40, fixed_prompt_tokens=160)
    assert server.workflows()["w"]["running"] == ["a"]
    assert fixed_tokens(server) == {"a": {"device": 160, "host": 160}}


def test_a_batch_carries_one_envelope_each(server: Any) -> None:
    params = {"temperature": 0, "max_new_tokens": 2}
    body = {"text": ["x" * 64, "y" * 64], "sampling_params": params, "kv_hints": [hints("w1", "a"), hints("w2", "b")]}
    assert server.client.post("/generate", json=body).status_code == 200
    one_too_many = [hints(f"v{number}", "a") for number in range(3)]
    assert server.client.post("/generate", json=body | {"kv_hints": one_too_many}).status_code == 400
    assert {w: v["running"] for w, v in server.workflows().items()} == {"w1": ["a"], "w2": ["b"]}


@pytest.mark.parametrize("nothing", [None, {}])
def test_of_a_batch_some_may_say_nothing(server: Any, nothing: Any) -> None:
    params = {"temperature": 0, "max_new_tokens": 2}
    body = {"text": ["x" * 64, "y" * 64], "sampling_params": params, "kv_hints": [nothing, hints("w2", "b")]}
    assert server.client.post("/generate", json=body).status_code == 200
    assert {w: v["running"] for w, v in server.workflows().items()} == {"w2": ["b"]}
    assert server.client.post("/generate", json=body | {"kv_hints": [nothing, nothing]}).status_code == 200
    assert server.client.post("/generate", json=body | {"text": "x" * 64, "kv_hints": {}}).status_code == 200
    chat = chat_body("w", kv_hints=nothing)
    assert server.client.post("/v1/chat/completions", json=chat).status_code == 200


def test_a_type_may_have_slashes(server: Any) -> None:
    path = "/kvflow/v1/graphs/team%2Freview"
    assert server.client.put(path, json=GRAPH).status_code == 200
    assert server.client.get(path).json()["declared"]
    assert "team/review" in server.get("graphs")["types"]


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions_carry_a_top_level_key_and_count_fixed_messages(server: Any, stream: bool) -> None:
    response = server.client.post("/v1/chat/completions", json=chat_body("w", stream=stream))
    assert response.status_code == 200
    assert server.workflows()["w"]["running"] == ["a"]
    held = fixed_tokens(server)["a"]["device"]
    assert held == SYSTEM_TOKENS // 16 * 16  # without the user's message


@pytest.mark.parametrize("stream", [False, True])
def test_completions_carry_a_top_level_key(server: Any, stream: bool) -> None:
    body = {"model": "default", "prompt": "z" * 64, "max_tokens": 4, "kv_hints": hints("w", "a"), "stream": stream}
    assert server.client.post("/v1/completions", json=body).status_code == 200
    assert server.workflows()["w"]["running"] == ["a"]


def test_a_request_is_in_flight_until_it_is_answered_or_given_up(server: Any) -> None:
    def asked(workflow: str) -> bool:
        return server.workflows()[workflow]["next_use"]["a"]["asked"]

    params = {"max_new_tokens": 400, "ignore_eos": True}
    for workflow, whole in (("heard", True), ("given_up", False)):
        body = {"text": "a long answer", "sampling_params": params, "stream": True, "kv_hints": hints(workflow, "a")}
        with server.client.stream("POST", "/generate", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            assert asked(workflow)
            if whole:
                assert list(lines)
        assert eventually(lambda workflow=workflow: not asked(workflow))
    assert eventually(lambda: server.get("status")["replicas"][0]["guard"]["running"] == 0)


def test_a_chat_and_a_batch_are_answered_once_each(server: Any) -> None:
    assert server.client.post("/v1/chat/completions", json=chat_body("chat")).status_code == 200
    envelopes = [hints("w1", "a"), hints("w2", "b"), hints("w1", "a")]
    body = {"text": ["x" * 64, "y" * 64, "z" * 64], "sampling_params": {"max_new_tokens": 2}, "kv_hints": envelopes}
    assert server.client.post("/generate", json=body).status_code == 200
    assert eventually(
        lambda: not any(use["asked"] for w in server.workflows().values() for use in w["next_use"].values())
    )


def test_a_request_that_is_refused_is_not_left_in_flight_and_ends_nothing(server: Any) -> None:
    server.step("w", "a", "announces the workflow")
    body = {"text": "x", "sampling_params": {"max_new_tokens": -5}, "kv_hints": hints("w", "a", final=True)}
    assert server.client.post("/generate", json=body).status_code == 400
    assert eventually(lambda: not server.workflows()["w"]["next_use"]["a"]["asked"])


def test_schedulers_are_told_the_time_while_workflows_live(server: Any) -> None:
    def now_s() -> float:
        return server.get("status")["replicas"][0]["now_s"]

    server.step("w", "a", "hello")
    before_s = now_s()
    assert eventually(lambda: now_s() >= before_s + 0.5)


def test_the_time_to_the_next_use_is_learned_by_verb(server: Any) -> None:
    server.step("w", "a", "tool user")

    def told(verb: str, event: str) -> None:
        call = tool_action(workflow_id="w", agent="a", tool="shell of this test", verb=verb, event=event)
        assert [outcome["status"] for outcome in server.events(call)] == ["accepted"]

    for _ in range(5):
        for verb, takes_s in (("pytest", 1.0), ("ls", 0.0)):
            told(verb, "start")
            time.sleep(takes_s)
            told(verb, "end")
    left_s = {}
    for verb in ("pytest", "ls"):
        told(verb, "start")
        left_s[verb] = server.workflows()["w"]["next_use"]["a"]["in_s"]
        told(verb, "end")
    assert left_s["pytest"] > left_s["ls"] + 0.3


def test_events_report_progress_without_a_request(server: Any) -> None:
    server.client.put("/kvflow/v1/graphs/t", json=GRAPH)
    step = {"workflow_id": "w", "workflow_type": "t", "agent": "a"}
    outcomes = server.events(step_action(**step), step_action(**step, event="end"))
    assert [outcome["status"] for outcome in outcomes] == ["accepted", "accepted"]
    assert server.workflows()["w"]["steps_to_execution"]["b"] == 1


def test_a_tool_pins_what_its_agent_has_cached(server: Any) -> None:
    server.step("w", "a", "tool user " * 20)
    server.events(tool_action(workflow_id="w", agent="a", tool="pytest", event="start", expected_s=60))
    assert server.get("cache")["replicas"][0]["tokens"]["device/pinned"] >= 192
    server.events(tool_action(workflow_id="w", agent="a", tool="pytest", event="end"))
    assert server.get("cache")["replicas"][0]["tokens"].get("device/pinned", 0) == 0


def test_a_pin_expires_on_its_own(server: Any) -> None:
    server.step("w", "a", "tool user " * 20)
    server.events(tool_action(workflow_id="w", agent="a", tool="never_returns", event="start", expected_s=1.5))
    assert server.get("cache")["replicas"][0]["tokens"]["device/pinned"] >= 192
    deadline_s = time.monotonic() + 10
    while server.get("cache")["replicas"][0]["tokens"].get("device/pinned", 0) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert server.workflows()["w"]["pins"] == []
    assert server.get("cache")["replicas"][0]["tokens"].get("device/pinned", 0) == 0


BAD = envelope([{"action_id": "1", "action_type": "kvflow.step", "action_version": "1", "payload": {"agent": "a"}}])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/completions"])
def test_malformed_hints_are_answered_with_400_and_the_field(server: Any, path: str, stream: bool) -> None:
    bodies = {
        "/generate": {"text": "x", "sampling_params": {"max_new_tokens": 1}},
        "/v1/chat/completions": chat_body("w"),
        "/v1/completions": {"model": "default", "prompt": "x", "max_tokens": 1},
    }
    before = server.get("stats")["hints"]["malformed"]
    response = server.client.post(path, json={**bodies[path], "kv_hints": BAD, "stream": stream})
    assert server.get("stats")["hints"]["malformed"] == before + 1
    assert response.status_code == 400
    assert "actions.0.payload.workflow_id" in response.text
    assert server.workflows() == {}


def test_texts_to_reuse_are_of_a_request(server: Any) -> None:
    (outcome,) = server.events(segments_action(ranges=[], messages=True))
    assert (outcome["status"], outcome["reason"]) == ("rejected", "no request carries it")


@pytest.mark.parametrize("body", [BAD, [], {"protocol_version": "1"}, "text"])
def test_malformed_events_are_answered_with_400(server: Any, body: Any) -> None:
    response = server.client.post("/kvflow/v1/events", json=body)
    assert response.status_code == 400
    assert "kv_hints" in response.json()["error"]["message"]
    assert server.client.post("/kvflow/v1/events", content=b"{").status_code == 400
    assert server.client.post("/kvflow/v1/events", content=b"[" * 100_000).status_code == 400


def test_what_could_not_be_answered_is_not_taken(server: Any) -> None:
    odd = step_action(workflow_id="w", agent="a") | {"action_id": "\ud800"}
    response = server.client.post("/kvflow/v1/events", content=json.dumps(envelope([odd])))
    assert response.status_code == 400
    assert "action_id" in response.json()["error"]["message"]
    assert server.workflows() == {}


def test_of_many_workflows_those_are_told_that_were_heard_of_last(server: Any) -> None:
    server.events(*(step_action(workflow_id=f"w{number}", agent="a") for number in range(5)))
    told = server.get("workflows", limit=2)
    assert [workflow["workflow_id"] for workflow in told["workflows"]] == ["w4", "w3"]
    assert told["live_workflows"] == 5


def test_foreign_actions_pass_and_are_counted(server: Any) -> None:
    before = server.get("stats")["hints"]["outcomes"].get("other", {}).get("unsupported", 0)
    foreign = {"action_id": "1", "action_type": "dynamo.prefetch", "action_version": "7", "payload": {"x": [1]}}
    server.generate("hello", kv_hints=envelope([foreign]))
    assert server.get("stats")["hints"]["outcomes"]["other"]["unsupported"] == before + 1


def test_a_client_cannot_forge_the_internal_claim(server: Any) -> None:
    forged = {
        "action_id": "1",
        "action_type": "kvflow.claim",
        "action_version": "1",
        "payload": {"workflow_id": "w", "workflow_type": "t", "agent": "a", "fixed_tokens": 64},
    }
    server.step("w", "a", "announces the workflow")
    server.generate("forged " * 20, kv_hints=envelope([forged]))
    assert fixed_tokens(server) == {}


@pytest.mark.parametrize("stream", [False, True])
def test_a_final_request_ends_its_workflow_everywhere_once_it_is_answered(server: Any, stream: bool) -> None:
    body = {"text": "last words " * 20, "sampling_params": {"max_new_tokens": 2}, "stream": stream}
    assert server.client.post("/generate", json={**body, "kv_hints": hints("w", "a", final=True)}).status_code == 200
    assert eventually(lambda: "w" not in server.workflows())
    assert server.get("stats")["total"]["live_workflows"] == 0
    assert server.get("cache")["replicas"][0]["tokens"]["device/retired"] >= 208


def test_a_final_step_of_several_requests_ends_when_it_says_so(server: Any) -> None:
    for turn in ("one ", "one two ", "one two three "):
        server.step("w", "a", turn * 20, final=True, step_id="s")
    assert "w" in server.workflows()
    server.events(step_action(workflow_id="w", agent="a", workflow_type="t", step_id="s", event="end", final=True))
    assert "w" not in server.workflows()


def eventually(condition: Callable[[], bool], timeout_s: float = 10) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("form", ["parts", "tools", "template arguments"])
def test_fixed_messages_are_counted_however_the_chat_is_written(server: Any, form: str) -> None:
    body = chat_body("w")
    if form == "parts":
        body["messages"][0]["content"] = [{"type": "text", "text": body["messages"][0]["content"]}]
    elif form == "tools":
        body["tools"] = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": {}}}]
    else:
        body["chat_template_kwargs"] = {"unused": True}
    response = server.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    whole_tokens = response.json()["usage"]["prompt_tokens"]
    assert fixed_tokens(server)["a"]["device"] == (whole_tokens - OTHER_TOKENS) // 16 * 16


def test_the_graph_can_say_how_long_a_fixed_prompt_is(server: Any) -> None:
    graph = {"name": "sized", "agents": {"a": {"fixed_prompt_tokens": 96}}, "edges": [["START", "a"]]}
    assert server.client.put("/kvflow/v1/graphs/sized", json=graph).status_code == 200
    server.step("w", "a", "hello " * 40, workflow_type="sized")
    assert fixed_tokens(server)["a"]["device"] == 96


def test_what_a_client_invents_is_bounded_and_answered(server: Any) -> None:
    server.step("w", "a", "x")
    calls = [
        tool_action(workflow_id="w", agent="stranger", tool="t", event="start", call_id=str(i)) for i in range(300)
    ]
    outcomes = [outcome for start in range(0, 300, 60) for outcome in server.events(*calls[start : start + 60])]
    told = [outcome["status"] for outcome in outcomes]
    assert told == ["accepted"] * 300, "of more than 256 the oldest are forgotten"
    assert server.workflows()["w"]["pins"] == []


def test_odd_namespaces_neither_fail_nor_stop_the_counting(server: Any) -> None:
    for _ in range(10):
        body = {"text": "odd", "extra_key": "\0\u2028" * 100, "sampling_params": {"max_new_tokens": 1}}
        headers = {"Content-Type": "application/json"}
        server.client.post("/generate", content=json.dumps(body), headers=headers).raise_for_status()
    server.get("stats", reset=True)
    server.generate("counted")
    assert server.get("stats")["total"]["requests"] == 1
    assert server.get("status")["degraded"] == {}


def test_many_questions_at_once_are_all_answered(server: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: server.client.get("/kvflow/v1/stats").status_code, range(64)))
    assert set(answers) == {200}


def test_graphs_are_declared_shown_and_refused(server: Any) -> None:
    assert server.client.put("/kvflow/v1/graphs/shown", json=GRAPH).status_code == 200
    assert server.get("graphs/shown")["declared"] is True
    mermaid = server.client.get("/kvflow/v1/graphs/shown", params={"format": "mermaid"})
    assert mermaid.text.startswith(("graph", "flowchart"))
    assert server.client.get("/kvflow/v1/graphs/shown", params={"format": "dot"}).text.startswith("digraph")
    bad = {"name": "t", "edges": [["START", "a"], {"from": "a", "to": "a", "probability": 3}]}
    response = server.client.put("/kvflow/v1/graphs/shown", json=bad)
    assert response.status_code == 400
    assert "probability" in response.text
    response = server.client.put(f"/kvflow/v1/graphs/{'x' * 129}", json=GRAPH)
    assert response.status_code == 400
    assert "at most 128 characters" in response.json()["error"]["message"]
    assert server.client.get("/kvflow/v1/graphs/nothing_known").status_code == 404


def test_a_graph_is_learned_from_traffic(server: Any) -> None:
    for run in range(3):
        for agent in ("x", "y", "z"):
            server.step(f"run{run}", agent, "learn", workflow_type="learned", step_id=agent)
        done = {"workflow_id": f"run{run}", "workflow_type": "learned", "agent": "END", "final": True}
        server.events(step_action(**done))
    server.step("new", "x", "learn", workflow_type="learned")
    assert server.workflows()["new"]["steps_to_execution"]["z"] == 2
    assert server.get("graphs/learned")["declared"] is False


def test_more_than_a_server_should_have_to_read_is_refused_and_it_goes_on(server: Any) -> None:
    foreign = {"action_id": "1", "action_type": "other", "action_version": "1", "payload": {"x": "y" * 3900}}
    for method, route in (("POST", "hints"), ("POST", "events"), ("PUT", "policy"), ("PUT", "graphs/t")):
        long = server.client.request(method, f"/kvflow/v1/{route}", json=envelope([foreign] * 270))
        assert (long.status_code, long.json()["error"]["code"]) == (413, 413)
    many = server.client.post("/kvflow/v1/hints", json=envelope([foreign] * 257))
    assert many.status_code == 400
    assert "at most 256" in many.json()["error"]["message"]
    assert {outcome["status"] for outcome in server.events(*[foreign] * 256)} == {"unsupported"}


def test_status_names_every_seam_and_its_process(server: Any) -> None:
    status = server.get("status")
    assert status["seams_hold"] is True
    assert {seam["process"] for seam in status["seams"]} == {"http", "scheduler"}
    assert status["replicas"][0]["tree_core"] == "KvflowTreeCore"
    assert status["actions"][:3] == ["kvflow.feedback", "kvflow.step", "kvflow.tool"]


def test_metrics_carry_our_series(server: Any) -> None:
    server.step("w", "a", "metrics " * 30)
    text = server.client.get("/metrics").text
    series = {line.split("{")[0] for line in text.splitlines() if line.startswith("kvflow_")}
    assert {"kvflow_requests_total", "kvflow_prompt_tokens_total", "kvflow_computed_tokens_total"} <= series


def test_metrics_are_up_to_date_once_nothing_runs(server: Any) -> None:
    def counted() -> float:
        lines = server.client.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("kvflow_requests_total{"))

    server.step("w", "a", "before " * 30)
    before = counted()
    for turn in range(5):  # sooner one after another than series are published while requests run
        server.step("w", "a", f"metrics {turn} " * 30)
    assert counted() == before + 5
