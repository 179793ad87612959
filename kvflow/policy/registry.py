"""Policies by name: ours, and what other packages offer as entry points."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Protocol

from kvflow.errors import ConfigError
from kvflow.policy.cost import BeladyCostPolicy, BeladyPolicy, CostPolicy
from kvflow.policy.costs import ServingCosts
from kvflow.policy.recency import LFUPolicy, LRUPolicy, SLRUPolicy, TLRUPolicy
from kvflow.policy.saga import SagaPolicy
from kvflow.policy.standing import Leaf, Rank
from kvflow.policy.steps import StepsPolicy
from kvflow.policy.ttl import TTLPolicy

ENTRY_POINTS = "kvflow.policies"


class EvictionPolicy(Protocol):
    """An eviction order.

    Attributes:
        name: how it is asked for.

    A policy that looks at :attr:`Leaf.age` says so with ``uses_age = True``; one that looks at no claims can save
    their addition with ``uses_claims = False``, and one that ranks all leaves without claims alike can save their
    ranking with ``unclaimed_alike = True``. One that, of two nodes of a path that stand alike and can be had again for
    the same price, never ranks the upper one higher can save the ranking of whole paths with ``path_order = True``.
    """

    name: str

    def rank(self, leaf: Leaf) -> Rank:
        """Rank a leaf, lowest first out. Called for every evictable leaf, so keep it O(1) and free of side effects."""
        ...


PolicyFactory = Callable[[ServingCosts], EvictionPolicy]

POLICIES: dict[str, PolicyFactory] = {
    "lru": lambda costs: LRUPolicy(),
    "lfu": lambda costs: LFUPolicy(),
    "slru": lambda costs: SLRUPolicy(),
    "tlru": lambda costs: TLRUPolicy(),
    "steps": lambda costs: StepsPolicy(),
    "ttl": lambda costs: TTLPolicy(),
    "saga": lambda costs: SagaPolicy(),
    "cost": CostPolicy,
    "belady": lambda costs: BeladyPolicy(),
    "belady-cost": BeladyCostPolicy,
}
ORACLES = frozenset({"belady", "belady-cost"})
"""Policies that make sense only with the future in hand."""


def policy_names() -> list[str]:
    """Names that :func:`make_policy` knows: ours, then those of other packages."""
    found = {point.name for point in entry_points(group=ENTRY_POINTS)}
    return [*POLICIES, *sorted(found - POLICIES.keys())]


def make_policy(name: str, costs: ServingCosts | None = None) -> EvictionPolicy:
    """Create the policy of that name.

    Entry points of the group ``kvflow.policies`` are callables that take :class:`ServingCosts` and return a policy;
    our own names win.

    Raises:
        ConfigError: there is no such policy, or its entry point cannot be loaded.
    """
    factory = POLICIES.get(name)
    if factory is None:
        found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
        if name not in found:
            raise ConfigError(f"eviction policy {name!r} does not exist; choose one of {', '.join(policy_names())}")
        try:
            factory = found[name].load()
            return factory(costs or ServingCosts())
        except Exception as error:
            raise ConfigError(f"eviction policy {name!r} ({found[name].value}) cannot be loaded: {error}") from error
    return factory(costs or ServingCosts())
