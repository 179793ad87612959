"""What a request to an LLM is told along: the ``kv_hints`` of the step that asks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kvflow.client.context import active_step
from kvflow.client.degraded import degraded
from kvflow.client.outbox import outbox
from kvflow.client.scopes import Step
from kvflow.client.segments import reuse_action, wants_reuse
from kvflow.client.server import Server
from kvflow.hints import envelope
from kvflow.hints.models import MAX_ACTIONS, MAX_ENVELOPE_BYTES, SEGMENTS_TYPE, STEP_TYPE

KEY = "kv_hints"
MAX_RIDERS = 32
"""Facts that may ride on one request."""


def asking_step() -> Step | None:
    """Return the step on whose behalf a request is made; None if there is none, or nothing is to be hinted."""
    step = active_step()
    return step if step is not None and outbox().settings.hints != "off" else None


def may_hint(step: Step, server: Server) -> bool:
    """Tell whether a server understands hints, and see to it that it knows the workflow's graph.

    Waits for the server in the first request to it only, for half a second at most.
    """
    graph = step.workflow.options.graph
    speaks = outbox().settings.hints == "always" or server.speaks().wait()
    if speaks and graph:
        server.declare(graph).wait()
    return speaks


async def may_hint_async(step: Step, server: Server) -> bool:
    """Do as :func:`may_hint` does, without blocking the event loop."""
    graph = step.workflow.options.graph
    speaks = outbox().settings.hints == "always" or await server.speaks().wait_async()
    if speaks and graph:
        await server.declare(graph).wait_async()
    return speaks


def hints_for(
    step: Step, server: Server | None, theirs: Any = None, body: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Build the envelope for a request.

    Args:
        step: who asks.
        server: where the request goes; what it has not been told yet of this workflow goes along. None if unknown.
        theirs: the ``kv_hints`` the request has already; its actions come first and are kept. If it says itself what
            may be reused in it, we say nothing of that: of several such actions the last one counts.
        body: of the request, to look for texts in that can be reused.

    Returns:
        The envelope; None if the request should stay as it is, because it has this step's hints already or there
        is no room for more.
    """
    hints = {**envelope(()), **(theirs or {})}
    actions: list[Any] = list(hints["actions"])
    if len(actions) >= MAX_ACTIONS or any(_is_of_step(action, step) for action in actions):
        return None
    own = [step.action()]
    says_itself = any(isinstance(action, Mapping) and action.get("action_type") == SEGMENTS_TYPE for action in actions)
    room = len(actions) + 1 < MAX_ACTIONS and not says_itself
    reuse = reuse_action(step, body) if room and body is not None and wants_reuse(step) else None
    if reuse is not None:
        own.append(reuse)
    room_bytes = MAX_ENVELOPE_BYTES - len(json.dumps({**hints, "actions": [*actions, *own]}))
    if room_bytes < 0 and reuse is not None:
        room_bytes += len(json.dumps(own.pop()))
    if room_bytes < 0:
        return None
    most = min(MAX_RIDERS, MAX_ACTIONS - len(own) - len(actions))
    riders: list[Any] = []
    if server:
        riders = outbox().take(server, most=most, room_bytes=room_bytes, workflow_id=step.workflow.id)
    return {**hints, "actions": [*actions, *riders, *own]}


def extra_body(extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return body fields for a request you make yourself, to ``/generate`` or an OpenAI endpoint.

    You decide where it goes, so the hints are there whatever the server is, unless hints are ``off``. When steps and
    workflows end is told to the server that ``KVFLOW_URL`` or :func:`kvflow.configure` names: with the workflow's next
    request, which is taken to go there, or by itself::

        httpx.post(f"{url}/generate", json={"text": prompt, **kvflow.extra_body()})

    Args:
        extra: other fields, copied; a ``kv_hints`` among them keeps its actions and gets ours after them.
    """
    body = dict(extra or {})
    try:
        step = asking_step()
        box = outbox()
        server = box.server(box.settings.url) if box.settings.url else None
        hints = hints_for(step, server, body.get(KEY), body) if step else None
        if hints:
            body[KEY] = hints
            if not box.listeners():
                degraded("no server is told when steps and workflows end: none is set by KVFLOW_URL", trace=False)
    except Exception:
        degraded("a request goes without hints")
    return body


def _is_of_step(action: Any, step: Step) -> bool:
    payload = action.get("payload") or {}
    return action.get("action_type") == STEP_TYPE and payload.get("step_id") == step.context.step_id
