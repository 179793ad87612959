"""Turns of SGLang's streaming sessions, which go on from what their session holds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.session.streaming_session import is_virtual_node

from kvflow.engine import Load
from kvflow.patches.claim import COMMAND_TYPE
from kvflow.patches.guard import Guard
from kvflow.patches.prefetch import Prefetch
from tests.engine.model_free import Requests

pytestmark = [pytest.mark.engine, pytest.mark.beside]

_PROMPT = list(range(1, 65))


@pytest.fixture
def requests(publish: Callable[[float], Any]) -> Requests:
    """Of a cache in which the prompt's first half is."""
    publish(0)
    made = Requests("kvflow", device_tokens=512, page_tokens=4)
    first = made.ask("first", [*_PROMPT[:32], 99], 1)
    made.admit(first)
    made.compute(first, 7)
    made.finish(first)
    return made


def turn(requests: Requests, tokens: list[int]) -> Any:
    """A session's first, which SGLang has admitted."""
    req = requests.ask("turn", tokens, 4)
    req.session = SimpleNamespace(session_id="s", streaming=True, abort_req=lambda: None)
    requests.admit(req)
    return req


def test_a_first_turn_waits_for_what_is_still_arriving_although_its_session_has_its_lock(requests: Requests) -> None:
    cache = requests.cache
    req = turn(requests, _PROMPT)
    tip = cache.tree_core.node_by_id(req.last_node)
    waits: list[int] = []
    arriving = SimpleNamespace(finish_event=SimpleNamespace(synchronize=lambda: waits.append(1)))
    controller = SimpleNamespace(ack_load_queue=[arriving], layer_done_counter=SimpleNamespace(producer_index=3))
    prefetch = object.__new__(Prefetch)
    prefetch._load, prefetch._guard = Load([tip], 32), Guard("prefetch")
    prefetch._load.under_way, tip.arriving = True, prefetch._load
    prefetch._cache = SimpleNamespace(  # type: ignore[assignment]
        tree_core=cache.tree_core, session=cache.session, cache_controller=controller
    )
    requests.compute(req, 7)
    assert is_virtual_node(req.last_node)
    batch = SimpleNamespace(reqs=[req], hicache_consumer_index=-1)
    prefetch.join(batch)
    assert batch.hicache_consumer_index == 3
    prefetch.entered(req)
    assert waits == [1]
    tip.arriving = None
    batch.hicache_consumer_index = -1
    prefetch.join(batch)
    assert batch.hicache_consumer_index == -1


def test_commands_of_an_aborted_turn_are_answered_although_its_session_had_its_lock(requests: Requests) -> None:
    trusted = requests.cache._tagging.failures_left
    told: list[Any] = []
    requests.cache.commands.tell = lambda message, req: told.append(message.answers)
    req = turn(requests, _PROMPT)
    command = {"verb": "kv.demote", "tier": "host"}
    req.kv_hints = SimpleNamespace(
        actions=[SimpleNamespace(action_type=COMMAND_TYPE, action_id="key", action_version=1, payload=command)]
    )
    requests.compute(req, 7)
    req.finished_reason = FINISH_ABORT()
    release_kv_cache(req, requests.cache, checkpoint=False)
    assert [answer["status"] for answer in told[0]] == ["missing"]
    assert requests.cache._tagging.failures_left == trusted
