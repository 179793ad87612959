"""When copies of prompts are asked for the quality gate: after answers, and beside other requests only if need be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvflow.patches import checks_http
from kvflow.patches.checks_http import Checker

OFFER = {"input_ids": [1, 2], "extra_key": None, "cache_salt": None, "asked": {"check": ("r", "exact"), "slots": []}}


class Serving:
    """A tokenizer manager and its front, reduced to what is under way and what is asked."""

    def __init__(self) -> None:
        self.rid_to_state: dict[str, object] = {}
        self.asked_s: list[float] = []
        self._due = [dict(OFFER)]
        self._began_s = time.monotonic()
        self.checker = Checker(SimpleNamespace(ask=self._ask), self)

    async def _ask(self, op: str) -> list[Any]:
        due, self._due = self._due, []
        return [SimpleNamespace(data={"due": due, "replica": None})]

    async def generate_request(self, request: Any, raw: Any) -> AsyncIterator[Any]:
        self.asked_s.append(time.monotonic() - self._began_s)
        yield {}


async def test_a_copy_that_the_server_refuses_does_not_keep_the_others_from_being_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks_http, "_DELAY_S", 0.01)
    serving = Serving()
    serving._due = [dict(OFFER), dict(OFFER), dict(OFFER)]
    asked = []

    async def refusing(request: Any, raw: Any) -> AsyncIterator[Any]:
        asked.append(request)
        if len(asked) == 1:
            raise RuntimeError("the queue is full")
        yield {}

    monkeypatch.setattr(serving, "generate_request", refusing)
    serving.checker.soon()
    await asyncio.wait_for(serving.checker._task, 10)
    assert len(asked) == 3


@pytest.mark.parametrize("others_s", [0.0, 0.2, 60.0])
async def test_copies_wait_for_a_quiet_moment_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch, others_s: float
) -> None:
    monkeypatch.setattr(checks_http, "_DELAY_S", 0.01)
    serving = Serving()
    if others_s:
        serving.rid_to_state["somebody's"] = object()
        asyncio.get_running_loop().call_later(others_s, serving.rid_to_state.clear)
    serving.checker.soon()
    while not serving.asked_s:
        await asyncio.sleep(0.01)
    (asked_s,) = serving.asked_s
    assert asked_s > min(others_s, checks_http._PATIENCE_S)
    assert asked_s < min(others_s, checks_http._PATIENCE_S) + 0.25
