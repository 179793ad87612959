"""Requests that bring no hints: what of them says whose they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from kvflow import config
from kvflow.patches.front import Admission, Front
from kvflow.patches.guard import note
from kvflow.patches.locating import plain

_FIXED_ROLES = ("system", "developer")


@cache
def enabled() -> bool:
    """Read once, as all settings."""
    return config.load().intake.infer


def possible(obj: Any) -> bool:
    """Whether a request without hints can be told from others: one prompt, for an answer."""
    return enabled() and hasattr(obj, "kv_hints") and _prompt(obj) is not None


def admit(front: Front, obj: Any, admissions: list[Admission]) -> None:
    """Admit a request under the name of the workflow it seems to belong to."""
    prompt = _prompt(obj)
    if prompt is None:
        return
    namespace = "/".join(str(getattr(obj, name, None)) for name in ("extra_key", "cache_salt", "lora_path"))
    kind, marks = getattr(obj, "_kvflow_marks", ("", ()))
    admission = front.infer(prompt, namespace, kind, marks)
    if admission.envelope is not None:
        admissions.append(admission)
        obj.kv_hints = admission.envelope


def mark(adapted: Any, request: Any) -> None:
    """Note what the messages of a chat say of its context: the system prompt, and the tool calls it has results of."""
    try:
        messages = [plain(message.model_dump(exclude_none=True)) for message in request.messages]
        fixed = [message.get("content") for message in messages if message.get("role") in _FIXED_ROLES]
        marks = [message["tool_call_id"] for message in messages if message.get("tool_call_id")]
        adapted._kvflow_marks = (json.dumps(fixed, default=str), marks)
    except Exception:
        note("reading messages")


def _prompt(obj: Any) -> Sequence[int] | None:
    """Token ids, or else characters; None for a batch, and for what is neither."""
    ids, text = obj.input_ids, obj.text
    if ids is None:
        return list(text.encode()) if isinstance(text, str) else None
    return ids if len(ids) and isinstance(ids[0], int) else None
