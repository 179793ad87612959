"""What the HTTP process asks of the schedulers by itself, and when it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt import constants
from sglang.utils import TypeBasedDispatcher

from kvflow.hints import envelope, step_action
from kvflow.patches import front, timers
from kvflow.patches.messages import KvflowAnswer, KvflowQuery

WAITS = {"queue_s": 1.0, "reload_s": None, "load_token_s": None}


class Manager:
    """A tokenizer manager whose schedulers answer at once."""

    def __init__(self) -> None:
        self.server_args = SimpleNamespace(dp_size=1)
        self.rid_to_state: dict[str, object] = {}
        self.asked: list[str] = []
        self._kvflow_front: Any = None
        self._result_dispatcher = TypeBasedDispatcher([])

    def auto_create_handle_loop(self) -> None:
        """They need none here."""

    def _dispatch_to_scheduler(self, message: Any) -> None:
        if isinstance(message, KvflowQuery):
            self.asked.append(message.op)
            self._result_dispatcher(KvflowAnswer(query_id=message.query_id, data=WAITS))

    async def questions(self) -> int:
        """How many are asked within a while."""
        self.asked.clear()
        await asyncio.sleep(0.1)
        return len(self.asked)


@pytest.fixture
async def manager(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Manager]:
    """One with a live workflow, by which schedulers are asked how long requests wait."""
    monkeypatch.setattr(timers, "_LISTEN_S", 0.005)
    manager = Manager()
    started = front.Front.of(manager)
    await started.hints(envelope([step_action(workflow_id="w", agent="a")]))
    yield manager
    for timer in started._timers:
        timer.cancel()


async def test_while_a_health_check_waits_for_any_message_schedulers_are_asked_nothing(manager: Manager) -> None:
    assert await manager.questions() > 2
    check = f"{constants.HEALTH_CHECK_RID_PREFIX}_1"
    manager.rid_to_state = {"somebody's": object(), check: object()}
    assert await manager.questions() == 0
    del manager.rid_to_state[check]
    assert await manager.questions() > 2


async def test_where_health_checks_cannot_be_told_they_are_never_asked_and_nothing_fails(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(constants, "HEALTH_CHECK_RID_PREFIX")
    assert await manager.questions() == 0
    assert not any(timer.done() for timer in manager._kvflow_front._timers)


async def test_a_request_is_of_the_type_that_its_workflow_began_with(manager: Manager) -> None:
    started = front.Front.of(manager)
    await started.hints(envelope([step_action(workflow_id="typed", workflow_type="review", agent="a")]))
    again = envelope([step_action(workflow_id="typed", agent="b")])
    carried = started.admit(again).envelope
    assert carried is not None
    (claim,) = [each["payload"] for each in carried["actions"] if each["action_type"] == "kvflow.claim"]
    assert (claim["workflow_type"], claim["agent"]) == ("review", "b")
