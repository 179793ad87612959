"""Branches: conversations that one agent of a workflow carries on side by side, each with a context of its own.

A prompt that goes on from none of them begins another. Most agents have one conversation at a time, and what the one
before has left is of no use. Others are called several times at once, or by several parts of the program in turn. That
is seen in three ways: requests of the agent are under way at the same time, a prompt goes on from a context that was
taken for replaced, or from one that is kept beside the latest. As many contexts are kept as the latest prompts have
shown conversations to be at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvflow.engine.ports import Node

_MOST = 16
"""Conversations of one agent that are told apart."""
_LATEST_PROMPTS = 32
"""So many of an agent's prompts say how many there are."""


class Mark(NamedTuple):
    """By what a prompt is recognised in those that go on from it: its last full unit, and the digest of that."""

    unit: int
    digest: int

    def begins(self, digests: Sequence[int]) -> bool:
        """Whether a longer prompt begins with the marked one."""
        return self.unit + 1 < len(digests) and digests[self.unit] == self.digest


def mark_of(digests: Sequence[int], fixed_tokens: int, unit_tokens: int) -> Mark | None:
    """The mark of a prompt; None if its last full unit is not its own, but of its fixed part."""
    own = len(digests) * unit_tokens > fixed_tokens
    return Mark(len(digests) - 1, digests[-1]) if digests and own else None


@dataclass(slots=True, eq=False)
class Branch:
    """A conversation, as its latest prompt has left it.

    Attributes:
        tip: deepest node of that prompt.
        mark: of that prompt; None if it has none.
        pending: whether its dynamic tail has not proved useful yet.
        tail_tokens: length of that tail.
    """

    tip: Node
    mark: Mark | None = None
    pending: bool = False
    tail_tokens: int = 0

    def likeness(self, path: Mapping[int, int], digests: Sequence[int]) -> tuple[int, int]:
        """How much speaks for a prompt being its next; negative if nothing does.

        The answer may be told otherwise in it: templates leave out what a model has thought.
        """
        end = path.get(id(self.tip))
        if end is not None:
            return 1, end
        return (0, self.mark.unit) if self.mark is not None and self.mark.begins(digests) else (-1, 0)


class Entered(NamedTuple):
    """What a prompt means for the branches of its agent.

    Attributes:
        own: what it goes on from; None if it begins another, as far as known.
        replaced: what it has pushed out.
        resumed: it goes on from one that had been pushed out.
    """

    own: Branch | None = None
    replaced: Sequence[Branch] = ()
    resumed: bool = False


@dataclass(slots=True, eq=False)
class Branches:
    """The conversations of one agent but the one that its latest prompt belongs to.

    Attributes:
        most: so many conversations are kept, with that of the latest prompt.
        others: the one heard of longest ago first.
    """

    most: int = 1
    others: list[Branch] = field(default_factory=list)
    _seen: deque[int] = field(default_factory=lambda: deque(maxlen=_LATEST_PROMPTS))
    _replaced: deque[Mark] = field(default_factory=lambda: deque(maxlen=_MOST))

    def enter(self, latest: Branch | None, path: Mapping[int, int], digests: Sequence[int], requests: int) -> Entered:
        """Enter a prompt, the first time that any of it is in the tree.

        Args:
            latest: where the prompt before it has ended.
            path: its nodes, by identity, and where each ends.
            digests: of its full units.
            requests: of the agent that are under way, with its own.

        Source: a branch as far back among the latest as it was when it was heard of again, its stack distance (Mattson
            et al., IBM Systems Journal 1970), is one that had to be kept. Cost: O(branches).
        """
        known = self.others if latest is None else [*self.others, latest]
        own = max(known, key=lambda branch: branch.likeness(path, digests), default=None)
        if own is not None and own.likeness(path, digests) < (0, 0):
            own = None
        resumed = own is None and any(mark.begins(digests) for mark in self._replaced)
        self._replaced = deque((mark for mark in self._replaced if not mark.begins(digests)), maxlen=_MOST)
        distance = len(known) - known.index(own) if own is not None else 1
        self.seen(max(distance, requests, self.most + 1 if resumed else 1))
        return Entered(own, self._keep([branch for branch in known if branch is not own]), resumed)

    def seen(self, count: int) -> None:
        """A prompt has shown that there are so many conversations at once."""
        self._seen.append(min(_MOST, max(1, count)))
        self.most = max(self._seen)

    def enter_more(self, latest: Branch | None, path: Mapping[int, int], mark: Mark | None) -> Entered:
        """Enter a prompt of which some is in the tree: another part of it, or the answer.

        Args:
            latest: as for :meth:`enter`.
            path: as for :meth:`enter`.
            mark: of the prompt.
        """
        known = self.others if latest is None else [*self.others, latest]
        own = max(known, key=lambda branch: path.get(id(branch.tip), -1), default=None)
        if own is not None and id(own.tip) not in path:  # it was there once, and has left the cache since
            own = next((branch for branch in known if mark is not None and branch.mark == mark), None)
        return Entered(own, self._keep([branch for branch in known if branch is not own]))

    def _keep(self, others: list[Branch]) -> list[Branch]:
        """Keep as many as there are at once; returns those for which there is no place."""
        count = max(0, len(others) - self.most + 1)
        self.others = others[count:]
        self._replaced.extend(branch.mark for branch in others[:count] if branch.mark is not None)
        return others[:count]
