"""What programs hold: the contexts they will use again, and what their requests bring."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kvflow.engine.claim import Claim
from kvflow.engine.claims import ClaimTable
from kvflow.engine.conversations import Tail, live_tokens, told_apart
from kvflow.engine.coordinator import PromptClaim
from kvflow.engine.ports import Node
from kvflow.engine.roles import FixedPrompt
from kvflow.engine.typical import TypicalWork
from kvflow.policy import ProgramView

_TO_BE_USED = 0.5
"""Likelihood from which on a context's fixed prompt takes room: a program of a type of many agents uses few of them."""

_MOST_IDLE_S = 5.0
"""Of a pause between two decisions counts for a program that asks for nothing."""


@dataclass(slots=True)
class Request:
    """A request of a program.

    Attributes:
        tokens: length of its prompt.
        fixed_prompt: the fixed part of it; None if that cannot be told yet.
        arrived_s: when it came.
        common_tokens: what it has in common with requests of its agent that came with it: what they go on from.
        running: it has been given its memory.
    """

    program: Program
    claim: PromptClaim
    tokens: int
    fixed_prompt: FixedPrompt | None
    arrived_s: float
    common_tokens: int = 0
    running: bool = False


@dataclass(slots=True, eq=False)
class Program:
    """A workflow with its sub-workflows, and their requests.

    Attributes:
        view: what admission may know.
        began_s: when its first request came.
        booked_s: up to when its time has been entered.
        workflows: in the order in which they came.
        contexts: how many it has.
        looked_s: when the view was last brought up to date; minus infinity if it is to be again in any case.
        updates: of live workflows that had been applied by then.
        answered_s: when a request of it was last answered; None before that.
        held_since_s: how long it had been held before, when it began to be held again; None if it is not held.
        tails: what its contexts take, and ``told_apart``, which contexts these are.
    """

    view: ProgramView
    began_s: float
    booked_s: float
    workflows: dict[str, None] = field(default_factory=dict)
    requests: dict[Hashable, Request] = field(default_factory=dict)
    contexts: int = 0
    looked_s: float = -math.inf
    updates: int = 0
    answered_s: float | None = None
    held_since_s: float | None = None
    tails: list[Tail] = field(default_factory=list)
    told_apart: list[tuple[Hashable, Node | None, int]] = field(default_factory=list)

    def tails_of(self, claims: Mapping[Hashable, Claim]) -> list[Tail]:
        """Tell contexts apart that the program will use, unless they are as they were."""
        contexts = [(key, claim.tip, claim.tail_tokens) for key, claim in claims.items()]
        if contexts != self.told_apart:
            self.tails, self.told_apart = told_apart(claims), contexts
        return self.tails

    def book(self, now_s: float) -> None:
        """Enter the time since it was last entered; to be called before anything that this depends on changes.

        While it asks for nothing, its place serves it for a while, and then only keeps what nobody else may need.
        """
        seconds, self.booked_s = now_s - self.booked_s, now_s
        if self.view.waiting and not self.view.admitted:
            self.view.held_s += seconds
        elif self.requests:
            self.view.served_s += seconds
        elif self.view.admitted:
            self.view.served_s += min(seconds, _MOST_IDLE_S)

    def asking(self, name: str) -> dict[str, None]:
        """The program by its name, and those of its sub-workflows that have requests, in the order of these."""
        return dict.fromkeys((name, *(request.claim.workflow_id for request in self.requests.values())))

    @property
    def took_s(self) -> float:
        """Seconds from its first request to its last answer, but for those it was held."""
        return (self.began_s if self.answered_s is None else self.answered_s) - self.began_s - self.view.held_s


class Missing(NamedTuple):
    """What the device lacks of a context.

    Attributes:
        context_tokens: length of the context.
        lost_tokens: of these, what is in neither tier.
        host_tokens: of these, what is on the host alone.
    """

    context_tokens: int = 0
    lost_tokens: int = 0
    host_tokens: int = 0


class Holdings:
    """Looks at what programs hold.

    Args:
        claims: what is known of workflows and their contexts.
        typical: what a step is like; requests that wait will generate as much.
        cached: whether a node is in the cache at all.
    """

    def __init__(self, claims: ClaimTable, typical: TypicalWork, cached: Callable[[Node], bool]) -> None:
        self._claims = claims
        self._typical = typical
        self._cached = cached

    def outdated(self, program: Program) -> bool:
        """Whether anything has been heard of a program since it was last looked at. Cost: O(its workflows)."""
        return any(self._claims.updated_since(workflow_id, program.updates) for workflow_id in program.workflows)

    def look(self, program: Program) -> bool:
        """Bring the view of a program up to date; tells whether it is still under way.

        Cost: O(contexts and requests of the program).
        """
        program.looked_s, program.updates = self._claims.clock.now_s, self._claims.updates
        held: dict[Hashable, Claim] = {}
        fixed: dict[Hashable, int] = {}
        due_s: dict[Hashable, float] = {}
        back_s: float | None = None
        program.contexts = 0
        for workflow_id in list(program.workflows):
            claims = self._claims.of(workflow_id)
            if claims is None:
                if all(request.claim.workflow_id != workflow_id for request in program.requests.values()):
                    del program.workflows[workflow_id]
                continue
            program.contexts += len(claims)
            for agent, claim in claims.items():
                if not claim.expected:
                    continue
                left_s = claim.back_s(self._claims.clock)
                back_s = left_s if back_s is None else min(back_s, left_s)
                if claim.fixed_prompt.tokens and claim.likelihood >= _TO_BE_USED:
                    parts = claim.fixed_prompt.parts(self._cached)
                    fixed |= parts
                    due_s |= {part: min(left_s, due_s.get(part, left_s)) for part in parts}
                if claim.keeps_tail:
                    held[workflow_id, agent] = claim
        for request in program.requests.values():
            if request.fixed_prompt is not None:
                brought = request.fixed_prompt.parts(self._cached)
                fixed |= brought
                due_s |= dict.fromkeys(brought, 0.0)
        asked = self._asked(program.requests.values())
        view = program.view
        view.live_tokens = round(live_tokens(program.tails_of(held), held, asked))
        view.fixed_tokens, view.fixed_due_s = fixed, due_s
        view.back_s = back_s
        view.busy = any(request.running for request in program.requests.values())
        view.waiting = any(not request.running for request in program.requests.values())
        return bool(program.workflows)

    def missing(self, claim: PromptClaim) -> Missing:
        """What the device lacks of what an agent goes on from, if it does. Cost: O(nodes that it lacks)."""
        known = (self._claims.of(claim.workflow_id) or {}).get(claim.agent)
        if known is None:
            return Missing()
        node, context_tokens = known.fixed_prompt.tip, known.fixed_prompt.tokens
        if known.tip is not None and known.role.reuses_tails:
            node, context_tokens = known.tip, known.context_tokens
        lost_tokens = host_tokens = 0
        while node is not None and node.parent is not None:
            if not self._cached(node) or (node.evicted and not node.backuped):
                lost_tokens += len(node.key)
            elif node.evicted:
                host_tokens += len(node.key)
            else:
                break
            node = node.parent
        return Missing(context_tokens=context_tokens, lost_tokens=lost_tokens, host_tokens=host_tokens)

    def common_tokens(self, request: Request) -> int:
        """Length of what a request that has just come goes on from, as do others of its agent at the same time."""
        own = (request.claim.workflow_id, request.claim.agent)
        for other in request.program.requests.values():
            if other is not request and (other.claim.workflow_id, other.claim.agent) == own:
                return other.common_tokens
        known = self._claim(request)
        return known.tail_tokens if known is not None and known.context_tokens else 0

    def _asked(self, requests: Iterable[Request]) -> dict[Hashable, float]:
        """Tokens that requests take, without what is fixed, by workflow and agent.

        Several of one agent at a time go on from its last context, which counts once.
        """
        asked: dict[Hashable, float] = {}
        for request in requests:
            key = (request.claim.workflow_id, request.claim.agent)
            own_tokens = request.tokens - self._fixed_tokens(request)
            common_tokens = request.common_tokens if key in asked else 0
            asked[key] = asked.get(key, 0.0) + max(0, own_tokens - common_tokens) + self._typical.generated_tokens
        return asked

    def _claim(self, request: Request) -> Claim | None:
        return (self._claims.of(request.claim.workflow_id) or {}).get(request.claim.agent)

    def known_tokens(self, request: Request) -> int:
        """Length of the part of a prompt that has been computed before, be it cached or not."""
        known = self._claim(request)
        if known is not None and known.context_tokens:
            return known.context_tokens
        return request.fixed_prompt.tokens if request.fixed_prompt is not None else 0

    def _fixed_tokens(self, request: Request) -> int:
        """Length of the part of a prompt that its agent has in common with other programs."""
        known = self._claim(request)
        if known is not None and known.context_tokens:
            return known.context_tokens - known.tail_tokens
        return min(request.fixed_prompt.tokens, request.tokens) if request.fixed_prompt is not None else 0
