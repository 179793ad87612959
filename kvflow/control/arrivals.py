"""When the next workflow of a type will start, counted in steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

_WEIGHT = 0.25


@dataclass(slots=True)
class Arrivals:
    """Starts of one workflow type, as a running mean over the steps between them.

    A fixed prompt that no live workflow will run again is still wanted by the next one of its type. KVFlow (arXiv
    2507.07400) knows nothing of workflows to come; this treats the next one as a claim on every agent of its graph, at
    its steps from START plus the steps until it starts.

    Attributes:
        gap_steps: mean number of steps a live workflow takes from one start to the next; None before the second start.
        gap_s: mean seconds between starts.
    """

    gap_steps: float | None = None
    gap_s: float = 0.0
    _steps: float = 0.0
    _started_s: float | None = None

    @property
    def left_steps(self) -> float | None:
        """Steps a live workflow is expected to take until the next start; None before the second start.

        One that is overdue may come at any step, and once it has been for a whole gap as late again as it is.
        """
        if self.gap_steps is None:
            return None
        late_steps = self._steps - self.gap_steps
        return late_steps if late_steps > max(1.0, self.gap_steps) else max(0.0, -late_steps)

    def next_s(self, now_s: float) -> float:
        """When the next start is expected: a mean gap after the last one, and as long again as it has been missing."""
        since_s = now_s if self._started_s is None else self._started_s
        due_s = since_s + self.gap_s
        return due_s if due_s > now_s else now_s + max(self.gap_s, now_s - since_s)

    def step(self, live: int) -> bool:
        """One of ``live`` concurrent workflows has started a step; tells whether that changes what is expected."""
        before = self.left_steps
        self._steps += 1 / max(1, live)
        after = self.left_steps
        return before is not None and after is not None and math.ceil(after) != math.ceil(before)

    def start(self, now_s: float) -> None:
        """A workflow of the type has started."""
        if self._started_s is not None:
            old, gap_s = self.gap_steps, now_s - self._started_s
            self.gap_steps = self._steps if old is None else old + _WEIGHT * (self._steps - old)
            self.gap_s = gap_s if old is None else self.gap_s + _WEIGHT * (gap_s - self.gap_s)
        self._started_s = now_s
        self._steps = 0.0
