"""Time on the scheduler, and what moves with it."""

from __future__ import annotations

from dataclasses import dataclass

SOON_S = 0.02
"""Times to next use are told apart down to this; below, what is overdue for longest comes first."""
_QUEUE_WEIGHT = 0.1


@dataclass(slots=True, eq=False)
class Clock:
    """Time as the ordered messages tell it, the same on every rank.

    Attributes:
        version: grows with everything that can change a rank, so that whoever caches one knows when it is stale.
        now_s: clock of the control plane.
        queue_s: mean time from a request's arrival until the first chunk of its prompt has been computed.
    """

    version: int = 0
    now_s: float = 0.0
    queue_s: float = 0.0

    def waited(self, seconds: float) -> None:
        """Learn from one request how long requests wait."""
        self.queue_s += _QUEUE_WEIGHT * (max(0.0, seconds) - self.queue_s)

    def until(self, due_s: float) -> float:
        """Seconds until a time, as a positive number that goes on falling once it has passed."""
        left_s = due_s - self.now_s
        return left_s + SOON_S if left_s >= 0 else SOON_S * SOON_S / (SOON_S - left_s)
