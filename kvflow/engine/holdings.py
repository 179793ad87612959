"""What programs hold: the contexts they will use again, and what their requests bring."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from kvflow.engine.branches import mark_of
from kvflow.engine.claim import Claim
from kvflow.engine.claims import ClaimTable
from kvflow.engine.conversations import Context, common_units, live_tokens
from kvflow.engine.coordinator import PromptClaim
from kvflow.engine.ports import Node
from kvflow.engine.program import Agent, Program, Request, Talk
from kvflow.engine.roles import FixedPrompt
from kvflow.engine.typical import TypicalWork

_TO_BE_USED = 0.5
"""Likelihood from which on a context's fixed prompt takes room: a program of a type of many agents uses few of them."""

_LATEST = 8
"""So many other agents' contexts are looked at for what a new request goes on from."""


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
        unit_tokens: tokens per digest.
    """

    def __init__(
        self, claims: ClaimTable, typical: TypicalWork, cached: Callable[[Node], bool], unit_tokens: int
    ) -> None:
        self._claims = claims
        self._typical = typical
        self._cached = cached
        self._unit_tokens = unit_tokens

    def outdated(self, program: Program) -> bool:
        """Whether anything has been heard of a program since it was last looked at. Cost: O(its workflows)."""
        return any(self._claims.updated_since(workflow_id, program.updates) for workflow_id in program.workflows)

    def alive(self, program: Program) -> bool:
        """Whether a program is still under way. Cost: O(its workflows)."""
        return bool(program.requests) or any(self._claims.of(name) is not None for name in program.workflows)

    def look(self, program: Program) -> bool:
        """Bring the view of a program up to date; tells whether it is still under way.

        Cost: O(contexts and requests of the program), and units of those that have changed.
        """
        program.looked_s, program.updates = self._claims.clock.now_s, self._claims.updates
        view, requests = program.view, program.requests
        contexts = {key: self._context(request) for key, request in requests.items()}
        likelihood: dict[Hashable, float] = dict.fromkeys(contexts, 1.0)
        brought = [prompt.parts(self._cached) for each in requests.values() if (prompt := self._fixed_prompt(each))]
        asking = {request.agent for request in requests.values()}
        view.fixed_tokens = fixed = {}
        view.fixed_due_s = due_s = {}
        view.back_s = None
        program.contexts = len(requests)
        for agent, claim in self._claims_of(program):
            program.contexts += max(agent not in asking, len(program.talks.get(agent, ())) - 1)
            if not claim.expected or claim.is_elsewhere(self._claims.clock):
                continue
            left_s = claim.back_s(self._claims.clock)
            view.back_s = left_s if view.back_s is None else min(view.back_s, left_s)
            if claim.fixed_prompt.tokens and claim.likelihood >= _TO_BE_USED:
                parts = claim.fixed_prompt.parts(self._cached)
                fixed |= parts
                due_s |= {part: min(left_s, due_s.get(part, left_s)) for part in parts}
            idle = self._idle(program, agent, claim, asks=agent in asking) if claim.keeps_tail else {}
            contexts |= idle
            likelihood |= dict.fromkeys(idle, claim.likelihood)
        for parts in brought:
            fixed |= parts
            due_s |= dict.fromkeys(parts, 0.0)
        tails = program.tails_of(contexts, self._unit_tokens)
        answers_tokens = len(requests) * self._typical.generated_tokens
        view.live_tokens = round(live_tokens(tails, likelihood) + answers_tokens)
        view.busy = any(request.under_way for request in requests.values())
        view.waiting = any(not request.under_way for request in requests.values())
        return bool(program.workflows)

    def _idle(self, program: Program, agent: Agent, claim: Claim, *, asks: bool) -> dict[Hashable, Context]:
        """Contexts of an agent that no request goes on with: what it asks with takes the place of what it had."""
        fixed_tokens = claim.context_tokens - claim.tail_tokens
        talks = program.idle_talks(agent, claim.branches.most if claim.role.reuses_tails else 1)
        contexts: dict[Hashable, Context] = {}
        for number, talk in enumerate(talks if asks else talks[:-1]):
            tokens = len(talk.digests) * self._unit_tokens
            contexts[*agent, number] = Context(tokens, min(tokens, fixed_tokens), talk.digests)
        if not asks:  # else its latest conversation is that of a request
            digests = talks[-1].digests if talks else ()
            contexts[agent] = Context(claim.context_tokens, fixed_tokens, digests)
        return contexts

    def _claims_of(self, program: Program) -> Iterator[tuple[Agent, Claim]]:
        """Claims of a program; its workflows that have ended, and have no request, are forgotten."""
        for workflow_id in list(program.workflows):
            claims = self._claims.of(workflow_id)
            if claims is not None:
                yield from (((workflow_id, name), claim) for name, claim in claims.items())
            elif all(request.claim.workflow_id != workflow_id for request in program.requests.values()):
                program.forget(workflow_id)

    def missing(self, claim: PromptClaim, program: Program, digests: Sequence[int]) -> Missing:
        """What the device lacks of what an agent goes on from, if it does.

        Args:
            claim: whose request it is.
            program: of these.
            digests: of the request; other agents' contexts may begin with the same text.

        Cost: O(nodes that it lacks).
        """
        known = self._claims.claim_of(claim.workflow_id, claim.agent)
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
        if lost_tokens + host_tokens:
            others_tokens = self._on_device(program, (claim.workflow_id, claim.agent), digests)
            found_tokens = max(0, others_tokens - (context_tokens - lost_tokens - host_tokens))
            lost_tokens -= min(lost_tokens, max(0, found_tokens - host_tokens))
            host_tokens -= min(host_tokens, found_tokens)
        return Missing(context_tokens=context_tokens, lost_tokens=lost_tokens, host_tokens=host_tokens)

    def _on_device(self, program: Program, agent: Agent, digests: Sequence[int]) -> int:
        """How much of a prompt the device has as the beginning of other agents' contexts."""
        tokens = 0
        for other, talk in program.talks_of_others(agent, _LATEST):
            claim = self._claims.claim_of(*other)
            tip = claim.tip if claim is not None else None
            if tip is not None and self._cached(tip) and not tip.evicted:
                tokens = max(tokens, self._common_tokens(program, digests, other, talk))
        return tokens

    def _context(self, request: Request) -> Context:
        """What a request asks with."""
        return Context(request.tokens, self._fixed_tokens(request), request.digests)

    def _claim(self, request: Request) -> Claim | None:
        return self._claims.claim_of(request.claim.workflow_id, request.claim.agent)

    def remember(self, request: Request, digests: Sequence[int]) -> None:
        """A request has been answered: what its agent goes on from.

        Args:
            request: which.
            digests: of its prompt and answer.
        """
        claim = self._claim(request)
        mark = mark_of(request.digests, self._fixed_tokens(request), self._unit_tokens)
        request.program.remember(request.agent, digests, mark, claim.branches.most if claim is not None else 1)

    def known_tokens(self, request: Request) -> int:
        """Length of the part of a prompt that has been computed before, be it cached or not."""
        known, program = self._claim(request), request.program
        known_tokens = self._fixed_tokens(request)
        if request.digests and program.talks:
            own = ((request.agent, talk) for talk in program.talks.get(request.agent, ()))
            for agent, talk in chain(own, program.talks_of_others(request.agent, _LATEST)):
                known_tokens = max(known_tokens, self._common_tokens(program, request.digests, agent, talk))
        elif known is not None and known.role.reuses_tails:
            known_tokens = max(known_tokens, known.context_tokens)
        return min(request.tokens, known_tokens)

    def _common_tokens(self, program: Program, digests: Sequence[int], agent: Agent, talk: Talk) -> int:
        """What a prompt has in common with a conversation of an agent."""
        units = common_units(digests, talk.digests)
        if not units or units < len(talk.digests) or talk is not program.talks[agent][-1]:
            return units * self._unit_tokens
        whole = self._claims.claim_of(*agent)
        return max(units * self._unit_tokens, whole.context_tokens if whole is not None else 0)

    def _fixed_prompt(self, request: Request) -> FixedPrompt | None:
        """What a request's prompt begins with: as it says, or as its agent's last one did."""
        known = self._claim(request)
        if request.fixed_prompt is None and known is not None and known.context_tokens:
            return known.fixed_prompt
        return request.fixed_prompt

    def _fixed_tokens(self, request: Request) -> int:
        """Length of the part of a prompt that its agent has in common with other programs."""
        prompt = self._fixed_prompt(request)
        return min(prompt.tokens, request.tokens) if prompt is not None else 0
