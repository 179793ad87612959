"""What a policy may know of a radix node."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

Rank = tuple[float, float]
"""(class, value within the class); the lowest leaves first."""


class EvictionClass(IntEnum):
    """Order classes, first to leave first."""

    RETIRED = 0
    """Used only by workflows that have ended."""
    SUPERSEDED = 1
    """A state that a newer one of the same agent has replaced."""
    UNCLAIMED = 2
    """Never hinted, or nobody is expected to use it again, or a tail that experience says nobody will extend."""
    TAIL = 3
    """The dynamic part of a prompt whose workflow lives and will run the agent again."""
    FIXED = 4
    """The fixed part of a prompt some live workflow will run."""
    PINNED = 5
    """Softly pinned: its agent waits for a tool."""


@dataclass(slots=True, kw_only=True)
class Standing:
    """What the claims on one radix node add up to. Not to be changed; not frozen because that takes twice as long.

    Attributes:
        fixed_steps: least steps-to-execution among the claims that hold the node as fixed prompt, which is what most
            prompts of an agent have in common; None without any.
        tail_steps: the same for claims that hold it as dynamic tail worth keeping, or share it with a few others.
        pinned: at least one live claim on the node is softly pinned.
        retired: the node has been claimed, and every workflow that did so has ended.
        superseded: every state it was part of has been replaced by a newer one.
        idle_s: seconds since then, since the last of its workflows ended, or since a prompt used it: the last of them;
            0 while a use is expected.
        rate_hz: expected uses per second, the sum over claims of probability / time to next use.
        next_s: least expected time to a next use in seconds; None when none is expected.
        probability: that it is used again at all, the largest over its claims.
        context_tokens: length of the longest context it is part of.
    """

    fixed_steps: float | None = None
    tail_steps: float | None = None
    pinned: bool = False
    retired: bool = False
    superseded: bool = False
    idle_s: float = 0.0
    rate_hz: float = 0.0
    next_s: float | None = None
    probability: float = 0.0
    context_tokens: int = 0

    @property
    def cls(self) -> EvictionClass:
        """Order class."""
        if self.pinned:
            return EvictionClass.PINNED
        if self.fixed_steps is not None:
            return EvictionClass.FIXED
        if self.tail_steps is not None:
            return EvictionClass.TAIL
        if self.retired:
            return EvictionClass.RETIRED
        return EvictionClass.SUPERSEDED if self.superseded else EvictionClass.UNCLAIMED


UNKNOWN = Standing()
"""A node without claims."""


@dataclass(slots=True, kw_only=True)
class Leaf:
    """A radix node that could leave now.

    Attributes:
        standing: what its claims add up to.
        tokens: its length.
        end_tokens: position of its last token + 1; known for nodes with claims only.
        hits: how often it was found in the cache.
        age: its place among the leaves by recency, 1 for the one unused longest, 0 for the latest.
        backed_up: losing it here costs a load from the next tier, not a computation.
    """

    standing: Standing
    tokens: int
    end_tokens: int = 0
    hits: int = 0
    age: float = 0.0
    backed_up: bool = False
