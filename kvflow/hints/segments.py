"""``kvflow.segments``: texts of a request's prompt that stand in other prompts too, behind other beginnings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvflow.config import ReuseMode
from kvflow.hints.fields import Name, Strict

MAX_RANGES = 256
Place = Annotated[int, Field(ge=0, le=2**31)]


class SegmentRange(Strict):
    """Where one text stands: tokens of the prompt, characters of a chat message, or characters of a text prompt."""

    name: Name | None = None
    """What it is for: texts of one name in prompts of one agent are compared with each other."""
    message: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Index of the chat message that ``start`` and ``end`` are characters of; without them the whole message."""
    start: Place | None = None
    end: Place | None = None
    start_tokens: Place | None = None
    end_tokens: Place | None = None

    @model_validator(mode="after")
    def _one_form(self) -> SegmentRange:
        in_tokens = (self.start_tokens, self.end_tokens) != (None, None)
        in_text = self.message is not None or (self.start, self.end) != (None, None)
        if in_tokens == in_text:
            raise ValueError("give start_tokens and end_tokens, or message and/or start and end")
        first, last = (self.start_tokens, self.end_tokens) if in_tokens else (self.start, self.end)
        if (first is None) != (last is None) or (first is not None and last is not None and first >= last):
            raise ValueError("both ends of a range are needed, and it must not be empty")
        return self


class Segments(Strict):
    """What of a prompt may be served with KV from elsewhere. Without this action a request is always exact.

    With it, even if it names nothing, the answer is remembered, so that other requests may quote it.
    """

    ranges: Annotated[list[SegmentRange], Field(max_length=MAX_RANGES)] = Field(default_factory=list)
    messages: bool = False
    """Every chat message but system messages, besides ``ranges``."""
    mode: Literal[ReuseMode, "naive"] | None = None
    """How to correct KV; the server's ``reuse.mode`` if not given. Of no effect if that is ``off``.
    ``naive`` corrects nothing: for comparison only."""
