"""Cross-agent reuse on the real server: what is spliced, what stays exact, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import kvflow
from kvflow.hints import envelope, feedback_action, segments_action, step_action
from kvflow.reuse import Outcomes
from tests.e2e.conftest import HOST_TIER, Server
from tests.e2e.reusing import DOCUMENT, ROLE, ask, between_texts, evict, exact, goes_on, reuse, settle, text

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]


@pytest.fixture(scope="module")
def _rotating(start: Callable[..., Any]) -> Iterator[Server]:
    env = {"KVFLOW_REUSE__MODE": "rotate", "KVFLOW_REUSE__AGREEMENT": "0", "KVFLOW_REUSE__DIVERGENCE": "1e9"}
    with start("--enable-kvflow", "--max-total-tokens", "2048", env=env) as server:
        yield server


@pytest.fixture
def rotating(_rotating: Server) -> Server:
    """A server that moves keys, with a quality gate that lets everything pass."""
    settle(_rotating)
    _rotating.fresh()
    return _rotating


SMALL_MEMORY = "0.008"
REPAIR_ALL = {"KVFLOW_REUSE__REPAIR_TOKENS": "0", "KVFLOW_REUSE__REPAIR_SHARE": "1"}
GATE_OPEN = {
    "KVFLOW_REUSE__AGREEMENT": "0",
    "KVFLOW_REUSE__DIVERGENCE": "1e9",
    "KVFLOW_REUSE__CHECK_EVERY": "1000000",
}
"""Otherwise what is measured wrong on a random model would be computed."""


@pytest.fixture(scope="module")
def _repairing(start: Callable[..., Any]) -> Iterator[Server]:
    env = {
        "KVFLOW_REUSE__MODE": "rotate+repair",
        **REPAIR_ALL,
        "KVFLOW_REUSE__MEMORY_GIB": SMALL_MEMORY,
        "KVFLOW_REUSE__ENTROPY": "1",
        **GATE_OPEN,
        "SGLANG_TEST_RETRACT": "1",
    }
    with start("--enable-kvflow", "--max-total-tokens", "8192", env=env) as server:
        yield server


@pytest.fixture
def repairing(_repairing: Server) -> Server:
    """A server that repairs every token, remembers little, and retracts requests every now and then."""
    _repairing.fresh()
    return _repairing


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


@pytest.mark.parametrize("mode", ["rotate", "kvcomm"])
def test_at_the_same_position_the_next_tokens_are_the_same_to_the_last_bit(rotating: Server, mode: str) -> None:
    agent, tail, probe = f"same {mode}", text("tail", 40), {"return_logprob": True, "top_logprobs_num": 20}
    role, document = text(f"role {agent}", ROLE), text(agent, DOCUMENT)
    exact(rotating, agent, "", "")
    ask(rotating, agent, document, tail="", mode=mode)
    if mode == "kvcomm":
        evict(rotating)
        exact(rotating, agent, "", "")
        ask(rotating, agent, document, tail="", mode=mode)  # an example, whose offset is nothing
    wanted = rotating.generate(role + document + tail, tokens=8, **probe)
    assert wanted["meta_info"]["cached_tokens"] == ROLE + DOCUMENT
    evict(rotating)
    exact(rotating, agent, "", "")
    before = reuse(rotating)["grafted_tokens"]
    spliced = ask(rotating, agent, document, tail=tail, mode=mode, **probe)
    assert reuse(rotating)["grafted_tokens"] == before + DOCUMENT
    assert spliced["meta_info"]["cached_tokens"] == ROLE
    assert spliced["text"] == wanted["text"]
    assert spliced["meta_info"]["output_top_logprobs"] == wanted["meta_info"]["output_top_logprobs"]


def test_what_stands_between_texts_sees_what_stands_between_earlier_ones(rotating: Server) -> None:
    computed, spliced = between_texts(rotating)
    assert spliced == computed


def test_a_conversation_goes_on_with_what_was_put_in(rotating: Server) -> None:
    goes_on(rotating, "rotate")


VARIANTS = {
    "storage": ("rotate+repair", (*HOST_TIER, "--hicache-storage-backend", "file", "--disable-overlap-schedule"), 1),
    "ranks in chunks": ("kvcomm", ("--chunked-prefill-size", "128", *HOST_TIER), 2),
}


@pytest.mark.parametrize("kind", VARIANTS)
def test_what_was_spliced_reaches_no_exact_request(
    start: Callable[..., Any], rotating: Server, tmp_path: Path, kind: str
) -> None:
    mode, flags, ranks = VARIANTS[kind]
    env = {
        "KVFLOW_REUSE__MODE": mode,
        "KVFLOW_REUSE__ENTROPY": "1",
        **(REPAIR_ALL | GATE_OPEN if ranks > 1 else {}),
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(tmp_path),
    }
    agents, documents = ("first", "second", "third"), [text(f"document {n}", DOCUMENT) for n in range(3)]
    tail = text("long tail", 100)
    wanted = {(a, d): exact(rotating, a, d, tail)["text"] for a in agents for d in documents}
    with start("--enable-kvflow", "--max-total-tokens", "4096", *flags, env=env, tensor_parallel=ranks) as server:
        spliced = {(a, d): ask(server, a, d, tail=tail)["text"] for d in documents for a in agents}
        assert reuse(server)["spliced"] >= 2
        assert spliced != wanted, "nothing was approximated, so that nothing could have leaked"
        assert {(a, d): exact(server, a, d, tail)["text"] for a in agents for d in documents} == wanted
        for number in range(12):
            server.generate(text(f"flood {number}", 500), tokens=1)
        assert {(a, d): exact(server, a, d, tail)["text"] for a in agents for d in documents} == wanted
        assert server.get("status")["degraded"] == {}
        server.flush()
        again = {(a, d): exact(server, a, d, tail) for a in agents for d in documents}
        assert {key: answer["text"] for key, answer in again.items()} == wanted
        tiers = [answer["meta_info"]["cached_tokens_details"] or {} for answer in again.values()]
        assert any(found.get("storage") for found in tiers) == (kind == "storage"), "what storage has is exact, too"
        if ranks > 1:
            goes_on(server, "rotate+repair")
            document = repairs_to_the_exact_answer(server)
            repairs_behind_a_prefix_that_is_loaded_back(server, document)


def repairs_to_the_exact_answer(server: Server) -> str:
    """What has been put in and is then computed anew, all of it, leaves no trace of where it came from."""
    document, probe = text("repaired", DOCUMENT), {"return_logprob": True, "top_logprobs_num": 20}
    wanted = exact(server, "second", document, **probe)
    server.flush()
    ask(server, "first", document, mode="rotate")
    before = reuse(server)["repaired_tokens"]
    spliced = ask(server, "second", document, mode="rotate", **probe)
    assert reuse(server)["repaired_tokens"] == before
    repaired = ask(server, "second", document, mode="rotate+repair", **probe)
    assert reuse(server)["repaired_tokens"] - before >= DOCUMENT - 16
    assert spliced["text"] != wanted["text"]
    assert repaired["text"] == wanted["text"]
    assert logprobs(repaired) == pytest.approx(logprobs(wanted), abs=0.05)
    return document


def repairs_behind_a_prefix_that_is_loaded_back(server: Server, document: str) -> None:
    """The exact prefix comes from the host, what follows it is put in."""
    probe, before = {"return_logprob": True}, reuse(server)["repaired_tokens"]
    exact(server, "third", "", "")
    server.end("w")
    for number in range(10):
        server.generate(text(f"another flood {number}", 500), tokens=1)
    repaired = ask(server, "third", document, mode="rotate+repair", **probe)
    assert repaired["meta_info"]["cached_tokens_details"]["host"] == ROLE
    assert reuse(server)["repaired_tokens"] - before >= DOCUMENT - 16
    wanted = exact(server, "third", document, **probe)
    assert repaired["text"] == wanted["text"]
    assert logprobs(repaired) == pytest.approx(logprobs(wanted), abs=0.05)


def test_repair_of_every_token_gives_the_exact_answer(repairing: Server) -> None:
    repairs_to_the_exact_answer(repairing)


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
    ask(rotating, "second", document, tenant="b", workflow_id="other")
    ask(rotating, "third", document, cache_salt="b")
    assert reuse(rotating)["spliced"] == before
    ask(rotating, "fourth", document, tenant="a")
    assert reuse(rotating)["spliced"] == before + 1


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


def unsupported(server: Server) -> int:
    return server.get("stats")["hints"]["outcomes"].get("kvflow.segments", {}).get("unsupported", 0)


def test_a_server_without_reuse_says_so(server: Server) -> None:
    document = text("unsupported", DOCUMENT)
    wanted = exact(server, "first", document)["text"]
    before = unsupported(server)
    assert ask(server, "first", document)["text"] == wanted
    assert unsupported(server) == before + 1
    assert server.get("status")["replicas"][0]["reuse"] == "reuse.mode is off"


def test_under_pressure_nothing_leaks_and_others_stay_exact(rotating: Server) -> None:
    documents = [text(f"pressed {n}", DOCUMENT) for n in range(3)]
    ordinary = [text(f"ordinary {n}", 300) for n in range(6)]
    wanted = [rotating.generate(prompt, tokens=8)["text"] for prompt in ordinary]
    rotating.flush()

    def answered(number: int) -> bool:
        try:
            with httpx.Client(base_url=rotating.url, timeout=0.05 if number % 5 == 0 else 120) as client:
                ask(replace(rotating, client=client), f"agent {number % 7}", documents[number % 3])
        except httpx.TimeoutException:  # a client that gives up, whose request is cancelled
            return False
        return True

    with ThreadPoolExecutor(12) as pool:
        others = [pool.submit(rotating.generate, prompt, tokens=8) for prompt in ordinary]
        assert list(pool.map(answered, range(60))).count(False) > 6
        assert [other.result()["text"] for other in others] == wanted
    assert reuse(rotating)["spliced"] > 20
    time.sleep(1)
    rotating.flush()  # SGLang checks its pools before it does
    assert rotating.client.get("/health_generate").status_code == 200
    assert rotating.get("status")["degraded"] == {}


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


def test_messages_and_answers_are_found_in_chats(rotating: Server) -> None:
    task = text("task", 300)
    with httpx.Client(base_url=rotating.url, timeout=60) as client, kvflow.workflow("chat", reuse=True):
        kvflow.instrument(client)
        answer = chat(client, "writer", ("system", text("writer", 80)), ("user", task))
        before = reuse(rotating)["grafted_tokens"]
        says = f"The writer says: {answer}"
        chat(client, "critic", ("system", text("critic", 50)), ("user", task), ("user", says))
    assert reuse(rotating)["grafted_tokens"] - before > len(task) + len(answer) - 20


@pytest.mark.parametrize("whole_messages", [True, False], ids=["whole messages", "declared texts"])
def test_the_answer_to_a_prompt_without_a_text_is_reused(rotating: Server, whole_messages: bool) -> None:
    def missing() -> int:
        return rotating.get("stats")["hints"]["outcomes"].get("kvflow.segments", {}).get("missing", 0)

    kind, missed = f"short {whole_messages}", missing()
    with httpx.Client(base_url=rotating.url, timeout=60) as client, kvflow.workflow(kind, reuse=whole_messages):
        kvflow.instrument(client)
        kvflow.segment(text("for somebody else", 200))
        answer = chat(client, "writer", ("system", text(kind, 80)), ("user", "Go on."))
        before = reuse(rotating)
        says = f"The writer says: {kvflow.segment(answer, 'answer')}"
        chat(client, "critic", ("system", text("critic", 50)), ("user", says))
    after = reuse(rotating)
    assert missing() - missed == whole_messages, "only what was named can be missing"
    assert (before["texts"], after["spliced"] - before["spliced"]) == (1, 1), "the answer is all there is"
    assert after["grafted_tokens"] - before["grafted_tokens"] > len(answer) - 20


def test_outcomes_that_are_worse_with_reuse_end_it(rotating: Server) -> None:
    document = text("judged", DOCUMENT)
    actions = [segments_action(ranges=[{"start": ROLE, "end": ROLE + DOCUMENT}])]
    expected, judged = Outcomes(), ("", "judged", "document")

    def run(number: int) -> bool:
        workflow = f"judged {number}"
        computed = expected.compares(workflow, "judged")
        expected.served(workflow, [judged], [] if computed else [judged])
        expected.report(workflow, float(computed))
        step = step_action(workflow_id=workflow, workflow_type="judged", agent="a")
        rotating.generate(text(f"role {number}", ROLE) + document, tokens=1, kv_hints=envelope([step, *actions]))
        (outcome,) = rotating.events(feedback_action(workflow_id=workflow, outcome=float(computed)))
        assert outcome["status"] == "accepted"
        return computed

    def slot() -> dict[str, Any]:
        return next(slot for slot in reuse(rotating)["gate"] if slot["workflow_type"] == "judged")

    runs = [run(number) for number in range(3)]
    while slot()["door"] == "open":
        assert slot()["outcome_reused"] in (None, 0.0)
        runs.append(run(len(runs)))
        assert len(runs) < 200
    assert sum(runs) >= 8
    assert slot()["outcome_computed"] == 1.0
    time.sleep(0.2)  # for checks under way
    spliced = reuse(rotating)["spliced"]
    for number in range(3):
        run(len(runs) + number)
    assert reuse(rotating)["spliced"] == spliced > len(runs) / 2


def test_memory_stays_bounded_under_texts_that_are_always_new(repairing: Server) -> None:
    held: list[int] = []
    for number in range(30):
        for agent in ("first", "second"):
            ask(repairing, agent, text(f"new {number}", DOCUMENT), mode="kvcomm")
        held.append(reuse(repairing)["held_bytes"])
    assert max(held) <= float(SMALL_MEMORY) * 2**30
    assert min(held[10:]) > max(held) / 2
    assert reuse(repairing)["dropped"] > 10
    assert repairing.get("status")["degraded"] == {}


def test_a_retracted_request_is_spliced_again(repairing: Server) -> None:
    document = text("retracted", DOCUMENT)

    def rotated(agent: str) -> str:
        probed = agent in agents[::2]  # that log probabilities are asked of some of a batch matters
        return ask(repairing, agent, document, mode="rotate", return_logprob=probed)["text"]

    agents = [f"agent {n}" for n in range(6)]
    for checked in range(7):
        rotated(f"checked {checked}")
    time.sleep(0.5)  # for the checks, which leave exact prompts in the cache
    alone = list(map(rotated, agents))
    before = reuse(repairing)
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(rotated, agents))
    assert together == alone
    after = reuse(repairing)
    assert after["prompts"] > before["prompts"] + len(agents), "nothing was retracted"
    assert after["spliced"] == before["spliced"] + len(agents), "what is put in anew is not counted again"
    repairing.flush()
    assert repairing.get("status")["degraded"] == {}
