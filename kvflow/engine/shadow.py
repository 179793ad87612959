"""A shadow LRU: what plain recency would have had in the cache, by digests, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class ShadowLRU:
    """One tier under LRU, sampled.

    Only digests divisible by the sampling rate are kept, and the capacity shrinks by the same factor: spatially hashed
    sampling, SHARDS (Waldspurger et al., FAST'15) section 3. A prompt is touched from its end to its start, so that
    what leaves first are ends of prompts, as in a radix tree.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, digest: int) -> bool:
        return digest in self._kept

    def touch(self, sampled: Sequence[int], capacity: int) -> None:
        """Use the sampled digests of one prompt, then shrink to ``capacity`` of them."""
        kept = self._kept
        for digest in reversed(sampled):
            kept[digest] = None
            kept.move_to_end(digest)
        while len(kept) > capacity:
            kept.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
