"""Contents of a trace as token ids. A trace names contents and counts their tokens; it does not spell them out."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from kvflow.trace import Piece

LOW, HIGH = 10, 250
"""Token ids from LOW to below HIGH: every vocabulary has them, and none of them ends an answer."""
_CHUNK = 1024
"""Tokens that are spelled at once: a trace of block hashes cuts all its prompts out of one content without end."""


class Contents:
    """Token ids by content: equal names are equal tokens, in every run and every arm.

    Args:
        low: smallest id ...
        high: ... and the one after the largest.
    """

    def __init__(self, low: int = LOW, high: int = HIGH) -> None:
        self._ids: Sequence[int] = range(low, high)
        self._known: dict[tuple[str, int], array[int]] = {}

    def tokens(self, piece: Piece) -> array[int]:
        """Spell a slice of a content; shape [piece.tokens]."""
        found = array("q")
        end = piece.offset + piece.tokens
        for chunk in range(piece.offset // _CHUNK, -(-end // _CHUNK)):
            first = chunk * _CHUNK
            found += self._chunk(piece.content, chunk, min(end - first, _CHUNK))[max(0, piece.offset - first) :]
        return found

    def _chunk(self, content: str, chunk: int, tokens: int) -> array[int]:
        """Spell the first tokens of a chunk; shape [tokens]."""
        known = self._known.get((content, chunk))
        if known is None or len(known) < tokens:
            # The first choices of one seed are the same however many are made.
            known = array("q", random.Random(f"{content}/{chunk}").choices(self._ids, k=tokens))
            self._known[content, chunk] = known
        return known[:tokens]

    def prompt(self, base: array[int], pieces: Sequence[Piece]) -> array[int]:
        """Continue a context, which may be empty, by pieces; shape [tokens of both]."""
        prompt = base[:]
        for piece in pieces:
            prompt.extend(self.tokens(piece))
        return prompt
