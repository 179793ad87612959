"""The span of a tool call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from kvflow.client import recorder
from kvflow.client.context import active_step
from kvflow.client.facts import tell
from kvflow.client.scopes import Scope
from kvflow.hints import tool_action


class ToolCall(Scope[None]):
    """One call of a tool by the agent that runs; outside every workflow it is nothing.

    Args:
        name: the tool.
        expected_s: how long the call takes, if that is known.
        verb: tells what the tool is told to do.
        agent: who waits for it; None for the one whose step it is.
        step_id: of the step that waits; None for the one that runs, if that is the agent's.
    """

    __slots__ = ("_agent", "_began_s", "_expected_s", "_id", "_name", "_step", "_step_id", "_verb")

    def __init__(
        self,
        name: str,
        expected_s: float | None = None,
        verb: Callable[[], str | None] = lambda: None,
        agent: str | None = None,
        step_id: str | None = None,
    ) -> None:
        super().__init__()
        self._agent = agent
        self._name = name
        self._expected_s = expected_s
        self._verb = verb
        self._step_id = step_id
        self._id = uuid4().hex

    def _begin(self) -> None:
        self._step = active_step()
        self._began_s = time.monotonic()
        if self._step is not None:
            self._tell("start", expected_s=self._expected_s, verb=self._verb())

    def _end(self, *, failed: bool) -> None:
        self._tell("end", took_s=round(time.monotonic() - self._began_s, 3))

    def _tell(self, event: str, **fields: Any) -> None:
        if self._step is None or self._step.workflow.ended:
            return
        context = self._step.context
        recorder.tool_noted(event, context, self._name, self._id, fields.get("verb"))
        tell(
            tool_action,
            workflow_id=context.workflow_id,
            agent=self._agent or context.agent,
            tool=self._name,
            event=event,
            call_id=self._id,
            step_id=self._step_id or (context.step_id if self._agent in (None, context.agent) else None),
            **fields,
        )
