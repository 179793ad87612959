"""What a request asks to have reused, in tokens of its prompt: in the HTTP process, where text becomes tokens."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from typing import Any

from kvflow.engine import Located
from kvflow.hints import SegmentRange, Segments
from kvflow.patches.token_cache import TokenCache

SlotRange = tuple[int, int, str]
"""Start and end in tokens, and the slot's name."""

_MAX_SLOTS = 256
_UNNAMED = "segment"
_texts = TokenCache(max_bytes=64 * 2**20)


def tokens_of(tokenizer: Any, text: str) -> Sequence[int]:
    """The tokens of a text that stands alone; agents quote the same ones again and again."""
    return _texts.tokens(tokenizer, text, lambda: tokenizer.encode(text, add_special_tokens=False))


def find_slots(
    asked: Segments,
    prompt: Callable[[], Sequence[int]],
    tokenizer: Any,
    *,
    messages: Sequence[tuple[str, str]] | None = None,
    text: str | None = None,
) -> list[SlotRange]:
    """Find what a request asks to have reused.

    Args:
        asked: what it says.
        prompt: gives the prompt's tokens; called only if there is something to find in it.
        tokenizer: SGLang's, of the Hugging Face kind.
        messages: role and text of each chat message.
        text: the prompt, if it came as one text.

    Returns:
        Ranges in order that do not overlap: what was named first counts. What is not in the prompt is left out.
    """
    located = None
    if (asked.messages and messages) or any(item.start_tokens is None for item in asked.ranges):
        located = Located(prompt())
    slots: list[SlotRange] = []
    for start, end, name in _found(asked, located, tokenizer, messages, text)[:_MAX_SLOTS]:
        if all(end <= other[0] or other[1] <= start for other in slots):
            slots.append((start, end, name))
    return sorted(slots)


def _found(
    asked: Segments,
    prompt: Located | None,
    tokenizer: Any,
    messages: Sequence[tuple[str, str]] | None,
    text: str | None,
) -> list[SlotRange]:
    found: list[SlotRange] = []
    seen: dict[str, int] = {}
    places = _Places()
    for item in asked.ranges:
        if item.start_tokens is not None and item.end_tokens is not None:
            found.append((item.start_tokens, item.end_tokens, item.name or _UNNAMED))
            continue
        part = _text_of(item, messages, text, places)
        run = prompt.find(tokens_of(tokenizer, part), seen.get(part, 0)) if prompt and part else None
        if run is not None:
            seen[part] = run[1]
            found.append((*run, item.name or _UNNAMED))
    return found + _messages(messages, prompt, tokenizer) if asked.messages and messages and prompt else found


def _messages(messages: Sequence[tuple[str, str]], prompt: Located, tokenizer: Any) -> list[SlotRange]:
    found: list[SlotRange] = []
    after = 0
    for role, content in messages:
        run = prompt.find(tokens_of(tokenizer, content), after) if content else None
        if run is None:
            continue
        after = run[1]
        if role not in ("system", "developer"):
            found.append((*run, role))
    return found


class _Places:
    """Characters of messages, or of a prompt, that ranges have taken: what overlaps them is not tokenized as well."""

    def __init__(self) -> None:
        self._taken: dict[int | None, list[tuple[int, int]]] = {}

    def take(self, message: int | None, start: int, end: int) -> bool:
        """Take what nobody has taken yet; tells whether that is so. Cost: O(log ranges)."""
        taken = self._taken.setdefault(message, [])
        place = bisect(taken, (start, end))
        if (place and taken[place - 1][1] > start) or (place < len(taken) and taken[place][0] < end):
            return False
        taken.insert(place, (start, end))
        return True


def _text_of(item: SegmentRange, messages: Sequence[tuple[str, str]] | None, text: str | None, places: _Places) -> str:
    """The text of a range; none of what an earlier one has had."""
    if item.message is not None:
        text = messages[item.message][1] if messages is not None and item.message < len(messages) else None
    start, end, _ = slice(item.start, item.end).indices(len(text or ""))
    return text[start:end] if text and start < end and places.take(item.message, start, end) else ""


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Join a chat message's text parts, as SGLang does for templates that take strings."""
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = " ".join(part["text"] for part in content if part.get("type") == "text")
    return message


def roles_and_texts(request: Any) -> list[tuple[str, str]]:
    """Role and text of the messages of a chat request."""
    messages = [plain(message.model_dump(exclude_none=True)) for message in request.messages]
    return [(message["role"], message.get("content") or "") for message in messages]
