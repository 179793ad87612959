"""Asking agents about texts that may be spliced."""

from __future__ import annotations

import random
import string
import time
from typing import Any

from kvflow.hints import envelope, segments_action, step_action
from tests.e2e.conftest import Server

ROLE, DOCUMENT = 160, 320


def text(name: str, length: int) -> str:
    """Write a text of so many characters, and so many tokens, that only its name decides."""
    rng = random.Random(name)
    return "".join(rng.choice(string.ascii_lowercase + " ") for _ in range(length))


def ask(
    server: Server,
    agent: str,
    document: str,
    *,
    mode: str | None = None,
    tail: str = " so?",
    tokens: int = 8,
    **body: Any,
) -> Any:
    """Ask an agent about a document, which may be spliced."""
    role = text(f"role {agent}", ROLE)
    named = {"workflow_id": "w", "workflow_type": "t", "tenant": None}
    step = step_action(agent=agent, **{name: body.pop(name, value) for name, value in named.items()})
    place = {"name": "document", "start": len(role), "end": len(role) + len(document)}
    actions = [step, segments_action(ranges=[place], **({"mode": mode} if mode else {}))]
    return server.generate(role + document + tail, tokens=tokens, kv_hints=envelope(actions), **body)


def exact(server: Server, agent: str, document: str, tail: str = " so?", **body: Any) -> Any:
    """Ask the same without reuse."""
    return server.generate(text(f"role {agent}", ROLE) + document + tail, tokens=8, **body)


def reuse(server: Server) -> dict[str, Any]:
    return server.get("stats")["replicas"][0]["reuse"]


def settle(server: Server) -> None:
    """Wait for the gate's checks of what has been asked: they put texts in, too."""
    deadline_s = time.monotonic() + 10
    while reuse(server)["checks_under_way"]:
        assert time.monotonic() < deadline_s, "checks of reuse do not end"
        time.sleep(0.02)


def evict(server: Server) -> None:
    """Have what the workflow of :func:`ask` had in the cache make room for something else."""
    server.end("w")
    flood(server)


def flood(server: Server) -> None:
    for number in range(5):
        server.generate(text(f"flood {number}", 500), tokens=1)


def between_texts(server: Server) -> tuple[Any, Any]:
    """Ask twice about three texts with much in between: computed, then with the texts put in where they stood.

    Returns:
        The likeliest tokens of both answers, with their log probabilities.
    """
    texts, runs = [text(f"text {n}", 200) for n in range(3)], [text(f"run {n}", 120) for n in range(4)]
    prompt, ranges = runs[0], []
    for number, one in enumerate(texts):
        ranges.append({"name": f"text {number}", "start": len(prompt), "end": len(prompt) + len(one)})
        prompt += one + runs[number + 1]

    def answer() -> Any:
        step = step_action(workflow_id="between", workflow_type="t", agent="reader")
        hints = envelope([step, segments_action(ranges=ranges, mode="rotate")])
        meta = server.generate(prompt, kv_hints=hints, return_logprob=True, top_logprobs_num=20)["meta_info"]
        return meta["output_top_logprobs"]

    computed = answer()
    server.end("between")
    flood(server)
    before = reuse(server)["grafted_tokens"]
    spliced = answer()
    assert reuse(server)["grafted_tokens"] == before + sum(map(len, texts))
    return computed, spliced


def goes_on(server: Server, mode: str) -> None:
    """The second turn of a conversation is answered as if the first had not ended, and nothing of it is put in anew."""
    document, kind = text(f"goes on {mode}", DOCUMENT), {"mode": mode, "workflow_type": f"talk {mode}"}
    for number in range(9):  # the text is known, and the gate has seen enough of its slot
        ask(server, f"reader {number}", document, workflow_id=f"reading {mode}", **kind)
    settle(server)

    def turn(workflow_id: str, said: str = "", tokens: int = 8) -> Any:
        return ask(server, "talker", document, tail=f" so?{said}", tokens=tokens, workflow_id=workflow_id, **kind)

    whole = turn("whole", tokens=16)["text"]
    assert turn("earlier", turn("earlier")["text"])["meta_info"]["cached_tokens"] == ROLE
    begun, before = turn("later")["text"], reuse(server)
    assert before["conversations"] >= 1
    rest, after = turn("later", begun), reuse(server)
    assert begun + rest["text"] == whole
    assert rest["meta_info"]["cached_tokens"] == ROLE
    assert after["continued_tokens"] - before["continued_tokens"] == DOCUMENT + len(f" so?{begun}") - 1
    assert (after["grafted_tokens"], after["repaired_tokens"]) == (before["grafted_tokens"], before["repaired_tokens"])
