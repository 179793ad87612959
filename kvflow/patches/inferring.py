"""Requests that bring no hints: what of them says whose they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from typing import Any

from xxhash import xxh3_128_hexdigest

from kvflow import config
from kvflow.patches.front import Admission, Front
from kvflow.patches.guard import note
from kvflow.patches.locating import plain

_FIXED_ROLES = ("system", "developer")
_GRAM_TOKENS, _GRAM_BYTES = 6, 24
"""What is quoted in tokens or bytes is found by runs of so many."""
_NO_TEXT = ("image_data", "video_data", "audio_data", "session_params")
_LONGEST = 2**22
"""Tokens, or characters of a text, from which on nothing is inferred."""


@cache
def enabled() -> bool:
    """Read once, as all settings."""
    return config.load().intake.infer


def possible(obj: Any) -> bool:
    """Whether a request without hints can be told from others: one prompt, for an answer."""
    return enabled() and hasattr(obj, "kv_hints") and _is_prompt(obj)


def admit(front: Front, obj: Any, admissions: list[Admission]) -> None:
    """Admit a request under the name of the workflow it seems to belong to."""
    prompt = _prompt(obj)
    if prompt is None:
        return
    namespace = _digest([getattr(obj, name, None) for name in ("extra_key", "cache_salt", "lora_path")])
    kind, marks = getattr(obj, "_kvflow_marks", ("", ()))
    gram = _GRAM_BYTES if obj.input_ids is None else _GRAM_TOKENS
    admission = front.infer(prompt, namespace, kind, marks, gram)
    if admission.envelope is not None:
        admissions.append(admission)
        obj.kv_hints = admission.envelope


class Said:
    """What a request without hints has been answered, in tokens or bytes as its prompt.

    Args:
        obj: the request.
        deltas: whether parts of an answer that is streamed bring only what is new.
    """

    def __init__(self, obj: Any, deltas: bool) -> None:
        self._as_text = obj.input_ids is None
        self._deltas = deltas
        self._parts: list[Sequence[int]] = []

    def add(self, answer: Any, *, last: bool) -> None:
        """Take the next part of an answer, or all of it; of several answers to one prompt, nothing."""
        if not isinstance(answer, dict) or not (last or self._deltas):
            return
        part = (answer.get("text") or "").encode() if self._as_text else answer.get("output_ids") or ()
        if not self._deltas:
            self._parts.clear()
        self._parts.append(part)

    @property
    def all(self) -> list[int]:
        """All of it so far."""
        return [each for part in self._parts for each in part]


def mark(adapted: Any, request: Any) -> None:
    """Note what a chat says of its context: the system prompt that it begins with, and tool calls it has results of."""
    try:
        messages = [plain(message.model_dump(exclude_none=True)) for message in request.messages]
        first = takewhile(lambda message: message.get("role") in _FIXED_ROLES, messages)  # it may say more later
        fixed = [message.get("content") for message in first]
        marks = [_digest(message["tool_call_id"]) for message in messages if message.get("tool_call_id")]
        adapted._kvflow_marks = (_digest(fixed) if fixed else "", marks)
    except Exception:
        note("reading messages")


def _digest(told: Any) -> str:
    """What stands for a text that may be long, and is remembered: 32 hexadecimal digits."""
    return xxh3_128_hexdigest(json.dumps(told, default=str).encode())


def _prompt(obj: Any) -> Sequence[int] | None:
    """Token ids, or else bytes of UTF-8; None for a batch, and for what is neither."""
    ids, text = obj.input_ids, obj.text
    if not _is_prompt(obj):
        return None
    return list(text.encode()) if ids is None else ids


def _is_prompt(obj: Any) -> bool:
    """Whether there is one prompt, all of it text, and not too long for any model, which is not told before.

    A turn of a streaming session has only what is new.
    """
    if any(getattr(obj, name, None) for name in _NO_TEXT):
        return False
    ids, text = obj.input_ids, obj.text
    if ids is None:
        return isinstance(text, str) and len(text) <= _LONGEST
    return 0 < len(ids) <= _LONGEST and isinstance(ids[0], int)
