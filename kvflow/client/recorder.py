"""Writing down what the program does, while ``KVFLOW_RECORD`` names a file: for ``kvflow trace record``.

One JSON line per fact, appended with a single write, so that processes may share the file. Prompts and answers are
written as digests and lengths. Whatever goes wrong here is logged, and costs the program nothing but the record.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec
from uuid import uuid4

from kvflow.client.context import active_step
from kvflow.client.degraded import degraded

if TYPE_CHECKING:
    from kvflow.client.context import StepContext
    from kvflow.client.scopes import Step, Workflow

VARIABLE = "KVFLOW_RECORD"
P = ParamSpec("P")

_files: dict[str, int] = {}
_asked: ContextVar[tuple[str, str, Any] | None] = ContextVar("kvflow_recorded_call", default=None)
"""The call of this task that has no answer yet: workflow, call, and the prompt."""


def recording() -> bool:
    """Tell whether anything is to be written."""
    return bool(os.environ.get(VARIABLE))


def _if_recording(fn: Callable[P, None]) -> Callable[P, None]:
    @functools.wraps(fn)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        if not recording():
            return
        try:
            fn(*args, **kwargs)
        except Exception:
            degraded("something could not be recorded")

    return guarded


@_if_recording
def step_started(step: Step) -> None:
    """Note that a step begins, and with the first one its workflow."""
    _messages()  # slow to import, and not to be part of the first call's time
    outer = step.outer
    inside = outer is not None and outer.workflow is step.workflow
    _write(
        "step_start",
        step.context,
        type=step.workflow.type,
        tenant=step.workflow.tenant,
        outer=outer.context.step_id if outer and inside else None,
        fixed_tokens=step.options.fixed_prompt_tokens,
        fixed_messages=step.options.fixed_prompt_messages,
    )


@_if_recording
def step_ended(step: Step) -> None:
    """Note that a step ends."""
    _write("step_end", step.context)


@_if_recording
def workflow_ended(workflow: Workflow) -> None:
    """Note that a workflow ends."""
    _append({"fact": "workflow_end", "workflow": workflow.id, "at_s": time.monotonic()})


@_if_recording
def tool_noted(event: str, context: StepContext, tool: str, call: str, verb: str | None = None) -> None:
    """Note that a tool call starts or ends.

    Args:
        event: ``start`` or ``end``.
        verb: what the tool is told to do.
    """
    _write(f"tool_{event}", context, tool=tool, call=call, verb=verb)


@_if_recording
def asked(body: Mapping[str, Any] | bytes, *, resends: bool = True) -> None:
    """Note that a request to an LLM is about to be sent.

    Args:
        body: of the request.
        resends: whether it is the same one if it is sent again for want of an answer; else nobody hears of answers.
    """
    step = active_step()
    if step is None:
        return
    content = json.loads(body) if isinstance(body, bytes) else body
    parts = _messages().prompt_parts(content) if isinstance(content, Mapping) else []
    before = _asked.get()
    again = resends and before is not None and before[0] == step.workflow.id and before[2] == parts
    if not parts or again:
        return
    call = uuid4().hex
    _asked.set((step.workflow.id, call, parts))
    _write("llm_start", step.context, call=call, parts=parts)


@_if_recording
def answered(body: Callable[[], Any] | None) -> None:
    """Note that the answer to this task's request has come.

    Args:
        body: gives it as decoded JSON; None if it is a stream that the program is about to read.
    """
    before = _asked.get()
    if before is None:
        return
    _asked.set(None)
    if body is None:
        return
    seen = _messages().usage(body())
    workflow, call, _ = before
    fact = {"fact": "llm_end", "workflow": workflow, "at_s": time.monotonic(), "call": call}
    _append(fact | seen._asdict())


def _messages() -> ModuleType:
    from kvflow.trace import messages

    return messages


def _write(fact: str, context: StepContext, **fields: Any) -> None:
    known = {"fact": fact, "workflow": context.workflow_id, "at_s": time.monotonic(), "step": context.step_id}
    _append(known | {"agent": context.agent} | fields)


def _append(fact: Mapping[str, Any]) -> None:
    path = os.environ[VARIABLE]
    file = _files.get(path)
    if file is None:
        file = _files[path] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, json.dumps({name: value for name, value in fact.items() if value is not None}).encode() + b"\n")
