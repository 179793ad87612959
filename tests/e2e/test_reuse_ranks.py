"""Tensor-parallel ranks of which one fails: they go on together, and reuse what both know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.reusing import DOCUMENT, ask, exact, reuse, settle, text
from tests.plugins import write_plugin

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]

FORGETFUL = """
import os, pathlib
switch = pathlib.Path(os.environ["FORGETFUL_SWITCH"])

def register():
    from kvflow.reuse import Reuse
    whole = Reuse.computed

    def computed(*arguments):
        from sglang.srt.distributed import get_tp_group
        if switch.exists() and get_tp_group().rank_in_group == 1:
            switch.unlink()
            raise MemoryError
        return whole(*arguments)

    Reuse.computed = computed
"""


def test_ranks_go_on_together_after_one_could_not_learn(start: Callable[..., Any], tmp_path: Path) -> None:
    write_plugin(tmp_path, "forgetful", FORGETFUL)
    switch = tmp_path / "forget"
    env = {
        "KVFLOW_REUSE__MODE": "kvcomm",
        "KVFLOW_REUSE__ENTROPY": "1",
        "KVFLOW_REUSE__AGREEMENT": "0",
        "KVFLOW_REUSE__DIVERGENCE": "1e9",
        "KVFLOW_REUSE__CHECK_EVERY": "1000000",
        "FORGETFUL_SWITCH": str(switch),
    }
    documents = [text(f"document {n}", DOCUMENT) for n in range(3)]
    flags = ("--enable-kvflow", "--max-total-tokens", "4096")
    with start(*flags, env=env, python_path=[tmp_path], tensor_parallel=2) as server:
        wanted = exact(server, "third", documents[0])["text"]
        server.flush()
        for document in documents:
            ask(server, "first", document)
        switch.touch()
        ask(server, "second", documents[0])  # one rank has an example of it, and the other none
        settle(server)
        assert not switch.exists()
        ask(server, "second", documents[1])
        assert reuse(server)["texts"] == 1, "both have forgotten all, and learned the last"
        server.flush()
        for _ in range(2):
            for agent in ("first", "second"):
                ask(server, agent, documents[0])
            server.end("w")
            for number in range(10):
                server.generate(text(f"flood {number}", 500), tokens=1)
        assert reuse(server)["spliced"] > 0
        assert exact(server, "third", documents[0])["text"] == wanted
        assert server.log.read_text().count("kvflow: reuse failed") == 1
