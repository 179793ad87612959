"""Cross-agent reuse on the real server: what is spliced, what stays exact, and what is refused."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import kvflow
from kvflow.hints import envelope, segments_action, step_action
from tests.e2e.conftest import HOST_TIER, Server

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]

ROLE, DOCUMENT = 160, 320


def text(name: str, length: int) -> str:
    """Write a text of so many characters, and so many tokens, that only its name decides."""
    rng = random.Random(name)
    return "".join(rng.choice(string.ascii_lowercase + " ") for _ in range(length))


def ask(server: Server, agent: str, document: str, *, mode: str | None = None, tail: str = " so?", **body: Any) -> Any:
    """Ask an agent about a document, which may be spliced."""
    role = text(f"role {agent}", ROLE)
    step = step_action(workflow_id="w", workflow_type="t", agent=agent, tenant=body.pop("tenant", None))
    place = {"name": "document", "start": len(role), "end": len(role) + len(document)}
    actions = [step, segments_action(ranges=[place], **({"mode": mode} if mode else {}))]
    return server.generate(role + document + tail, tokens=8, kv_hints=envelope(actions), **body)


def exact(server: Server, agent: str, document: str, tail: str = " so?", **body: Any) -> Any:
    """Ask the same without reuse."""
    return server.generate(text(f"role {agent}", ROLE) + document + tail, tokens=8, **body)


def reuse(server: Server) -> dict[str, Any]:
    return server.get("stats")["replicas"][0]["reuse"]


@pytest.fixture(scope="module")
def _rotating(start: Callable[..., Any]) -> Iterator[Server]:
    env = {"KVFLOW_REUSE__MODE": "rotate", "KVFLOW_REUSE__AGREEMENT": "0", "KVFLOW_REUSE__DIVERGENCE": "1e9"}
    with start("--enable-kvflow", "--max-total-tokens", "2048", env=env) as server:
        yield server


@pytest.fixture
def rotating(_rotating: Server) -> Server:
    """A server that moves keys, with a quality gate that lets everything pass."""
    _rotating.fresh()
    return _rotating


def test_a_document_behind_another_role_is_not_computed_again(rotating: Server) -> None:
    document = text("moved", DOCUMENT)
    ask(rotating, "first", document)
    before = reuse(rotating)
    answer = ask(rotating, "second", document)
    after = reuse(rotating)
    assert after["spliced"] == before["spliced"] + 1
    assert after["grafted_tokens"] - before["grafted_tokens"] == DOCUMENT
    assert answer["meta_info"]["cached_tokens"] == 0
    assert rotating.get("status")["degraded"] == {}


def test_at_the_same_position_the_next_tokens_are_the_same_to_the_last_bit(rotating: Server) -> None:
    role, document, tail = text("role same", ROLE), text("same", DOCUMENT), text("tail", 40)
    probe = {"return_logprob": True, "top_logprobs_num": 20}
    exact(rotating, "same", "", "")
    ask(rotating, "same", document, tail="")
    wanted = rotating.generate(role + document + tail, tokens=8, **probe)
    assert wanted["meta_info"]["cached_tokens"] == ROLE + DOCUMENT
    rotating.end("w")
    for number in range(5):
        rotating.generate(text(f"flood {number}", 500), tokens=1)
    exact(rotating, "same", "", "")
    before = reuse(rotating)["grafted_tokens"]
    spliced = ask(rotating, "same", document, tail=tail, **probe)
    assert reuse(rotating)["grafted_tokens"] == before + DOCUMENT
    assert spliced["meta_info"]["cached_tokens"] == ROLE
    assert spliced["text"] == wanted["text"]
    assert spliced["meta_info"]["output_top_logprobs"] == wanted["meta_info"]["output_top_logprobs"]


VARIANTS = {
    "storage": ("rotate+repair", (*HOST_TIER, "--hicache-storage-backend", "file", "--disable-overlap-schedule"), 1),
    "ranks": ("kvcomm", ("--chunked-prefill-size", "128", *HOST_TIER), 2),
}


@pytest.mark.parametrize("kind", VARIANTS)
def test_what_was_spliced_reaches_no_exact_request(
    start: Callable[..., Any], rotating: Server, tmp_path: Path, kind: str
) -> None:
    mode, flags, ranks = VARIANTS[kind]
    env = {
        "KVFLOW_REUSE__MODE": mode,
        "KVFLOW_REUSE__ENTROPY": "1",
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(tmp_path),
    }
    agents, documents = ("first", "second", "third"), [text(f"document {n}", DOCUMENT) for n in range(4)]
    tail = text("long tail", 100)
    wanted = {(a, d): exact(rotating, a, d, tail)["text"] for a in agents for d in documents}
    with start("--enable-kvflow", "--max-total-tokens", "4096", *flags, env=env, tensor_parallel=ranks) as server:
        spliced = {(a, d): ask(server, a, d, tail=tail)["text"] for d in documents for a in agents}
        assert reuse(server)["spliced"] >= 4
        assert spliced != wanted, "nothing was approximated, so that nothing could have leaked"
        assert {(a, d): exact(server, a, d, tail)["text"] for a in agents for d in documents} == wanted
        for number in range(12):
            server.generate(text(f"flood {number}", 500), tokens=1)
        assert {(a, d): exact(server, a, d, tail)["text"] for a in agents for d in documents} == wanted
        assert server.get("status")["degraded"] == {}
        server.flush()


@pytest.mark.parametrize("flags", [(), ("--chunked-prefill-size", "128", "--page-size", "16")])
def test_repair_of_every_token_gives_the_exact_answer(start: Callable[..., Any], flags: tuple[str, ...]) -> None:
    document, probe = text("repaired", DOCUMENT), {"return_logprob": True, "top_logprobs_num": 20}
    env = {
        "KVFLOW_REUSE__MODE": "rotate+repair",
        "KVFLOW_REUSE__REPAIR_TOKENS": "0",
        "KVFLOW_REUSE__REPAIR_SHARE": "1",
    }
    with start("--enable-kvflow", "--max-total-tokens", "2048", *flags, env=env) as server:
        wanted = exact(server, "second", document, **probe)
        server.flush()
        ask(server, "first", document)
        spliced = ask(server, "second", document, mode="rotate", **probe)
        assert reuse(server)["repaired_tokens"] == 0
        repaired = ask(server, "second", document, **probe)
        assert reuse(server)["repaired_tokens"] >= DOCUMENT - 16
    assert spliced["text"] != wanted["text"]
    assert repaired["text"] == wanted["text"]
    assert logprobs(repaired) == pytest.approx(logprobs(wanted), abs=0.05)


def logprobs(answer: Any) -> list[float]:
    return [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]


def test_requests_that_cannot_be_spliced_are_computed(rotating: Server) -> None:
    document = text("refused", DOCUMENT)
    wanted = exact(rotating, "second", document)["text"]
    rotating.flush()
    ask(rotating, "first", document)
    before = reuse(rotating)
    answer = ask(rotating, "second", document, return_logprob=True, logprob_start_len=0)
    assert answer["text"] == wanted
    after = reuse(rotating)
    assert after["spliced"] == before["spliced"]
    assert after["refused"] == {"logprobs of the prompt": 1}


def test_tenants_do_not_share_texts(rotating: Server) -> None:
    document = text("private", DOCUMENT)
    ask(rotating, "first", document, tenant="a")
    before = reuse(rotating)["spliced"]
    ask(rotating, "second", document, cache_salt="b")
    assert reuse(rotating)["spliced"] == before


def test_a_flush_forgets_texts(rotating: Server) -> None:
    document = text("flushed", DOCUMENT)
    ask(rotating, "first", document)
    assert reuse(rotating)["texts"] > 0
    rotating.flush()
    assert reuse(rotating)["texts"] == 0
    before = reuse(rotating)["spliced"]
    ask(rotating, "second", document)
    assert reuse(rotating)["spliced"] == before


def test_without_asking_nothing_is_spliced_and_off_means_off(rotating: Server) -> None:
    document = text("not asked", DOCUMENT)
    ask(rotating, "first", document)
    before = reuse(rotating)
    exact(rotating, "second", document)
    ask(rotating, "third", document, mode="off")
    assert reuse(rotating)["prompts"] == before["prompts"]


def test_a_server_without_reuse_says_so(server: Server) -> None:
    document = text("unsupported", DOCUMENT)
    wanted = exact(server, "first", document)["text"]
    assert ask(server, "first", document)["text"] == wanted
    assert server.get("stats")["hints"]["outcomes"]["kvflow.segments"] == {"unsupported": 1}
    assert server.get("status")["replicas"][0]["reuse"] == "reuse.mode is off"


def test_under_pressure_nothing_leaks_and_others_stay_exact(rotating: Server) -> None:
    documents = [text(f"pressed {n}", DOCUMENT) for n in range(3)]
    ordinary = [text(f"ordinary {n}", 300) for n in range(6)]
    wanted = [rotating.generate(prompt, tokens=8)["text"] for prompt in ordinary]
    rotating.flush()

    def spliced(number: int) -> None:
        try:
            with httpx.Client(base_url=rotating.url, timeout=0.3 if number % 5 == 0 else 120) as client:
                ask(Server(rotating.url, client, rotating.log), f"agent {number % 7}", documents[number % 3])
        except httpx.TimeoutException:
            pass  # a client that gives up

    with ThreadPoolExecutor(12) as pool:
        others = [pool.submit(rotating.generate, prompt, tokens=8) for prompt in ordinary]
        list(pool.map(spliced, range(60)))
        assert [other.result()["text"] for other in others] == wanted
    assert reuse(rotating)["spliced"] > 20
    time.sleep(1)
    rotating.flush()  # SGLang checks its pools before it does
    assert rotating.client.get("/health_generate").status_code == 200
    assert rotating.get("status")["degraded"] == {}


def test_messages_and_answers_are_found_in_chats(rotating: Server) -> None:
    task = text("task", 300)

    def chat(client: httpx.Client, agent: str, *messages: tuple[str, str]) -> str:
        with kvflow.step(agent):
            body = {
                "model": "m",
                "messages": [{"role": role, "content": content} for role, content in messages],
                "temperature": 0,
                "max_tokens": 100,
                "ignore_eos": True,
            }
            response = client.post("/v1/chat/completions", json=body)
            response.raise_for_status()
            return response.json()["choices"][0]["message"]["content"]

    with httpx.Client(base_url=rotating.url, timeout=60) as client, kvflow.workflow("chat", reuse=True):
        kvflow.instrument(client)
        answer = chat(client, "writer", ("system", text("writer", 80)), ("user", task))
        before = reuse(rotating)["grafted_tokens"]
        says = f"The writer says: {answer}"
        chat(client, "critic", ("system", text("critic", 50)), ("user", task), ("user", says))
    assert reuse(rotating)["grafted_tokens"] - before > len(task) + len(answer) - 20


def test_the_gate_closes_a_slot_whose_answers_change(start: Callable[..., Any]) -> None:
    with start("--enable-kvflow", "--max-total-tokens", "4096", env={"KVFLOW_REUSE__MODE": "rotate"}) as server:
        document = text("gated", DOCUMENT)
        ask(server, "first", document)
        for number in range(50):
            ask(server, f"agent {number}", document)
            if reuse(server)["gate"][0]["door"] == "closed":
                break
            time.sleep(0.1)
        assert reuse(server)["gate"][0]["door"] == "closed", "the random model's answers depend on every token"
        wanted = exact(server, "later", document)["text"]
        server.flush()
        ask(server, "first", document)
        assert ask(server, "later", document)["text"] == wanted
