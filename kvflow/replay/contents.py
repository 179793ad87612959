"""Contents of a trace as token ids. A trace names contents and counts their tokens; it does not spell them out."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from kvflow.trace import Piece

LOW, HIGH = 10, 250
"""Token ids from LOW to below HIGH: every vocabulary has them, and none of them ends an answer."""


class Contents:
    """Token ids by content: equal names are equal tokens, in every run and every arm.

    Args:
        low: smallest id ...
        high: ... and the one after the largest.
    """

    def __init__(self, low: int = LOW, high: int = HIGH) -> None:
        self._ids: Sequence[int] = range(low, high)
        self._known: dict[str, array[int]] = {}

    def tokens(self, piece: Piece) -> array[int]:
        """Spell a slice of a content; shape [piece.tokens]."""
        end = piece.offset + piece.tokens
        known = self._known.get(piece.content)
        if known is None or len(known) < end:
            # The first choices of one seed are the same however many are made.
            known = array("q", random.Random(piece.content).choices(self._ids, k=end))
            self._known[piece.content] = known
        return known[piece.offset : end]

    def prompt(self, base: array[int], pieces: Sequence[Piece]) -> array[int]:
        """Continue a context, which may be empty, by pieces; shape [tokens of both]."""
        prompt = base[:]
        for piece in pieces:
            prompt.extend(self.tokens(piece))
        return prompt
