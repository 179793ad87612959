"""When a waiting request may try again to have its context loaded in the background."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_LOADS = 4
"""What has been loaded so often, or in so many parts, and is still not all there, the request loads for itself."""


@dataclass(slots=True)
class LoadRetry:
    """What came of a request's tries so far.

    Attributes:
        loads: that have been chosen for it.
        refused_tokens: what was free or could leave the device when there was no room; None if there has not been a
            refusal since the last load.
    """

    loads: int = 0
    refused_tokens: int | None = None

    def due(self, available_tokens: int) -> bool:
        """Whether to try: more is free or could leave now than when there was no room.

        Args:
            available_tokens: what is free on the device or could leave.
        """
        return self.loads < _MOST_LOADS and (self.refused_tokens is None or available_tokens > self.refused_tokens)

    def chosen(self) -> None:
        """A load has been chosen."""
        self.loads += 1
        self.refused_tokens = None
