"""Loads that a prefill batch may rather wait for than its requests in the queue."""

from __future__ import annotations

from kvflow.policy import ServingCosts


class BatchLoads:
    """What the batch that is being formed is to load while it runs.

    A request that is left in the queue until its context has come gets a batch of its own later, and the others decode
    a step more without it. If all that a batch waits for takes less than such a step, that costs more than it saves.

    Args:
        costs: seconds of a load and of a decode step.
    """

    def __init__(self, costs: ServingCosts) -> None:
        self._costs = costs
        self._tokens = 0

    def join(self, tokens: int, *, behind_tokens: int = 0) -> bool:
        """Count a request's load to the batch, if the batch may wait for it; False if the request is to wait instead.

        Args:
            tokens: what the request loads.
            behind_tokens: what is under way on the link, and has to come before.
        """
        if self._costs.load_steps(behind_tokens + self._tokens + tokens) >= 1:
            return False
        self._tokens += tokens
        return True

    def formed(self) -> None:
        """The batch has been formed: the next one has nothing to load yet."""
        self._tokens = 0
