"""The real SGLang server on the CPU engine, started when first asked for and shared by a session's tests."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvflow.hints import envelope, step_action
from kvflow.patches.cpu.launch import launch_server
from kvflow.patches.cpu.model import build_model
from tests import forking

COMMON = ("--page-size", "16", "--sleep-on-idle", "--enable-metrics", "--max-running-requests", "8")
READ_WHEN_USED = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER"}
HOST_TIER = ("--enable-hierarchical-cache", "--hicache-ratio", "2", "--hicache-write-policy", "write_through")


@dataclass
class Server:
    """A running server and a client for it."""

    url: str
    client: httpx.Client
    log: Path
    pid: int

    def generate(self, text: str | list[str], *, tokens: int = 4, **body: Any) -> dict[str, Any]:
        params = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        response = self.client.post("/generate", json={"text": text, "sampling_params": params, **body})
        assert response.status_code == 200, response.text
        return response.json()

    def step(self, workflow: str, agent: str, text: str, **fields: Any) -> dict[str, Any]:
        action = step_action(workflow_id=workflow, agent=agent, **{"workflow_type": "t", **fields})
        return self.generate(text, kv_hints=envelope([action]))

    def events(self, *actions: dict[str, Any]) -> list[dict[str, Any]]:
        response = self.client.post("/kvflow/v1/events", json=envelope(list(actions)))
        assert response.status_code == 200, response.text
        return response.json()["outcomes"]

    def end(self, *workflows: str) -> None:
        self.events(*(step_action(workflow_id=w, agent="END", workflow_type="t", final=True) for w in workflows))

    def workflows(self) -> dict[str, dict[str, Any]]:
        return {w["workflow_id"]: w for w in self.get("workflows")["workflows"]}

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        response = self.client.get(f"/kvflow/v1/{path}", params=query)
        assert response.status_code == 200, response.text
        return response.json()

    def set_policy(self, policy: str) -> None:
        response = self.client.put("/kvflow/v1/policy", json={"policy": policy})
        assert response.status_code == 200, response.text

    def fresh(self) -> None:
        """Empty cache, no workflows, counters at zero."""
        self.end(*self.workflows())
        self.flush()
        self.get("stats", reset=True)

    def flush(self) -> None:
        deadline_s = time.monotonic() + 20
        while self.client.post("/flush_cache").status_code != 200:  # refused while loads are under way
            assert time.monotonic() < deadline_s, "the cache could not be flushed"
            time.sleep(0.01)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cached = os.environ.get("KVFLOW_TEST_MODEL_FOLDER")
    return build_model(Path(cached) if cached else tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def start(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Start a server for the length of a ``with`` block."""

    @contextlib.contextmanager
    def starter(
        *flags: str,
        env: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        folder: Path = model,
        **options: Any,
    ) -> Iterator[Server]:
        log = tmp_path_factory.mktemp("server") / "log"
        environment = {"KVFLOW_STRICT": "1", **(env or {})}
        own = environment.keys() - READ_WHEN_USED
        if not any(name.startswith("SGLANG_") for name in own):  # SGLang reads these when it is imported
            options.setdefault("spawn", forking.spawn)
        with (
            launch_server(folder, log_path=log, extra_args=[*COMMON, *flags], env=environment, **options) as process,
            httpx.Client(base_url=process.url, timeout=120, headers=headers) as client,
        ):
            yield Server(process.url, client, log, process.process.pid)

    return starter


@pytest.fixture(scope="session")
def _shared_server(start: Callable[..., Any]) -> Iterator[Server]:
    with start("--enable-kvflow", *HOST_TIER, "--max-total-tokens", "2048") as server:
        yield server


@pytest.fixture
def server(_shared_server: Server) -> Server:
    """kvflow on, a device tier of 2048 tokens and a host tier twice that, emptied for every test."""
    _shared_server.set_policy("cost")
    _shared_server.fresh()
    return _shared_server
