"""Models that SGLang cannot compute layer by layer: repair goes without its second half, and says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.reusing import DOCUMENT, ask, reuse, text
from tests.plugins import write_plugin

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]

MISSING = """
def register():
    from sglang.srt.models.llama import LlamaForCausalLM
    del LlamaForCausalLM.forward_split_prefill
"""
REFUSING = """
def register():
    from sglang.srt.models.llama import LlamaForCausalLM

    def refuses(self, input_ids, positions, forward_batch, split_interval, input_embeds=None):
        whole(self, input_ids, positions, forward_batch, (0, 1), input_embeds)  # writes the first layer's KV
        raise NotImplementedError("layers")

    whole, LlamaForCausalLM.forward_split_prefill = LlamaForCausalLM.forward_split_prefill, refuses
"""
WHY = {MISSING: "it has no forward_split_prefill", REFUSING: "NotImplementedError('layers')"}


@pytest.mark.parametrize("plugin", [MISSING, REFUSING], ids=["missing", "refusing"])
def test_where_layers_cannot_be_computed_alone_first_tokens_are_repaired_only(
    start: Callable[..., Any], tmp_path: Path, plugin: str
) -> None:
    write_plugin(tmp_path, "layers", plugin)
    env = {
        "KVFLOW_REUSE__MODE": "rotate",
        "KVFLOW_REUSE__REPAIR_TOKENS": "16",
        "KVFLOW_REUSE__REPAIR_SHARE": "0.5",
        "KVFLOW_REUSE__AGREEMENT": "0",
        "KVFLOW_REUSE__DIVERGENCE": "1e9",
    }
    with start("--enable-kvflow", "--max-total-tokens", "4096", env=env, python_path=[tmp_path]) as server:
        document = text("layers", DOCUMENT)
        ask(server, "first", document)
        before = reuse(server)
        answers = [ask(server, "second", document, mode="rotate+repair")["text"] for _ in range(2)]
        after = reuse(server)
        assert after["grafted_tokens"] - before["grafted_tokens"] >= 2 * (DOCUMENT - 16)
        assert after["repaired_tokens"] == 0
        assert answers[0] == answers[1], "the attempt that failed has left nothing behind"
        assert server.get("status")["degraded"] == {}
        told = [line for line in server.log.read_text().splitlines() if "computes their first tokens only" in line]
    assert len(told) == 1
    assert WHY[plugin] in told[0]
