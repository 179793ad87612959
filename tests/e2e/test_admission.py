"""Program-aware admission on the real server: who does not fit waits, and everybody is answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from kvflow.hints import envelope, step_action
from tests.e2e.conftest import HOST_TIER, Server
from tests.e2e.test_hints import eventually
from tests.e2e.test_live_views import run

pytestmark = [pytest.mark.server, pytest.mark.slow]

DEVICE_TOKENS = 2048
PROGRAMS, TURNS = 6, 3
SLOW_PREFILL = {"KVFLOW_COSTS__PREFILL_TOKEN_S": "0.001", "KVFLOW_COSTS__LOAD_TOKEN_S": "0.001"}
SLOW_PREFILL |= {"KVFLOW_COSTS__LEARN_LOADS": "0", "KVFLOW_COSTS__LEARN_COMPUTE": "0"}
"""A machine on which contexts are dear, so that it pays to hold programs back."""


@pytest.fixture(scope="module")
def gated(start: Callable[..., Any]) -> Iterator[Server]:
    flags = ("--enable-kvflow", "--max-total-tokens", str(DEVICE_TOKENS))
    with start(*flags, "--grammar-backend", "xgrammar", *HOST_TIER, env=SLOW_PREFILL) as server:
        yield server


@pytest.fixture
def sglangs_order(start: Callable[..., Any]) -> Iterator[Server]:
    flags = ("--kvflow-admission", "fcfs", "--schedule-policy", "lpm", "--max-total-tokens", str(DEVICE_TOKENS))
    with start("--enable-kvflow", *flags, *HOST_TIER, env={"KVFLOW_PREFETCH__ENABLED": "0"}) as server:
        yield server


def program(server: Server, name: str) -> list[str]:
    """An agent that works on 600 to 900 tokens; returns what it says."""
    text = f"{name}: " + f"{name} looks at something long. " * 20
    said = []
    for turn in range(TURNS):
        answer = server.step(name, "worker", text, final=turn == TURNS - 1, workflow_type="long")["text"]
        said.append(answer)
        text += answer + f" and then, in turn {turn}, something more. " * 3
    return said


def side_by_side(server: Server, names: list[str]) -> tuple[list[list[str]], int]:
    """What programs say that run at the same time, and how many requests were held at most."""
    held = [0]
    with ThreadPoolExecutor(len(names)) as pool:
        running = [pool.submit(program, server, name) for name in names]
        while not all(one.done() for one in running):
            held.append(server.get("stats")["replicas"][0]["admission"]["held"])
    return [one.result() for one in running], max(held)


def test_programs_that_do_not_fit_wait_and_all_say_what_they_would_say_alone(gated: Server) -> None:
    names = [f"program-{number}" for number in range(PROGRAMS)]
    together, most_held = side_by_side(gated, names)
    assert most_held > 0
    (replica,) = json.loads(run(gated, "explain", "--limit", "1000", "--json"))["replicas"]
    waited_s = [entry["seconds"] for entry in replica["entries"] if entry["event"] == "let in"]
    assert "held back" in {entry["event"] for entry in replica["entries"]}
    assert max(waited_s) > 0
    gated.fresh()
    alone = [program(gated, name) for name in names]
    assert together == alone
    assert gated.get("stats")["replicas"][0]["admission"] == {"programs": 0, "held": 0}
    assert gated.get("status")["degraded"] == {}


def test_sglangs_order_of_eviction_leaves_admission_on(gated: Server) -> None:
    """What docs/operating.md says of switching while the server runs."""
    gated.fresh()
    gated.set_policy("lru")
    try:
        _, most_held = side_by_side(gated, [f"switched-{number}" for number in range(PROGRAMS)])
    finally:
        gated.set_policy("cost")
    assert most_held > 0
    assert gated.get("stats")["replicas"][0]["admission"] == {"programs": 0, "held": 0}


def test_in_sglangs_own_order_and_without_loads_ahead_all_say_the_same(sglangs_order: Server) -> None:
    names = [f"program-{number}" for number in range(PROGRAMS)]
    with ThreadPoolExecutor(PROGRAMS) as pool:
        together = [*pool.map(lambda name: program(sglangs_order, name), names)]
    stats = sglangs_order.get("stats")
    assert sum(stats["total"]["evicted_tokens"].values()) > 0
    assert stats["total"]["prefetches"] == 0
    assert "admission" not in stats["replicas"][0]
    sglangs_order.fresh()
    assert together == [program(sglangs_order, name) for name in names]
    assert sglangs_order.get("status")["degraded"] == {}


def test_a_large_request_that_does_not_fit_lets_a_small_one_by(gated: Server) -> None:
    gated.fresh()

    def ask(agent: str, tokens: int, answer_tokens: int) -> dict[str, Any]:
        action = step_action(workflow_id="family", workflow_type="long", agent=agent)
        sampling = {"max_new_tokens": answer_tokens, "ignore_eos": True}
        prompt = [len(agent) + 10] * tokens
        body = {"input_ids": prompt, "sampling_params": sampling, "kv_hints": envelope([action])}
        return gated.client.post("/generate", json=body).json()

    def waiting() -> int:
        return gated.client.get("/v1/loads").json()["loads"][0]["num_waiting_reqs"]

    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(ask, "running", 400, 900)
        assert eventually(lambda: gated.get("stats")["replicas"][0]["admission"]["programs"] == 1)
        large = pool.submit(ask, "large", 1300, 4)
        assert eventually(lambda: waiting() == 1)
        assert ask("small", 20, 4)["meta_info"]["completion_tokens"] == 4
        assert not running.done()
        assert not large.done()
    assert running.result()["meta_info"]["completion_tokens"] == 900
    assert large.result()["meta_info"]["completion_tokens"] == 4
    gated.end("family")


def test_a_client_that_gives_up_leaves_nobody_waiting(gated: Server) -> None:
    gated.fresh()
    names = [f"quitter-{number}" for number in range(PROGRAMS)]

    def give_up(name: str) -> None:
        text = f"{name}: " + f"{name} looks at something long. " * 20
        action = step_action(workflow_id=name, workflow_type="long", agent="worker")
        body = {"text": text, "sampling_params": {"max_new_tokens": 400}, "kv_hints": envelope([action])}
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{gated.url}/generate", json=body, timeout=0.5)

    held = []
    with ThreadPoolExecutor(PROGRAMS) as pool:
        leaving = [pool.submit(give_up, name) for name in names]
        while not all(one.done() for one in leaving):
            held.append(gated.get("stats")["replicas"][0]["admission"]["held"])
    for one in leaving:
        one.result()
    assert max(held) > 0
    assert program(gated, "patient")
    gated.end(*names)
    assert eventually(lambda: gated.get("stats")["replicas"][0]["admission"] == {"programs": 0, "held": 0})


def test_a_request_that_is_retracted_and_then_given_up_holds_nobody_up(gated: Server) -> None:
    gated.fresh()
    action = step_action(workflow_id="gone", workflow_type="long", agent="worker", final=True)
    body = {"rid": "gone", "text": "Something long. " * 40, "sampling_params": {"max_new_tokens": 900}}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(gated.client.post, "/generate", json=body | {"kv_hints": envelope([action])})
        while gated.get("stats")["replicas"][0]["admission"]["programs"] == 0:
            pass
        post(gated, "pause_generation", mode="retract")
        post(gated, "abort_request", rid="gone")
        post(gated, "continue_generation")
        asked.result()
    assert program(gated, "next")
    assert "gone" in gated.workflows(), "what is aborted ends nothing"
    gated.end("gone")
    assert gated.get("stats")["replicas"][0]["admission"] == {"programs": 0, "held": 0}


def test_requests_whose_grammar_has_to_be_compiled_first_wait_for_their_turn_too(gated: Server) -> None:
    gated.fresh()

    def ask(number: int) -> str:
        action = step_action(workflow_id=f"json-{number}", workflow_type="long", agent="worker", final=True)
        text = f"{number}: " + "Somebody looks at something long. " * 20
        sampling = {"max_new_tokens": 40, "temperature": 0, "regex": f"[a-f{number}]{{{30 + number}}}"}
        body = {"text": text, "sampling_params": sampling, "kv_hints": envelope([action])}
        return gated.client.post("/generate", json=body).json()["text"]

    held = []
    with ThreadPoolExecutor(PROGRAMS) as pool:
        running = [pool.submit(ask, number) for number in range(PROGRAMS)]
        while not all(one.done() for one in running):
            held.append(gated.get("stats")["replicas"][0]["admission"]["held"])
    assert max(held) > 0
    assert all(set(one.result()) <= set(f"abcdef{number}") for number, one in enumerate(running))
    assert gated.get("stats")["replicas"][0]["admission"] == {"programs": 0, "held": 0}


def post(server: Server, path: str, **body: Any) -> None:
    assert server.client.post(f"/{path}", json=body).status_code == 200
