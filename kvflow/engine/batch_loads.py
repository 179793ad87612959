"""Loads that a prefill batch may rather wait for than its requests in the queue."""

from __future__ import annotations

from kvflow.policy import ServingCosts


class BatchLoads:
    """What the batch that is being formed is to load while it runs.

    A request that is left in the queue until its context has come gets a batch of its own later, for which everything
    that runs waits; and a batch computes while its loads come, layer by layer. So loads that take less than two of the
    shortest batches cost no more in a batch than in the queue.

    Args:
        costs: seconds of a load and of a batch.
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
        if self._costs.load_s(behind_tokens + self._tokens + tokens) >= 2 * self._costs.prefill_step_s:
            return False
        self._tokens += tokens
        return True

    def formed(self) -> None:
        """The batch has been formed: the next one has nothing to load yet."""
        self._tokens = 0
