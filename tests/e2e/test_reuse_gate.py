"""Where reuse stops on the real server: checks of answers, and what applications say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Server
from tests.e2e.reusing import DOCUMENT, ask, exact, reuse, settle, text
from tests.plugins import write_plugin

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]

BREAKER = """
import os, pathlib
switch = pathlib.Path(os.environ["BREAKER_SWITCH"])

def register():
    from kvflow.reuse import correct
    combined = correct.combined

    def broken(parts):
        sum_ = combined(parts)
        return type(sum_)(sum_.keys.flip(1), -sum_.values) if switch.exists() else sum_

    correct.combined = broken
"""


@pytest.fixture(scope="module")
def gated(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server whose anchors break once there is a file."""
    folder = tmp_path_factory.mktemp("breaker")
    write_plugin(folder, "breaker", BREAKER)
    env = {"KVFLOW_REUSE__MODE": "kvcomm", "BREAKER_SWITCH": str(folder / "broken")}
    env["KVFLOW_REUSE__ENTROPY"] = "0"  # a text is served from its own anchor only
    with start("--enable-kvflow", "--max-total-tokens", "1024", env=env, python_path=[folder]) as server:
        yield server, folder / "broken"


def test_the_gate_catches_a_broken_anchor_pool_within_fifty_requests(gated: tuple[Server, Path]) -> None:
    """A text that comes back is served from its own anchor, so that even a random model answers as it did."""
    server, switch = gated
    documents = [text(f"anchored {n}", DOCUMENT) for n in range(3)]

    def again(number: int) -> dict[str, Any]:
        for flood in range(2):
            server.generate(text(f"flood {flood}", 500), tokens=1)
        ask(server, "second", documents[number % 3])
        settle(server)
        return reuse(server)["gate"][0]

    for document in documents:
        for agent in ("first", "second"):
            ask(server, agent, document)
    states = [again(number) for number in range(16)]
    assert {state["door"] for state in states} == {"open"}
    assert reuse(server)["spliced"] >= 16
    assert reuse(server)["checks"] >= 3
    assert states[-1]["agreement"] == 1.0
    switch.touch()
    assert any(again(number)["door"] != "open" for number in range(50))


def test_the_gate_closes_a_slot_whose_answers_change(gated: tuple[Server, Path]) -> None:
    server, _ = gated
    server.flush()
    document = text("gated", DOCUMENT)

    def door() -> str:
        return next((slot["door"] for slot in reuse(server)["gate"] if slot["workflow_type"] == "moved"), "open")

    ask(server, "first", document, workflow_id="moved", workflow_type="moved")
    for number in range(50):
        ask(server, f"agent {number}", document, mode="rotate", workflow_id="moved", workflow_type="moved")
        if door() == "closed":
            break
        settle(server)
    assert door() == "closed", "the random model's answers depend on every token"
    wanted = exact(server, "later", document)["text"]
    server.flush()
    ask(server, "first", document, workflow_id="moved", workflow_type="moved")
    assert ask(server, "later", document, mode="rotate", workflow_id="moved", workflow_type="moved")["text"] == wanted
