"""A context that faces a long tool call is copied to the host, where SGLang's own policy would not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvflow.hints import command_action, tool_action
from tests.e2e.conftest import HOST_TIER, Server
from tests.e2e.test_commands import with_prompt
from tests.e2e.test_eviction import text
from tests.e2e.test_prefetch import until

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]

PROMPT = text("a context", 600)


@pytest.fixture(scope="module")
def _selective(start: Callable[..., Any]) -> Iterator[Server]:
    flags = ("--enable-kvflow", "--max-total-tokens", "1280", *HOST_TIER[:-1], "write_through_selective")
    env = {"KVFLOW_PREFETCH__LINK_SHARE": "0", "KVFLOW_PIN__MAX_TTL_S": "1", "KVFLOW_COMMANDS__PIN_SHARE": "0.5"}
    with start(*flags, env=env) as server:
        yield server


@pytest.fixture
def server(_selective: Server) -> Server:
    """A server whose own policy copies to the host only what was found in the cache before."""
    _selective.fresh()
    return _selective


def test_what_waits_for_a_tool_is_not_lost_where_only_hot_contexts_are_copied(server: Server) -> None:
    call = {"workflow_id": "w", "agent": "worker", "tool": "shell", "call_id": "1"}
    said = server.step("w", "worker", PROMPT)["text"]
    server.events(tool_action(event="start", expected_s=60.0, **call))
    until(server, "backups", 1)
    time.sleep(1.5)  # the pin ends before the tool does
    for number in range(4):
        server.step(f"other {number}", "busy", text(f"other {number}"))
    server.events(tool_action(event="end", **call))
    back = server.step("w", "worker", PROMPT)
    assert back["text"] == said
    assert back["meta_info"]["cached_tokens_details"]["host"] >= 600 - 16
    assert server.get("status")["degraded"] == {}


def test_what_is_retained_is_copied_where_only_hot_contexts_are(server: Server) -> None:
    target = {"kind": "agent", "workflow_id": "w", "agent": "worker"}
    server.set_policy("lru")
    said = server.step("w", "worker", PROMPT)["text"]
    (outcome,) = server.events(command_action("kv.retain", target=target, ttl_s=60))
    assert outcome["status"] == "accepted"
    until(server, "backups", 1)
    for number in range(4):
        server.generate(text(f"other {number}"))
    back = server.step("w", "worker", PROMPT)
    assert back["text"] == said
    assert back["meta_info"]["cached_tokens_details"]["host"] >= 600 - 16
    assert server.get("status")["degraded"] == {}


def test_what_is_demoted_is_copied_first_where_only_hot_contexts_are(server: Server) -> None:
    """The command comes with the request, so that nothing has been copied for the wait after it."""
    deferred = ("deferred", "leaves once it has been copied to the host")
    assert with_prompt(server, "w", PROMPT, "kv.demote", ttl_s=60) == deferred
    until(server, "backups", 1)
    deadline_s = time.monotonic() + 10
    while any(place.startswith("device") for place in server.get("cache")["replicas"][0]["tokens"]):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    back = server.step("w", "worker", PROMPT)
    assert back["meta_info"]["cached_tokens_details"]["host"] >= 600 - 16
    assert server.get("status")["degraded"] == {}
    server.flush()
    assert server.generate(PROMPT)["text"] == back["text"]
