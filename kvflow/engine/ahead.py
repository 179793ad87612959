"""What is needed next: contexts whose use is predicted and near, for whoever loads or fetches ahead."""

from __future__ import annotations

import heapq

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


def nearest(coordinator: Coordinator, *, lost: bool = False) -> list[Claim]:
    """Claims with a context that will be used and is not on the device, the likeliest and soonest first.

    None of a program that is held. Cost: O(claims).

    Args:
        coordinator: whose claims they are.
        lost: only those whose context is not on the host either.
    """
    clock = coordinator.claims.clock
    near = [
        claim
        for claim in coordinator.claims.expected()
        if claim.likelihood >= LIKELY
        and not claim.held_s
        and (end := target(claim)) is not None
        and (not coordinator.cached(end) or (end.evicted and not lost))
    ]
    return heapq.nsmallest(_LOOKED_AT, near, key=lambda claim: -claim.rate_hz(clock))


def search_pause_s(coordinator: Coordinator) -> float:
    """How long not to look again after nothing was found that is needed soon."""
    return min(_LONGEST_PAUSE_S, _PAUSE_S * max(0, coordinator.claims.contexts - _MANY))
