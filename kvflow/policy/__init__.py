"""In which order cached context leaves, on the device and on the host tier alike.

A policy maps what is known of an evictable radix node (:class:`Leaf`) to a rank; the lowest rank leaves first and the
engine's own order (recency) breaks ties. Pure functions of their arguments: the engine and the simulator run the same
objects, and every tensor-parallel rank must come to the same answer.
"""

from kvflow.policy.admission import ProgramAdmission
from kvflow.policy.cost import BeladyCostPolicy, BeladyPolicy, CostPolicy
from kvflow.policy.costs import ServingCosts
from kvflow.policy.prefetch import PrefetchPace
from kvflow.policy.programs import ProgramView
from kvflow.policy.recency import LFUPolicy, LRUPolicy, SLRUPolicy, TLRUPolicy
from kvflow.policy.registry import ORACLES, POLICIES, EvictionPolicy, make_policy, policy_names
from kvflow.policy.saga import SagaPolicy
from kvflow.policy.standing import UNKNOWN, EvictionClass, Leaf, Rank, Standing
from kvflow.policy.steps import StepsPolicy
from kvflow.policy.throughput import AdmissionMemory, Step
from kvflow.policy.ttl import TTLPolicy

__all__ = [
    "ORACLES",
    "POLICIES",
    "UNKNOWN",
    "AdmissionMemory",
    "BeladyCostPolicy",
    "BeladyPolicy",
    "CostPolicy",
    "EvictionClass",
    "EvictionPolicy",
    "LFUPolicy",
    "LRUPolicy",
    "Leaf",
    "PrefetchPace",
    "ProgramAdmission",
    "ProgramView",
    "Rank",
    "SLRUPolicy",
    "SagaPolicy",
    "ServingCosts",
    "Standing",
    "Step",
    "StepsPolicy",
    "TLRUPolicy",
    "TTLPolicy",
    "make_policy",
    "policy_names",
]
