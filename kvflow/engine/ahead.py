"""What is needed next: contexts whose use is predicted and near, for whoever loads or fetches ahead."""

from __future__ import annotations

import heapq

from kvflow.engine.claim import Claim
from kvflow.engine.coordinator import Coordinator
from kvflow.engine.ports import Node
from kvflow.engine.searches import MOST_FOUND, Search

LIKELY = 0.3
"""Of the branches a workflow may take, those at least so likely are loaded: three at most."""
_MANY = 64
_PAUSE_S = 2.5e-4
"""Pause between two searches per context beyond these, a hundred times what each costs."""
_LONGEST_PAUSE_S = 0.25
"""Half of the time before its use for which a context is looked for at least."""


def target(claim: Claim) -> Node | None:
    """Where the context ends that the claim will use: its own, or the fixed prompt others of its role have left."""
    return claim.tip if claim.tip is not None and claim.keeps_tail else claim.fixed_prompt.tip


def nearest(coordinator: Coordinator, *, lost: bool = False) -> Search:
    """Search for claims with a context that will be used and is not on the device, the likeliest and soonest first.

    None of a program that is held. With few claims each look is a search; with more, searches take a hundredth of the
    time.

    Args:
        coordinator: whose claims they are.
        lost: only those whose context is not on the host either.
    """
    claims = coordinator.claims

    def wanted(claim: Claim) -> bool:
        if not claim.expected or claim.likelihood < LIKELY or claim.held_s or claim.waited_for:
            return False
        end = target(claim)
        return end is not None and (not coordinator.cached(end) or (end.evicted and not lost))

    return Search(
        claims.clock,
        claims.expected,
        wanted=wanted,
        choose=lambda found: heapq.nsmallest(MOST_FOUND, found, key=lambda claim: -claim.rate_hz(claims.clock)),
        pause_s=lambda: min(_LONGEST_PAUSE_S, _PAUSE_S * max(0, claims.contexts - _MANY)),
    )
