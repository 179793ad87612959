"""Keys that walk fast along the paths that agents' sessions grow.

A session adds a node or two with every turn. Whoever walks its path compares hundreds of short keys, all but the last
of which are found whole, and SGLang's insertion cuts what it has matched off its key at each of them, which copies the
rest every time.
"""

from __future__ import annotations

from array import array
from typing import Any

from sglang.srt.mem_cache.radix_cache import RadixKey


class KeyView(RadixKey):
    """A stretch of a key. Its slices share the tokens, where those of SGLang's key copy them."""

    __slots__ = ("_end", "_start", "_tokens")

    def __init__(self, tokens: array[int], start: int, end: int, like: RadixKey) -> None:
        self._tokens, self._start, self._end = tokens, start, end
        self.extra_key, self.cache_salt = like.extra_key, like.cache_salt
        self.is_bigram, self.limit = False, None

    @classmethod
    def of(cls, key: RadixKey) -> KeyView:
        """View a key that is not one of bigrams."""
        return cls(key.token_ids, 0, len(key), key)

    @property
    def token_ids(self) -> array[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A copy of its tokens."""
        return self._tokens[self._start : self._end]

    def stretch(self, start: int, end: int) -> array[int]:
        """A copy of some of its tokens."""
        return self._tokens[self._start + start : min(self._start + end, self._end)]

    def _raw_len(self) -> int:
        return self._end - self._start

    def __len__(self) -> int:
        return self._end - self._start

    def __getitem__(self, idx: int | slice) -> RadixKey:
        if isinstance(idx, int):
            return super().__getitem__(idx)
        start, end, step = idx.indices(len(self))
        if step != 1:
            raise ValueError("RadixKey slice step must be 1")
        return KeyView(self._tokens, self._start + start, self._start + max(start, end), self)

    def child_key_at(self, offset: int, page_size: int = 1) -> Any:
        """What a node's children are found by, as SGLang makes it."""
        page = self.stretch(offset, offset + page_size)
        return RadixKey(page, self.extra_key, cache_salt=self.cache_salt).child_key(page_size)


class NodeKey(RadixKey):
    """What a node spans, compared as a whole before it is searched for the first difference."""

    __slots__ = ()

    @classmethod
    def of(cls, key: RadixKey) -> NodeKey:
        """Make one of another key."""
        return cls(key.token_ids, key.extra_key, key.is_bigram, key.limit, key.cache_salt)

    def __len__(self) -> int:
        return len(self.token_ids) if self.limit is None and not self.is_bigram else super().__len__()

    def match_at(self, other: RadixKey, offset: int, page_size: int = 1) -> int:
        """Tokens in common with ``other`` from ``offset`` on, in full pages, as SGLang counts them."""
        if offset >= 0 and self._is_in(other, offset):
            return len(self.token_ids) // page_size * page_size
        return super().match_at(other, offset, page_size)

    def _is_in(self, other: RadixKey, offset: int) -> bool:
        """Whether it stands there as a whole; no is no answer where keys are not of mere tokens."""
        own = self.token_ids
        end = offset + len(own)
        if (
            self.is_bigram
            or other.is_bigram
            or self.limit is not None
            or (other.limit is not None and end > other.limit)
        ):
            return False
        if self.extra_key != other.extra_key or self.cache_salt != other.cache_salt:
            return False
        return own == (other.stretch(offset, end) if isinstance(other, KeyView) else other.token_ids[offset:end])
