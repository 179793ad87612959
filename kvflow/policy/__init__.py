"""In which order cached context leaves, on the device and on the host tier alike.

A policy maps what is known of a radix node's claims (:class:`Standing`) to a rank; the lowest rank leaves first and
the engine's own order (recency) breaks ties. Pure functions of their arguments: the engine and the simulator run the
same objects, and every tensor-parallel rank must come to the same answer.
"""

from kvflow.policy.order import (
    POLICIES,
    EvictionClass,
    EvictionPolicy,
    LRUPolicy,
    Rank,
    Standing,
    StepsPolicy,
    make_policy,
)

__all__ = [
    "POLICIES",
    "EvictionClass",
    "EvictionPolicy",
    "LRUPolicy",
    "Rank",
    "Standing",
    "StepsPolicy",
    "make_policy",
]
