"""Where a text's tokens stand in a prompt, though its borders may be tokenised otherwise there."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

_RAGGED_TOKENS = 4
"""Tokens at either end of a text that its neighbours may change."""
_SHORTEST = 4 * _RAGGED_TOKENS
_ENCODING = f"utf-32-{sys.byteorder[0]}e"
_CHARACTERS = 2**20
"""Ids modulo this are characters, all of them (Unicode ends at 0x10FFFF); vocabularies are smaller."""


class Located:
    """A prompt to look for texts in.

    Args:
        tokens: of the prompt.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = array("q", tokens)
        self._text = _spelled(self._tokens)

    def find(self, text: Sequence[int], after: int = 0) -> tuple[int, int] | None:
        """Find the first occurrence of a text, as the longest run of tokens it shares with the prompt there.

        Args:
            text: its tokens when it stands alone.
            after: first token of the prompt to look at.

        Returns:
            Start and end in the prompt; None if it is not there, or too short to be told from others. (Nor if something
            stands before it whose ids differ by multiples of 2^20, as only placeholders of images might.)
        """
        if len(text) < _SHORTEST:
            return None
        inner = array("q", text[_RAGGED_TOKENS : len(text) - _RAGGED_TOKENS])
        start = self._text.find(_spelled(inner), after)
        if start < 0 or self._tokens[start : start + len(inner)] != inner:
            return None
        end, first, last = start + len(inner), _RAGGED_TOKENS, _RAGGED_TOKENS + len(inner)
        while first > 0 and start > after and text[first - 1] == self._tokens[start - 1]:
            first, start = first - 1, start - 1
        while last < len(text) and end < len(self._tokens) and text[last] == self._tokens[end]:
            last, end = last + 1, end + 1
        return start, end


def _spelled(tokens: array[int]) -> str:
    """A character for each token: text is searched in linear time, and never matches between two of them."""
    return array("I", [token % _CHARACTERS for token in tokens]).tobytes().decode(_ENCODING, "surrogatepass")
