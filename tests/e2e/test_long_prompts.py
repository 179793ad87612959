"""A prompt that is computed in chunks has been promised memory, which nothing done ahead may hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvflow.hints import command_action
from kvflow.patches.cpu.link import BANDWIDTH_VARIABLE
from tests.e2e.conftest import HOST_TIER, Server
from tests.e2e.test_eviction import text
from tests.e2e.test_prefetch import TOKEN_BYTES, until

pytestmark = [pytest.mark.server, pytest.mark.slow]

DEVICE_TOKENS = 2560
CONTEXT_TOKENS = 250
LONG_TOKENS = 2400
"""Fits the device alone, in ten chunks."""
COPY_S = 0.7
"""Copying a context takes longer than computing the long prompt, whose own copy takes ten times as long."""
TARGET = {"kind": "agent", "workflow_id": "w", "agent": "a"}


def flags(write_policy: str) -> list[str]:
    sizes = ["--max-total-tokens", str(DEVICE_TOKENS), "--chunked-prefill-size", "256"]
    return ["--enable-kvflow", *sizes, *HOST_TIER[:-1], write_policy]


ENV = {BANDWIDTH_VARIABLE: str(CONTEXT_TOKENS * TOKEN_BYTES / COPY_S)}


@pytest.fixture(scope="module")
def loading(start: Callable[..., Any]) -> Iterator[Server]:
    with start(*flags("write_through"), env=ENV) as server:
        yield server


@pytest.fixture(scope="module")
def copying(start: Callable[..., Any]) -> Iterator[Server]:
    never = {"KVFLOW_COSTS__LOAD_TOKEN_S": "1", "KVFLOW_COSTS__LEARN_LOADS": "false"}  # by itself: loads are too dear
    with start(*flags("write_through_selective"), env=ENV | never) as server:
        yield server


def test_a_load_by_command_waits_until_a_long_prompt_is_computed(loading: Server) -> None:
    said = loading.step("w", "a", text("a", CONTEXT_TOKENS))["text"]
    time.sleep(COPY_S + 0.5)
    loading.generate(text("other", LONG_TOKENS), tokens=1)
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(loading.generate, text("long", LONG_TOKENS), tokens=1)
        time.sleep(0.1)
        (outcome,) = loading.events(command_action("kv.prefetch", target=TARGET, ttl_s=60))
        assert outcome["status"] in ("accepted", "deferred"), outcome
        assert not long.done(), "it came too late"
        assert long.result()["meta_info"]["prompt_tokens"] == LONG_TOKENS
    until(loading, "prefetches", 1)
    assert loading.step("w", "a", text("a", CONTEXT_TOKENS))["text"] == said
    assert loading.get("status")["degraded"] == {}


def test_a_copy_waits_until_a_long_prompt_is_computed(copying: Server) -> None:
    said = copying.step("w", "a", text("a", CONTEXT_TOKENS))["text"]
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(copying.generate, text("long", LONG_TOKENS), tokens=1)
        time.sleep(0.1)
        (outcome,) = copying.events(command_action("kv.retain", target=TARGET, ttl_s=60))
        assert outcome["status"] == "accepted", outcome
        assert not long.done(), "it came too late"
        assert long.result()["meta_info"]["prompt_tokens"] == LONG_TOKENS
    assert copying.step("w", "a", text("a", CONTEXT_TOKENS))["text"] == said
    assert copying.get("status")["degraded"] == {}
