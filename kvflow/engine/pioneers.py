"""Pioneers: of requests that share a fixed prompt nobody has computed yet, one computes it and the others follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from kvflow.engine.claims import ClaimTable, Role
from kvflow.engine.coordinator import PromptClaim
from kvflow.engine.ports import Node

Key = TypeVar("Key")

_LEAST_SHARED_TOKENS = 256
"""Fixed prompts shorter than this are computed side by side rather than waited for."""


class Pioneers:
    """Keeps requests from computing what another one is computing.

    Only declared fixed prompts count: where one ends that is learned is known only once it has been computed twice.

    Args:
        claims: what is known of workflows and their contexts.
        cached: whether a node is in the cache at all.
    """

    def __init__(self, claims: ClaimTable, cached: Callable[[Node], bool]) -> None:
        self._claims = claims
        self._cached = cached

    def behind(
        self, waiting: Sequence[Key], claims: Mapping[Key, PromptClaim], running: Iterable[PromptClaim]
    ) -> list[Key]:
        """Leave out who shares a fixed prompt that is not cached, but that a request before it computes.

        Args:
            waiting: requests in their order.
            claims: whose prompts they carry, those that say so.
            running: the claims of requests that run.

        Cost: O(waiting + running).
        """
        pioneers = {self._new_prompt(claim) for claim in running if not self._has_computed(claim)}
        allowed = []
        for key in waiting:
            role = self._new_prompt(claims[key]) if key in claims else None
            if role is None or role not in pioneers:
                allowed.append(key)
                pioneers.add(role)
        return allowed

    def _new_prompt(self, claim: PromptClaim) -> Role | None:
        """The role whose fixed prompt a request brings, if nothing of that is in the cache."""
        if (claim.fixed_tokens or 0) < _LEAST_SHARED_TOKENS:
            return None
        role = self._claims.role(claim.workflow_type, claim.agent)
        known = role.tip is not None and self._cached(role.tip) and (role.tip.backuped or not role.tip.evicted)
        return None if known else role

    def _has_computed(self, claim: PromptClaim) -> bool:
        """Whether the prompt, or the first part of it, has been computed."""
        held = (self._claims.of(claim.workflow_id) or {}).get(claim.agent)
        return held is None or held.placed
