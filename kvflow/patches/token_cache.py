"""Tokens of texts that come again and again, in bounded memory."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any

_ENTRY_BYTES = 512
"""What an entry takes beside its tokens."""


class TokenCache:
    """Remembers the tokens of the texts used last. Texts themselves are not kept. May be used from several threads.

    Args:
        max_bytes: of all that is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self.held_bytes = 0
        self._max_bytes = max_bytes
        self._tokens: OrderedDict[tuple[Any, bytes], array[int]] = OrderedDict()
        self._lock = Lock()

    def tokens(self, tokenizer: Any, text: str, encode: Callable[[], Sequence[int]]) -> array[int]:
        """The tokens of a text.

        Args:
            tokenizer: whose tokens.
            text: what they are the tokens of.
            encode: gives them if they are not known.
        """
        key = (tokenizer, blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest())
        with self._lock:
            found = self._tokens.get(key)
            if found is not None:
                self._tokens.move_to_end(key)
                return found
        tokens = array("i", encode())
        with self._lock:
            if key not in self._tokens:
                self._tokens[key] = tokens
                self.held_bytes += _size_bytes(tokens)
            while self.held_bytes > self._max_bytes:
                self.held_bytes -= _size_bytes(self._tokens.popitem(last=False)[1])
        return tokens


def _size_bytes(tokens: array[int]) -> int:
    return _ENTRY_BYTES + len(tokens) * tokens.itemsize
