"""Texts of a prompt that may stand in other prompts, too, and what a program says that wants them reused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvflow.hints import SegmentRange, segments_action
from kvflow.hints.segments import MAX_RANGES
from kvflow.trace import Piece

Texts = tuple[tuple[int, int], ...]
"""First token of each, and the one after its last."""


def cut(texts: Texts, tokens: int) -> Texts:
    """Keep of texts what is among the first tokens."""
    return tuple((start, min(end, tokens)) for start, end in texts if start < tokens)


def following(texts: Texts, pieces: Sequence[Piece], at: int) -> Texts:
    """Add a text for each of the contents that follow from a token on."""
    found = list(texts)
    for piece in pieces:
        found.append((at, at + piece.tokens))
        at += piece.tokens
    return tuple(found)


def reuse_action(texts: Texts, fixed_tokens: int) -> dict[str, Any]:
    """Build ``kvflow.segments`` for all of a prompt's texts but its fixed one, as ``workflow(reuse=True)`` has them.

    Args:
        texts: of the prompt; of more than the wire allows, the latest.
        fixed_tokens: of the prompt's beginning that is the same every time, which the prefix cache has.
    """
    places = ((max(start, fixed_tokens), end) for start, end in texts)
    ranges = [SegmentRange(start_tokens=start, end_tokens=end) for start, end in places if start < end]
    return segments_action(ranges=ranges[-MAX_RANGES:])
