"""What a request asks to have reused, in tokens of its prompt: in the HTTP process, where text becomes tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from kvflow.engine import Located
from kvflow.hints import SegmentRange, Segments

SlotRange = tuple[int, int, str]
"""Start and end in tokens, and the slot's name."""

_MAX_SLOTS = 256
_UNNAMED = "segment"
_CACHED_TEXTS = 1024


class Texts:
    """Turns texts into tokens, each once.

    Args:
        tokenizer: SGLang's, of the Hugging Face kind.
    """

    def __init__(self, tokenizer: Any) -> None:
        def encode(text: str) -> tuple[int, ...]:
            return tuple(tokenizer.encode(text, add_special_tokens=False))

        self.tokens_of = lru_cache(maxsize=_CACHED_TEXTS)(encode)


@lru_cache(maxsize=4)
def texts_of(tokenizer: Any) -> Texts:
    """The texts of a tokenizer."""
    return Texts(tokenizer)


def find_slots(
    asked: Segments,
    prompt: Callable[[], Sequence[int]],
    texts: Texts,
    *,
    messages: Sequence[tuple[str, str]] | None = None,
    text: str | None = None,
) -> list[SlotRange]:
    """Find what a request asks to have reused.

    Args:
        asked: what it says.
        prompt: gives the prompt's tokens; called only if there is something to find in it.
        texts: what tokens a text has.
        messages: role and text of each chat message.
        text: the prompt, if it came as one text.

    Returns:
        Ranges in order that do not overlap: what was named first counts. What is not in the prompt is left out.
    """
    located = None
    if asked.messages or any(item.start_tokens is None for item in asked.ranges):
        located = Located(prompt())
    slots: list[SlotRange] = []
    for start, end, name in _found(asked, located, texts, messages, text)[:_MAX_SLOTS]:
        if all(end <= other[0] or other[1] <= start for other in slots):
            slots.append((start, end, name))
    return sorted(slots)


def _found(
    asked: Segments,
    prompt: Located | None,
    texts: Texts,
    messages: Sequence[tuple[str, str]] | None,
    text: str | None,
) -> list[SlotRange]:
    found: list[SlotRange] = []
    seen: dict[str, int] = {}
    for item in asked.ranges:
        if item.start_tokens is not None and item.end_tokens is not None:
            found.append((item.start_tokens, item.end_tokens, item.name or _UNNAMED))
            continue
        part = _text_of(item, messages, text)
        run = prompt.find(texts.tokens_of(part), seen.get(part, 0)) if prompt and part else None
        if run is not None:
            seen[part] = run[1]
            found.append((*run, item.name or _UNNAMED))
    return found + _messages(messages, prompt, texts) if asked.messages and messages and prompt else found


def _messages(messages: Sequence[tuple[str, str]], prompt: Located, texts: Texts) -> list[SlotRange]:
    found: list[SlotRange] = []
    after = 0
    for role, content in messages:
        run = prompt.find(texts.tokens_of(content), after) if content else None
        if run is None:
            continue
        after = run[1]
        if role not in ("system", "developer"):
            found.append((*run, role))
    return found


def _text_of(item: SegmentRange, messages: Sequence[tuple[str, str]] | None, text: str | None) -> str:
    if item.message is not None:
        text = messages[item.message][1] if messages is not None and item.message < len(messages) else None
    return (text or "")[item.start : item.end]


def plain_messages(request: Any) -> list[tuple[str, str]]:
    """Role and text of the messages of a chat request, text parts joined as SGLang does."""
    messages: list[tuple[str, str]] = []
    for message in request.messages:
        content = message.content
        if isinstance(content, list):
            content = " ".join(part.text for part in content if getattr(part, "type", "") == "text")
        messages.append((message.role, content or ""))
    return messages
