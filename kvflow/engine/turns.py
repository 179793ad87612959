"""Turns: which of the requests that may run goes first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from math import frexp
from typing import Protocol, TypeVar

from kvflow.engine.claim import Claim
from kvflow.engine.claims import ClaimTable
from kvflow.engine.coordinator import PromptClaim
from kvflow.engine.lost import cached_part
from kvflow.engine.ports import Node
from kvflow.engine.roles import FixedPrompt
from kvflow.policy import ProgramAdmission

Key = TypeVar("Key", bound=Hashable)
_Turn = tuple[bool, int, bool]

_LONGEST_WAIT = 8.0
"""Mean waits after which a request is no longer overtaken."""
_LEAST_NEED_S = 0.001
_MOST_NODES = 16
"""Looked at to see where what is lost of a context begins, or what the device lacks: long sessions have hundreds."""
_MOST_ORDERED = 256
"""Beyond so many, requests keep their order: SGLang's limit for such work is 128."""


class Asked(Protocol):
    """What a request asks for.

    Attributes:
        claim: whose prompt it carries.
        tokens: length of that prompt, and of what it had generated before it lost its memory.
        fixed_prompt: what it begins with; None if that cannot be told from others of its role.
        arrived_s: when it came, on the control plane's clock.
        interrupted: it has lost its memory in the middle of its answer.
    """

    claim: PromptClaim
    tokens: int
    fixed_prompt: FixedPrompt | None
    arrived_s: float
    interrupted: bool


class Turns:
    """Lets requests go first that need least of the server's time until they generate.

    That is shortest processing time first, which gives the least mean wait (Smith, 1956), with what cached contexts
    save counted. So it also uses those on the device while they are there, as SGLang's longest prefix match does.
    Needs are told apart by factors of two. Of alike ones those come first whose context is pinned by command, and those
    with the same fixed prompt follow the first of them, which warms it; else they keep their order. Nobody is overtaken
    any more who has waited for eight mean waits since its program's turn came, nor who is to go on with an answer.
    Requests without a claim keep their places.

    Args:
        claims: what is known of workflows and their contexts.
        admission: knows what computing and loading cost.
        cached: whether a node is in the cache at all.
    """

    def __init__(self, claims: ClaimTable, admission: ProgramAdmission, cached: Callable[[Node], bool]) -> None:
        self._claims = claims
        self._admission = admission
        self._cached = cached

    def order(self, waiting: Sequence[Key], asked: Mapping[Hashable, Asked]) -> list[Key]:
        """Put requests in the order of their turns.

        Args:
            waiting: requests in the order of the queue.
            asked: what is known of them; nothing is of those without a claim.

        Cost: O(waiting log waiting).
        """
        known = {key: self._turn(asked[key]) for key in waiting[:_MOST_ORDERED] if key in asked}
        groups: dict[tuple[_Turn, Hashable], list[Key]] = {}
        for key, turn in known.items():
            prompt = self._prompt(asked[key])
            sibling = prompt if prompt is not None and prompt.tokens else key
            groups.setdefault((turn, sibling if turn[0] else None), []).append(key)
        turns = chain.from_iterable(groups[group] for group in sorted(groups, key=lambda group: group[0]))
        ordered = [next(turns) if key in asked else key for key in waiting[:_MOST_ORDERED]]
        return [*ordered, *waiting[_MOST_ORDERED:]]

    def _turn(self, asked: Asked) -> _Turn:
        if asked.interrupted or waited_s(self._claims, asked) > _LONGEST_WAIT * self._claims.clock.queue_s:
            return False, 0, False
        found_tokens, host_tokens = self._context(asked)
        need_s = self._admission.need_s(asked.tokens, found_tokens, host_tokens)
        return True, frexp(max(_LEAST_NEED_S, need_s))[1], not self._pinned(asked)

    def _held(self, asked: Asked) -> Claim | None:
        return self._claims.claim_of(asked.claim.workflow_id, asked.claim.agent)

    def _pinned(self, asked: Asked) -> bool:
        held = self._held(asked)
        owners = held.tip.owners if held is not None and held.tip is not None else None
        return owners is not None and owners.pinned(self._claims.clock.now_s, on_device=True) is not None

    def _prompt(self, asked: Asked) -> FixedPrompt | None:
        held = self._held(asked)
        return asked.fixed_prompt or (held.fixed_prompt if held is not None else None)

    def _context(self, asked: Asked) -> tuple[int, int]:
        """How much of a prompt is cached, as far as claims tell, and how much of that only on the host."""
        held, prompt = self._held(asked), self._prompt(asked)
        parts = [(held.tip, held.context_tokens)] if held is not None else []
        parts += [(prompt.tip, prompt.tokens)] if prompt is not None else []
        for end, tokens in parts:
            tip, lost_tokens = cached_part(end, self._cached, _MOST_NODES)
            found_tokens = max(0, tokens - lost_tokens)
            if tip is not None and found_tokens:
                return found_tokens, _lacking_tokens(tip, found_tokens)
        return 0, 0


def waited_s(claims: ClaimTable, asked: Asked) -> float:
    """Seconds for which a request has waited since its program's turn came."""
    held = claims.claim_of(asked.claim.workflow_id, asked.claim.agent)
    return claims.clock.now_s - max(asked.arrived_s, held.let_in_s if held is not None else 0.0)


def _lacking_tokens(tip: Node, context_tokens: int) -> int:
    """How much of the end of a context the device lacks; all of it if that is many nodes. Cost: O(1)."""
    node, tokens = tip, 0
    for _ in range(_MOST_NODES):
        if node is None or not node.evicted:
            return tokens
        tokens += len(node.key)
        node = node.parent
    return context_tokens
