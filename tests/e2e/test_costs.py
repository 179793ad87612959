"""The costs that decisions go by are those of the model and machine that serve, whatever was set."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.test_eviction import text

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]

FAR_TOO_FAST = {
    "KVFLOW_COSTS__PREFILL_TOKEN_S": "1e-6",
    "KVFLOW_COSTS__ATTENTION_TOKEN_S": "1e-12",
    "KVFLOW_COSTS__PREFILL_STEP_S": "1e-4",
    "KVFLOW_COSTS__DECODE_STEP_S": "1e-4",
    "KVFLOW_COSTS__DECODE_SEQUENCE_S": "0",
    "KVFLOW_COSTS__DECODE_CONTEXT_TOKEN_S": "0",
}


def test_how_long_batches_take_is_measured_while_serving(start: Callable[..., Any]) -> None:
    with start("--enable-kvflow", "--max-total-tokens", "4096", env=FAR_TOO_FAST) as server:
        deadline_s, number = time.monotonic() + 60, 0
        costs: dict[str, float] = {}
        while costs.get("prefill_token_s", 0) <= 1e-6 or costs["decode_step_s"] <= 1e-4:
            assert time.monotonic() < deadline_s, costs
            number += 1
            server.step("w", "a", text(f"prompt {number}", 1000), fixed_prompt_tokens=0)
            costs = server.get("status")["replicas"][0]["costs"]
        assert costs["prefill_token_s"] / 1e-6 == pytest.approx(costs["prefill_step_s"] / 1e-4), "one factor for both"
        assert 5e-4 < costs["decode_step_s"] < 0.5
        assert 1e-2 < costs["prefill_step_s"] + 1000 * costs["prefill_token_s"] < 10
        assert server.get("status")["degraded"] == {}
