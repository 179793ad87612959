"""Branches: conversations that one agent of a workflow carries on side by side, each with a context of its own.

A prompt that goes on from none of them begins another. Most agents have one conversation at a time, and what the one
before has left is of no use. Others are called several times at once, or by several parts of the program in turn. That
is seen in two ways: requests of the agent are under way at the same time, or a prompt goes on from a context that was
taken for replaced. From then on so many contexts are kept as there were conversations at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvflow.engine.ports import Node

_MOST = 16
"""Conversations of one agent that are told apart."""


class Mark(NamedTuple):
    """By what a prompt is recognised in those that go on from it: its last full unit, and the digest of that."""

    unit: int
    digest: int

    def begins(self, digests: Sequence[int]) -> bool:
        """Whether a prompt begins with the marked one."""
        return self.unit < len(digests) and digests[self.unit] == self.digest


def mark_of(digests: Sequence[int]) -> Mark | None:
    """The mark of a prompt; None if it is too short for one."""
    return Mark(len(digests) - 1, digests[-1]) if digests else None


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A conversation, as its latest prompt has left it.

    Attributes:
        tip: deepest node of that prompt.
        mark: of that prompt; None if it has none.
        pending: whether its dynamic tail has not proved useful yet.
    """

    tip: Node
    mark: Mark | None = None
    pending: bool = False

    def likeness(self, current: Container[int], digests: Sequence[int]) -> float:
        """How much speaks for a prompt being its next; negative if nothing does.

        The answer may be told otherwise in it: templates leave out what a model has thought.
        """
        if id(self.tip) in current:
            return math.inf
        return self.mark.unit if self.mark is not None and self.mark.begins(digests) else -1


@dataclass(slots=True, eq=False)
class Branches:
    """The conversations of one agent but the one that its latest prompt belongs to.

    Attributes:
        most: so many conversations at once are known of, with that of the latest prompt.
        others: the one heard of longest ago first.
    """

    most: int = 1
    others: list[Branch] = field(default_factory=list)
    _replaced: deque[Mark] = field(default_factory=lambda: deque(maxlen=_MOST))

    def asks(self, digests: Sequence[int], requests: int) -> None:
        """Learn from a prompt how many there are.

        Args:
            digests: of its full units.
            requests: of the agent that are under way, with its own.
        """
        resumed = [mark for mark in self._replaced if mark.begins(digests)]
        for mark in resumed:
            self._replaced.remove(mark)
        self.most = min(_MOST, max(self.most + bool(resumed), requests))

    def enter(
        self, latest: Branch | None, current: Container[int], digests: Sequence[int]
    ) -> tuple[Branch | None, list[Branch]]:
        """Enter a prompt.

        Args:
            latest: where the prompt before it has ended.
            current: identities of the prompt's nodes.
            digests: of its full units.

        Returns:
            What it goes on from, if that is known, and what it has replaced.

        Cost: O(branches).
        """
        known = self.others if latest is None else [*self.others, latest]
        own = max(known, key=lambda branch: branch.likeness(current, digests), default=None)
        if own is not None and own.likeness(current, digests) < 0:
            own = None
        others = [branch for branch in known if branch is not own]
        count = max(0, len(others) - self.most + 1)
        replaced, self.others = others[:count], others[count:]
        self._replaced.extend(branch.mark for branch in replaced if branch.mark is not None)
        return own, replaced
