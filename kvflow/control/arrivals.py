"""When the next workflow of a type will start, counted in steps."""

from __future__ import annotations

from dataclasses import dataclass

_WEIGHT = 0.25


@dataclass(slots=True)
class Arrivals:
    """Starts of one workflow type, as a running mean over the steps between them.

    A fixed prompt that no live workflow will run again is still wanted by the next one of its type. KVFlow (arXiv
    2507.07400) knows nothing of workflows to come; this treats the next one as a claim on every agent of its graph, at
    its steps from START plus the steps until it starts.

    Attributes:
        gap_steps: mean number of steps a live workflow takes until another one starts; None before the second start.
    """

    gap_steps: float | None = None
    _steps: float = 0.0
    _started: bool = False

    def step(self, live: int) -> None:
        """One of ``live`` concurrent workflows has started a step."""
        self._steps += 1 / max(1, live)

    def start(self) -> None:
        """A workflow of the type has started."""
        if self._started:
            old = self.gap_steps
            self.gap_steps = self._steps if old is None else old + _WEIGHT * (self._steps - old)
        self._started = True
        self._steps = 0.0
