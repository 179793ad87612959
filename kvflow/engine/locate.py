"""Where a text's tokens stand in a prompt, though its borders may be tokenised otherwise there."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_RAGGED_TOKENS = 4
"""Tokens at either end of a text that its neighbours may change."""
_SHORTEST = 4 * _RAGGED_TOKENS
_WIDTH = array("q").itemsize


class Located:
    """A prompt to look for texts in.

    Args:
        tokens: of the prompt.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = array("q", tokens)
        self._bytes = self._tokens.tobytes()

    def find(self, text: Sequence[int], after: int = 0) -> tuple[int, int] | None:
        """Find the first occurrence of a text, as the longest run of tokens it shares with the prompt there.

        Args:
            text: its tokens when it stands alone.
            after: first token of the prompt to look at.

        Returns:
            Start and end in the prompt; None if it is not there, or too short to be told from others.
        """
        if len(text) < _SHORTEST:
            return None
        inner = array("q", text[_RAGGED_TOKENS : len(text) - _RAGGED_TOKENS])
        start = self._aligned(inner.tobytes(), after)
        if start is None:
            return None
        end, first, last = start + len(inner), _RAGGED_TOKENS, _RAGGED_TOKENS + len(inner)
        while first > 0 and start > after and text[first - 1] == self._tokens[start - 1]:
            first, start = first - 1, start - 1
        while last < len(text) and end < len(self._tokens) and text[last] == self._tokens[end]:
            last, end = last + 1, end + 1
        return start, end

    def _aligned(self, wanted: bytes, after: int) -> int | None:
        at = self._bytes.find(wanted, after * _WIDTH)
        while at % _WIDTH and at >= 0:
            at = self._bytes.find(wanted, at + 1)
        return at // _WIDTH if at >= 0 else None
