"""A server that runs requests without their hints if these are malformed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_hints import BAD, chat_body

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]


def test_malformed_hints_are_left_out_and_waits_are_heard_of(start: Callable[..., Any], tmp_path: Path) -> None:
    settings = tmp_path / "kvflow.yaml"
    settings.write_text("intake: {strict: false}\npin: {ttl: learned}\n")
    flags = ("--kvflow-config", str(settings), "--max-total-tokens", "2048")
    with start(*flags, env={"KVFLOW_ENABLE": "1"}) as server:
        assert server.generate("hello", kv_hints=BAD)["output_ids"]
        response = server.client.post("/v1/chat/completions", json=chat_body("w") | {"kv_hints": BAD})
        assert response.status_code == 200
        lines = server.client.post(
            "/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 2}, "kv_hints": BAD, "stream": True}
        ).text.splitlines()
        assert "error" not in json.loads(lines[0].removeprefix("data: "))
        assert server.get("stats")["hints"]["malformed"] == 3
        server.step("w", "a", "how long does it take until this is computed " * 8)
        deadline = time.monotonic() + 20
        while not server.get("stats")["waits"]["queue_s"]:
            assert time.monotonic() < deadline, "the control plane has not heard how long requests wait"
            time.sleep(0.2)
        server.end("w")
        told_s = server.get("status")["replicas"][0]["now_s"]
        time.sleep(0.6)
        assert server.get("status")["replicas"][0]["now_s"] == told_s, "nothing lives that would need the time"
