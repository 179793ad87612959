"""SGLang's streaming sessions, whose turns go on from memory that no request holds, beside kvflow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from kvflow.hints import command_action, envelope, step_action
from tests.e2e.conftest import HOST_TIER
from tests.e2e.test_eviction import text

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_turns_of_a_session_end_and_are_given_up_without_harm(start: Callable[..., Any]) -> None:
    flags = ("--enable-kvflow", "--enable-streaming-session", *HOST_TIER, "--max-total-tokens", "2048")
    with start(*flags) as server:
        session = server.client.post("/open_session", json={"capacity_of_str_len": 10_000, "streaming": True}).json()
        body = {
            "session_params": {"id": session},
            "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True},
            "kv_hints": envelope([step_action(workflow_id="w", workflow_type="t", agent="a")]),
        }
        for turn in range(10):
            response = server.client.post("/generate", json=body | {"text": text(f"turn {turn}", 40)})
            assert response.status_code == 200, response.text
            assert response.json()["meta_info"]["prompt_tokens"] >= 40 * (turn + 1), "turns go on from the session"
        long = body | {"text": text("last", 40), "stream": True}
        long["sampling_params"] = body["sampling_params"] | {"max_new_tokens": 400}
        with server.client.stream("POST", "/generate", json=long) as response:
            assert next(response.iter_lines())
        time.sleep(1.0)
        assert server.generate(text("another", 500), tokens=2)["meta_info"]["prompt_tokens"] == 500
        again = server.client.post("/generate", json=body | {"text": text("after it", 40)})
        assert again.status_code == 200, again.text
        server.client.post("/close_session", json={"session_id": session})
        release = command_action("kv.release", target={"kind": "workflow", "workflow_id": "w"})
        assert [outcome["status"] for outcome in server.events(release)] == ["missing"]
        assert server.get("status")["degraded"] == {}
        server.flush()
