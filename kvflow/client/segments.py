"""Texts that agents hand to each other: declared once, found in the requests that quote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvflow.client.context import active_step
from kvflow.client.degraded import degraded
from kvflow.client.scopes import Step
from kvflow.hints import SegmentRange, checked, segments_action

_MIN_CHARACTERS = 64
_MAX_RANGES = 64


def segment(text: str, name: str | None = None) -> str:
    """Declare a text that stands in prompts of several agents; returns it unchanged::

        document = kvflow.segment(read(path), "document")
        ask(f"Summarise this:\\n{document}")

    Requests of this workflow that quote it, wherever they do, let a server with ``reuse.mode`` on serve it with KV from
    another prompt, which is fast and not exact. From the first declaration on their answers are kept for it, too; where
    an answer comes before any text, say ``workflow(reuse=True)``. Outside a workflow nothing is declared.

    Args:
        text: of 64 characters or more; shorter ones are not looked for, and of some hundred little is gained.
        name: what it is for: the server compares texts of one name with each other.

    Raises:
        TypeError: it is no text.
        ValueError: the name is empty, or longer than the wire allows.
    """
    if not isinstance(text, str):
        raise TypeError(f"segment() takes a text, not {text!r:.60}")
    if name is not None:
        checked("segment", SegmentRange, name=name, message=0)
    step = active_step()
    if step is not None and len(text) >= _MIN_CHARACTERS:
        step.workflow.declare(str(text), name)
    return text


def wants_reuse(step: Step) -> bool:
    """Whether a step's workflow hands on texts, so that it is worth looking into a request."""
    return bool(step.workflow.segments) or step.workflow.reuse


def reuse_action(step: Step, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Build the ``kvflow.segments`` action for a request; None if it fails.

    It goes along even where the request quotes nothing: by it the server knows that others will quote the answer.

    Args:
        step: who asks.
        body: of the request: ``messages``, or a text in ``prompt`` or ``text``.
    """
    try:
        return segments_action(ranges=_ranges(step.workflow.segments, body), messages=step.workflow.reuse)
    except Exception:
        degraded("a request goes without what it could reuse")
        return None


def _ranges(segments: Mapping[str, str | None], body: Mapping[str, Any]) -> list[SegmentRange]:
    """Find the texts; of too many those in the latest messages: what stands in earlier ones is likely to be cached."""
    ranges: list[SegmentRange] = []
    for message, content in reversed(_texts(body)):
        for text, name in list(segments.items()):  # other threads may declare
            at = content.find(text)
            while at >= 0 and len(ranges) < _MAX_RANGES:
                ranges.append(SegmentRange(name=name, message=message, start=at, end=at + len(text)))
                at = content.find(text, at + len(text))
    return sorted(ranges, key=lambda one: (one.message or 0, one.start or 0))


def _texts(body: Mapping[str, Any]) -> list[tuple[int | None, str]]:
    """The texts of a request, as the server will see them."""
    messages = body.get("messages")
    if isinstance(messages, Sequence) and not isinstance(messages, str):
        return [(index, _content(message)) for index, message in enumerate(messages)]
    prompt = body.get("prompt", body.get("text"))
    return [(None, prompt)] if isinstance(prompt, str) else []


def _content(message: Any) -> str:
    content = message.get("content") if isinstance(message, Mapping) else getattr(message, "content", None)
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(
        str(part.get("text", "")) for part in parts if isinstance(part, Mapping) and part.get("type") == "text"
    )
