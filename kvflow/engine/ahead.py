"""What is needed next: contexts whose use is predicted and near, for whoever loads or fetches ahead."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from kvflow.engine.claim import Claim
from kvflow.engine.coordinator import Coordinator
from kvflow.engine.ports import Node

LIKELY = 0.3
"""Of the branches a workflow may take, those at least so likely are loaded: three at most."""
_LOOKED_AT = 64
"""Contexts looked at for one decision, the nearest uses first."""
_MANY = 64
_PAUSE_S = 2.5e-4
"""Pause between two searches per context beyond these, a hundred times what each costs."""
_LONGEST_PAUSE_S = 0.25
"""Half of the time before its use for which a context is looked for at least."""


def target(claim: Claim) -> Node | None:
    """Where the context ends that the claim will use: its own, or the fixed prompt others of its role have left."""
    return claim.tip if claim.tip is not None and claim.keeps_tail else claim.fixed_prompt.tip


class Search:
    """Looks for what is needed next.

    What one search has found is served until a pause has passed that makes searches take a hundredth of the time; then
    the next one sees what has come meanwhile. Depends on the replicated clock and on the claims alone.

    Args:
        coordinator: whose claims they are.
        lost: only those whose context is not on the host either.

    Attributes:
        next_s: when there will be another search, on the control plane's clock.
    """

    def __init__(self, coordinator: Coordinator, *, lost: bool = False) -> None:
        self.next_s = 0.0
        self._coordinator = coordinator
        self._lost = lost
        self._found: list[Claim] = []
        self._there_is_more = False

    def nearest(self) -> Sequence[Claim]:
        """Claims with a context that will be used and is not on the device, the likeliest and soonest first.

        None of a program that is held. They were in this order when they were found, and are all still such claims.

        Cost: O(1); O(claims) for a search, if its time has come or all that was found has been dealt with.
        """
        claims = self._coordinator.claims
        self._found = [claim for claim in self._found if claim.expected and self._counts(claim)]
        if claims.clock.now_s >= self.next_s or (self._there_is_more and not self._found):
            near = [claim for claim in claims.expected() if self._counts(claim)]
            self._found = heapq.nsmallest(_LOOKED_AT, near, key=lambda claim: -claim.rate_hz(claims.clock))
            self._there_is_more = len(near) > len(self._found)
            self.next_s = claims.clock.now_s + self._pause_s()
        return self._found

    def _counts(self, claim: Claim) -> bool:
        if claim.likelihood < LIKELY or claim.held_s or claim.waited_for or (end := target(claim)) is None:
            return False
        return not self._coordinator.cached(end) or (end.evicted and not self._lost)

    def _pause_s(self) -> float:
        return min(_LONGEST_PAUSE_S, _PAUSE_S * max(0, self._coordinator.claims.contexts - _MANY))
