"""A shadow LRU: what plain recency would have had in the cache, by digests, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class ShadowLRU:
    """One tier under LRU, sampled.

    Only some digests are kept, and the capacity shrinks by the same factor: spatially hashed sampling, SHARDS
    (Waldspurger et al., FAST'15) section 3. A prompt is touched from its end to its start, so that what leaves first
    are ends of prompts, as in a radix tree. What was added together leaves together until a prompt shares only a part
    of it, as radix nodes do: with large chunks that costs LRU more than a tenth of its hits. What running requests hold
    takes up capacity and cannot leave. So does what is too short for a digest behind the last one of every context, its
    rest: with a few dozen contexts in the cache, forgetting those would make LRU's a few percent larger than it is.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._held: dict[int, int] = {}
        self._group_of: dict[int, list[int]] = {}
        self._rests: dict[int, float] = {}
        self._rest_kept = self._rest_held = 0.0

    def __len__(self) -> int:
        return len(self._kept) + len(self._held)

    def __contains__(self, digest: int) -> bool:
        return digest in self._kept or digest in self._held

    def holds(self, digest: int) -> bool:
        """Whether a running request uses it."""
        return digest in self._held

    def missing(self, sampled: Iterable[int]) -> list[int]:
        """What of so many digests it does not have."""
        kept, held = self._kept, self._held
        return [digest for digest in sampled if digest not in kept and digest not in held]

    def hold(self, sampled: Sequence[int], capacity: int, group: int, rest: float = 0.0) -> None:
        """A request that starts takes its prompt, and pushes out what no longer fits.

        Args:
            sampled: digests of its prompt.
            capacity: how many digests there is room for.
            group: how many neighbours are added together.
            rest: room that its rest takes, in digests.
        """
        kept, held = self._kept, self._held
        self._rest_held += rest
        missing = self.missing(sampled)
        if len(missing) < len(sampled):
            self._divide(sampled)
        for digest in sampled:
            held[digest] = held.get(digest, 0) + 1
            if digest in kept:
                del kept[digest]
                self._rest_kept -= self._rests.pop(digest, 0.0)
        for start in range(0, len(missing), group):
            self._join(missing[start : start + group])
        self._shrink(capacity)

    def release(
        self, sampled: Sequence[int], added: Sequence[int], capacity: int, held_rest: float = 0.0, rest: float = 0.0
    ) -> None:
        """A request that ends gives its prompt back, and ``added``, what it has generated, with it.

        Args:
            held_rest: what :meth:`hold` was told.
            rest: room for what is behind the last digest of both now; 0 unless that digest is in the sample.
        """
        kept, held = self._kept, self._held
        self._rest_held -= held_rest
        new = [digest for digest in added if digest not in held]
        self._divide(new)
        self._join([digest for digest in new if digest not in kept])
        for digest in reversed(new):
            kept[digest] = None
            kept.move_to_end(digest)
        for digest in reversed(sampled):
            count = held.get(digest, 0) - 1
            if count > 0:
                held[digest] = count
                continue
            held.pop(digest, None)
            kept[digest] = None  # what was held was not among them, so it comes last
        tip = new[-1] if new else sampled[-1] if sampled else None
        if rest and tip in kept:
            self._rest_kept += rest - self._rests.get(tip, 0.0)
            self._rests[tip] = rest
        self._shrink(capacity)

    def clear(self) -> None:
        """Forget everything that no running request holds."""
        for digest in self._kept:
            self._group_of.pop(digest, None)
        self._kept.clear()
        self._rests.clear()
        self._rest_kept = 0.0

    def _divide(self, used: Sequence[int]) -> None:
        """Part what is used from what was added with it and is not."""
        parts: dict[int, list[int]] = {}
        index = 0
        while index < len(used):
            group = self._group_of.get(used[index])
            if group is not None and id(group) not in parts and self._whole(group, used, index):
                index += len(group)
                continue
            if group is not None:
                parts.setdefault(id(group), []).append(used[index])
            index += 1
        for part in parts.values():
            group = self._group_of[part[0]]
            if len(part) < len(group):
                rest = set(group).difference(part)
                self._join(part)
                self._join([digest for digest in group if digest in rest])

    def _whole(self, group: list[int], used: Sequence[int], index: int) -> bool:
        """Whether all of a group is used, in its order; those of its digests that have left were its last ones."""
        return used[index : index + len(group)] == group and self._group_of.get(group[-1]) is group

    def _join(self, group: list[int]) -> None:
        self._group_of.update(dict.fromkeys(group, group))

    def _shrink(self, capacity: int) -> None:
        kept = self._kept
        room = max(0.0, capacity - len(self._held) - self._rest_held)
        while kept and len(kept) + self._rest_kept > room:
            oldest, _ = kept.popitem(last=False)
            self._rest_kept -= self._rests.pop(oldest, 0.0)
            group = self._group_of.pop(oldest, None)
            while kept and group is not None and self._group_of.get(oldest := next(iter(kept))) is group:
                del kept[oldest], self._group_of[oldest]
                self._rest_kept -= self._rests.pop(oldest, 0.0)
