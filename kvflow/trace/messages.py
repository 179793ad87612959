"""What a request to an LLM endpoint holds, as names and lengths: no text is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kvflow.trace.importers.base import SLICE_CHARS, SLICE_TOKENS, digest, estimated_tokens

MEDIA_TOKENS = 1000
"""Counted for an image or a recording, whatever its bytes are: the order of an image of a megapixel (OpenAI counts
tiles of 512 pixels, Qwen2.5-VL patches of 28, Anthropic pixels / 750) and of a minute of sound."""
_MEDIA = ("image", "image_url", "input_image", "input_audio", "audio_url")
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
"""Parts of a content that are texts, and where these stand."""


class MessagePart(NamedTuple):
    """One message of a prompt.

    Attributes:
        role: of the message; ``tools`` for tool schemas, ``text`` for a slice of a prompt that is plain text or ids.
        name: digest of what it says; equal messages have equal ones.
        tokens: estimated from the length of its texts, and of whatever is not known to be an image or sound; or counted
            if it came as token ids.
    """

    role: str
    name: str
    tokens: int


class Usage(NamedTuple):
    """What an answer says about itself; None if it does not.

    Attributes:
        prompt_tokens: counted by the server.
        output_tokens: the same, of the answer.
        answer: as it will look in the next prompt.
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    answer: MessagePart | None = None


def prompt_parts(body: Mapping[str, Any]) -> list[MessagePart]:
    """Messages of a request: OpenAI's chat and completions endpoints, and SGLang's ``/generate``."""
    parts: list[MessagePart] = []
    if body.get("tools"):
        parts.append(_part("tools", _json(body["tools"])))
    messages = body.get("messages")
    if isinstance(messages, list | tuple):
        parts += [_message(message) for message in messages if isinstance(message, Mapping)]
        return parts
    for name in ("prompt", "text", "input_ids"):
        if body.get(name):
            parts += _plain(body[name])
            break
    return parts


def usage(body: Mapping[str, Any]) -> Usage:
    """What the body of an answer says, at the endpoints that :func:`prompt_parts` knows."""
    counts = body.get("usage") or body.get("meta_info") or {}
    if not isinstance(counts, Mapping):
        counts = {}
    return Usage(_count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens")), _answer(body))


def _answer(body: Mapping[str, Any]) -> MessagePart | None:
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if isinstance(choice, Mapping):
        if isinstance(choice.get("message"), Mapping):
            return _message({"role": "assistant", **choice["message"]})
        if isinstance(choice.get("text"), str):
            return _part("text", choice["text"])
    return _part("text", body["text"]) if isinstance(body.get("text"), str) else None


def _message(message: Mapping[str, Any]) -> MessagePart:
    role = str(message.get("role", "user"))
    content = message.get("content")
    said = content if isinstance(content, str) else _json(content) if content else ""
    text, media = _measured(content)
    called = message.get("tool_calls")
    if isinstance(called, list | tuple):
        calls = "".join(_json(each.get("function")) for each in called if isinstance(each, Mapping))
        said, text = said + calls, text + calls
    return _part(role, said)._replace(tokens=estimated_tokens(text) + media * MEDIA_TOKENS)


def _measured(content: Any) -> tuple[str, int]:
    """What of a content is as long as its text, and how many images and recordings it has."""
    if not isinstance(content, list | tuple):
        return content if isinstance(content, str) else _json(content) if content else "", 0
    parts = [_measured_part(part) for part in content]
    return "".join(text for text, _ in parts), sum(media for _, media in parts)


def _measured_part(part: Any) -> tuple[str, int]:
    kind = str(part.get("type")) if isinstance(part, Mapping) else ""
    if kind in _MEDIA:
        return "", 1
    if kind == "tool_result":
        return _measured(part.get("content"))
    if kind == "tool_use":
        return f"{part.get('name')}{_json(part.get('input'))}", 0
    text = part.get(_TEXTS[kind]) if kind in _TEXTS else None
    return text if isinstance(text, str) else _json(part), 0


def _plain(value: Any) -> Iterator[MessagePart]:
    if isinstance(value, str):
        for start in range(0, len(value), SLICE_CHARS):
            yield _part("text", value[start : start + SLICE_CHARS])
    elif isinstance(value, list | tuple) and value and isinstance(value[0], int):
        for start in range(0, len(value), SLICE_TOKENS):
            ids = list(value[start : start + SLICE_TOKENS])
            yield MessagePart("text", digest(str(ids)), len(ids))
    elif isinstance(value, list | tuple):
        yield from _plain(value[0])  # a batch: the requests after the first are not told apart


def _part(role: str, text: str) -> MessagePart:
    return MessagePart(role, digest(f"{role}\n{text}"), estimated_tokens(text))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
