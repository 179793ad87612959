"""Fetches from HiCache's storage tier, on the real server with its file backend."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import HOST_TIER
from tests.e2e.test_eviction import FIXED_TOKENS, GRAPH, text
from tests.e2e.test_prefetch import step, until

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]

PAGES = FIXED_TOKENS // 16
FLOODS = 8


def test_what_the_next_step_needs_comes_from_storage_before_it(start: Callable[..., Any], tmp_path: Path) -> None:
    env = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(tmp_path), "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1"}
    flags = ("--enable-kvflow", "--max-total-tokens", "1280", *HOST_TIER, "--hicache-storage-backend", "file")
    with start(*flags, env=env, tensor_parallel=2) as server:
        server.client.put("/kvflow/v1/graphs/t", json=GRAPH).raise_for_status()
        answers = {agent: step(server, "before", agent)["text"] for agent in ("first", "near", "far")}
        server.end("before")
        for number in range(FLOODS):
            server.generate(text(f"flood {number}", 600), tokens=1)
            time.sleep(0.2)
        deadline_s = time.monotonic() + 30
        while len(list(tmp_path.iterdir())) < (3 + FLOODS) * PAGES:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        server.get("stats", reset=True)
        assert step(server, "w", "first")["text"] == answers["first"]
        until(server, "fetched_tokens", FIXED_TOKENS)
        until(server, "prefetched_tokens", FIXED_TOKENS)
        time.sleep(0.5)
        near = step(server, "w", "near")
        assert near["text"] == answers["near"]
        assert near["meta_info"]["cached_tokens_details"]["device"] >= FIXED_TOKENS
        stats = server.get("stats")["total"]
        assert stats["fetch_used_tokens"] >= FIXED_TOKENS
        assert stats["recomputed_tokens"] < FIXED_TOKENS
        server.flush()
        assert server.get("status")["degraded"] == {}
