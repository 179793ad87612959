"""Pioneers: of requests that share a fixed prompt nobody has computed yet, one computes it and the others follow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from kvflow.engine.claims import ClaimTable
from kvflow.engine.coordinator import PromptClaim
from kvflow.engine.lost import cached_part
from kvflow.engine.ports import Node
from kvflow.engine.roles import FixedPrompt
from kvflow.engine.turns import Asked

Key = TypeVar("Key", bound=Hashable)

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

    def behind(self, waiting: Sequence[Key], asked: Mapping[Hashable, Asked], running: Iterable[Hashable]) -> list[Key]:
        """Leave out who shares a fixed prompt that is not cached, but that a request before it computes.

        Args:
            waiting: requests in their order.
            asked: what is known of them, and of those that run.
            running: requests that run.

        Cost: O(waiting + running).
        """
        prompts = (self._new_prompt(asked[key]) for key in running if not self._has_computed(asked[key].claim))
        pioneers = {prompt for prompt in prompts if prompt is not None}
        allowed = []
        for key in waiting:
            prompt = self._new_prompt(asked[key]) if key in asked else None
            if prompt in pioneers:
                continue
            allowed.append(key)
            if prompt is not None and self._cached_tokens(prompt, asked[key].claim.fixed_tokens or 0) == 0:
                pioneers.add(prompt)
        return allowed

    def _new_prompt(self, asked: Asked) -> FixedPrompt | None:
        """The fixed prompt that a request brings, if it is not all in the cache."""
        declared_tokens = asked.claim.fixed_tokens or 0
        if declared_tokens < _LEAST_SHARED_TOKENS:
            return None
        role = self._claims.role(asked.claim.workflow_type, asked.claim.agent)
        prompt = asked.fixed_prompt or role.prompt
        cached_tokens = self._cached_tokens(prompt, declared_tokens)
        return None if cached_tokens and _is_all(cached_tokens, min(declared_tokens, prompt.tokens)) else prompt

    def _cached_tokens(self, prompt: FixedPrompt, declared_tokens: int) -> int:
        """How much of a fixed prompt is in the cache; none if much of what is declared of it has been lost."""
        tip, lost_tokens = cached_part(prompt.tip, self._cached)
        if tip is None or tip.owners is None or (tip.evicted and not tip.backuped):
            return 0
        end_tokens = tip.owners.end_tokens
        return 0 if min(lost_tokens, declared_tokens - end_tokens) >= _LEAST_SHARED_TOKENS else end_tokens

    def _has_computed(self, claim: PromptClaim) -> bool:
        """Whether the fixed part of the prompt has been computed."""
        held = self._claims.claim_of(claim.workflow_id, claim.agent)
        return held is None or (held.placed > 0 and _is_all(held.context_tokens, claim.fixed_tokens or 0))


def _is_all(tokens: int, fixed_tokens: int) -> bool:
    """Whether so much is all of a fixed prompt, but for what may be computed side by side: parts of pages, say."""
    return tokens + _LEAST_SHARED_TOKENS > fixed_tokens
