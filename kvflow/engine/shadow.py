"""A shadow LRU: what plain recency would have had in the cache, by digests, in bounded memory."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence


class ShadowLRU:
    """One tier under LRU, sampled.

    Only some digests are kept, and the capacity shrinks by the same factor: spatially hashed sampling, SHARDS
    (Waldspurger et al., FAST'15) section 3. A digest stands for all before it too, so what is kept of a prompt is a
    prefix of it. A prompt is touched from its end to its start, so that what leaves first are ends of prompts, as in a
    radix tree. What was added together leaves together until a prompt shares only a part of it, as radix nodes do: with
    large chunks that costs LRU more than a tenth of its hits. What running requests hold takes up capacity and cannot
    leave. So does what is too short for a digest behind the last one of every context, its rest: with a few dozen
    contexts in the cache, forgetting those would make LRU's a few percent larger than it is.
    """

    def __init__(self) -> None:
        self._group_of: dict[int, _Group] = {}
        self._kept: OrderedDict[_Group, None] = OrderedDict()
        self._digests_kept = self._digests_held = 0
        self._rest_kept = self._rest_held = 0.0

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, digest: int) -> bool:
        return digest in self._group_of

    def holds(self, digest: int) -> bool:
        """Whether a running request uses it."""
        group = self._group_of.get(digest)
        return group is not None and group.holders > 0

    def prefix(self, sampled: Sequence[int]) -> int:
        """How many of a prompt's first digests it has: what it has of a prompt is a prefix. Cost: O(log digests)."""
        return bisect_left(sampled, True, key=lambda digest: digest not in self._group_of)

    def hold(self, sampled: Sequence[int], capacity: int, group: int, rest: float = 0.0) -> None:
        """A request that starts takes its prompt, and pushes out what no longer fits.

        Args:
            sampled: digests of its prompt.
            capacity: how many digests there is room for.
            group: how many neighbours are added together.
            rest: room that its rest takes, in digests.
        """
        self._rest_held += rest
        count = self.prefix(sampled)
        tip = self._tip(sampled, count)
        for part in _upwards(tip):
            if not part.holders:
                del self._kept[part]
                self._digests_kept -= len(part.digests)
                self._digests_held += len(part.digests)
                self._rest_kept -= part.rest
                part.rest = 0.0
            part.holders += 1
        for start in range(count, len(sampled), group):
            tip = self._add(sampled[start : start + group], tip, holders=1)
        self._shrink(capacity)

    def look_up(self, sampled: Sequence[int]) -> None:
        """A request that still waits has looked for its prompt, which renews what is there of it.

        Args:
            sampled: digests of its prompt.
        """
        for part in _upwards(self._tip(sampled, self.prefix(sampled))):
            if not part.holders:
                self._kept.move_to_end(part)

    def release(
        self, sampled: Sequence[int], added: Sequence[int], capacity: int, held_rest: float = 0.0, rest: float = 0.0
    ) -> None:
        """A request that ends gives its prompt back, and ``added``, what it has generated, with it.

        Args:
            sampled: what :meth:`hold` was told.
            added: what follows it.
            capacity: how many digests there is room for.
            held_rest: what :meth:`hold` was told.
            rest: room for what is behind the last digest of both now; 0 unless that digest is in the sample.
        """
        self._rest_held -= held_rest
        held = self._tip(sampled, len(sampled))
        for part in _upwards(held):
            part.holders -= 1
            if not part.holders:
                self._digests_held -= len(part.digests)
                self._digests_kept += len(part.digests)
        count = self.prefix(added)
        tip = self._tip(added, count) or held
        if count < len(added):
            tip = self._add(added[count:], tip, holders=0)
        for part in _upwards(tip):
            if not part.holders:
                self._kept[part] = None
                self._kept.move_to_end(part)
        if rest and tip is not None and not tip.holders:
            self._rest_kept += rest - tip.rest
            tip.rest = rest
        self._shrink(capacity)

    def clear(self) -> None:
        """Forget everything that no running request holds."""
        self._shrink(0)

    def _tip(self, sampled: Sequence[int], count: int) -> _Group | None:
        """The group that ends with the last of a prompt's first ``count`` digests, which it has; None for none."""
        if not count:
            return None
        digest = sampled[count - 1]
        group = self._group_of[digest]
        return group if group.digests[-1] == digest else self._divide(group, group.digests.index(digest) + 1)

    def _divide(self, group: _Group, count: int) -> _Group:
        """Take the first digests out of a group, which keeps its place with the others."""
        head = _Group(group.digests[:count], group.parent, group.holders)
        group.digests, group.parent = group.digests[count:], head
        self._group_of.update(dict.fromkeys(head.digests, head))
        if not head.holders:
            self._kept[head] = None
        return head

    def _add(self, digests: Sequence[int], parent: _Group | None, holders: int) -> _Group:
        group = _Group(list(digests), parent, holders)
        self._group_of.update(dict.fromkeys(group.digests, group))
        if holders:
            self._digests_held += len(digests)
        else:
            self._digests_kept += len(digests)
        return group

    def _shrink(self, capacity: int) -> None:
        room = max(0.0, capacity - self._digests_held - self._rest_held)
        while self._kept and self._digests_kept + self._rest_kept > room:
            oldest, _ = self._kept.popitem(last=False)
            self._digests_kept -= len(oldest.digests)
            self._rest_kept -= oldest.rest
            for digest in oldest.digests:
                self._group_of.pop(digest, None)


class _Group:
    """Neighbours in a prompt that came together.

    Attributes:
        digests: in order.
        parent: those before them; None at the start of a prompt.
        holders: how many running requests use them.
        rest: room that what is behind them takes, if a context ends here.
    """

    __slots__ = ("digests", "holders", "parent", "rest")

    def __init__(self, digests: list[int], parent: _Group | None, holders: int) -> None:
        self.digests = digests
        self.parent = parent
        self.holders = holders
        self.rest = 0.0


def _upwards(group: _Group | None) -> Iterator[_Group]:
    """A group and those before it, the last one first: so what leaves first are ends of prompts."""
    while group is not None:
        yield group
        group = group.parent
