"""A request's wish to have its context loaded in the background while it waits in the queue."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_LOADS = 4
"""What has been loaded so often, or in so many parts, and is still not all there, the request loads for itself."""


@dataclass(slots=True)
class Wish:
    """What came of it so far.

    Attributes:
        loads: that have been chosen for it.
        refused_tokens: what was free or could leave when there was no room; None if there has not been a refusal since
            the last load.
    """

    loads: int = 0
    refused_tokens: int | None = None

    def open(self, tokens: int) -> bool:
        """Whether it may be granted yet: more is free or could leave now than when it was refused.

        Args:
            tokens: what is free or could leave.
        """
        return self.loads < _MOST_LOADS and (self.refused_tokens is None or tokens > self.refused_tokens)

    def granted(self) -> None:
        """A load has been chosen."""
        self.loads += 1
        self.refused_tokens = None
