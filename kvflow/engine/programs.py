"""Programs and their requests, as far as the scheduler knows them, and which may run."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

from kvflow.engine.claims import ClaimTable
from kvflow.engine.coordinator import PromptClaim
from kvflow.engine.digests import MIN_UNIT_TOKENS, digest_of_head
from kvflow.engine.holdings import Holdings
from kvflow.engine.holds import Holds
from kvflow.engine.journal import Journal
from kvflow.engine.large import LargeRequests
from kvflow.engine.margin import Margin
from kvflow.engine.pioneers import Pioneers
from kvflow.engine.ports import Node
from kvflow.engine.program import Program, Request
from kvflow.engine.roles import FixedPrompt
from kvflow.engine.turns import Turns
from kvflow.engine.typical import TypicalWork
from kvflow.policy import AdmissionMemory, ProgramAdmission, ProgramView

Key = TypeVar("Key", bound=Hashable)

_RECONSIDER_S = 0.25
"""How often to decide anew, and to look at programs, while nothing is heard of them: what they will use fades."""
_EASE_S = 1.0
"""How often to decide while all fits with room to spare for what has come since."""
_MANY = 64
_PAUSE_S = 4e-4
"""Pause between two decisions per context of a program at stake beyond these, fifty times what each costs, unless
nothing runs."""
_NEWS_PAUSE_S = 8e-5
"""The same if a program waits that has had no decision yet."""
_LONGEST_PAUSE_S = 1.0
_LOOK_S = 5.0
"""How often to look at programs that have no request and no place."""


class Programs:
    """Follows programs from their first request to their end, and says whose requests may run.

    Lives beside the coordinator on the scheduler thread; order of calls is all it depends on, so every rank decides
    alike. Requests without a claim are never held.

    Args:
        claims: what is known of workflows and their contexts.
        admission: decides.
        journal: is told who is held back, and who is let in after that.
        cached: whether a node is in the cache at all.
        unit_tokens: tokens per digest of a prompt.
    """

    def __init__(
        self,
        claims: ClaimTable,
        admission: ProgramAdmission,
        journal: Journal | None = None,
        *,
        cached: Callable[[Node], bool] = lambda node: True,
        unit_tokens: int = MIN_UNIT_TOKENS,
    ) -> None:
        self._pioneers = Pioneers(claims, cached)
        self._turns = Turns(claims, admission, cached)
        self._claims = claims
        self._admission = admission
        self._programs: dict[str, Program] = {}
        self._requests: dict[Hashable, Request] = {}
        self._margin = Margin()
        self._typical = TypicalWork()
        self._unit_tokens = unit_tokens
        self._holdings = Holdings(claims, self._typical, cached, unit_tokens)
        self._holds = Holds(claims, journal)
        self._large = LargeRequests(claims, self._typical)
        self._all_fit = True
        self._spare_tokens = 0
        self._running = 0
        self._changed = True
        self._undecided = False
        self._contexts = 0
        self._settled_s = 0.0
        self._within_device = True

    @property
    def under_way(self) -> int:
        """Number of programs that have not ended. Cost: O(programs)."""
        return sum(self._holdings.alive(program) for program in self._programs.values())

    @property
    def known(self) -> int:
        """Number of programs that are not known to have ended."""
        return len(self._programs)

    @property
    def held(self) -> int:
        """Number of requests that wait for their program's turn."""
        return sum(not one.may_run for one in self._requests.values())

    @property
    def at_rest(self) -> bool:
        """Whether no request waits, and nothing is put off because one did."""
        return len(self._requests) == self._running and not self._holds.put_off

    def waiting(self) -> Iterator[Hashable]:
        """Requests that have arrived and do not run. Cost: O(requests)."""
        return (key for key, one in self._requests.items() if not one.running)

    def arrived(self, key: Hashable, claim: PromptClaim, tokens: int, digests: Sequence[int] = ()) -> None:
        """A request has entered the queue, or has come back to it.

        Args:
            key: names it until it has :meth:`left`.
            claim: whose it is.
            tokens: length of its prompt, and of what it has generated so far.
            digests: of its prompt, one per full unit.
        """
        self._changed = True
        if (known := self._requests.get(key)) is not None:
            self._run(known, running=False)
            known.tokens = max(known.tokens, tokens)
            return
        name = self._home(claim)
        now_s = self._claims.clock.now_s
        program = self._programs.get(name)
        if program is None:
            program = self._programs[name] = Program(ProgramView(), now_s, now_s)
        program.book(now_s)
        if program.view.admitted and program.answered_s is not None:
            if not program.requests:
                self._typical.paused(now_s - program.answered_s)
            if self._within_device and self._margin.missed(self._missed_share(claim, program, digests), now_s):
                self._spare_tokens = 0
        if claim.workflow_id not in program.workflows:
            program.workflows[claim.workflow_id] = None
            self._spare_tokens = 0  # what it will need is for the next decision to say
        self._spare_tokens -= tokens + round(self._typical.generated_tokens)
        program.view.tenant = claim.tenant
        program.looked_s = -math.inf
        self._undecided |= not (program.view.admitted or program.view.waiting)
        prompt = self._bring(claim, digest_of_head(digests, claim.fixed_tokens or 0, self._unit_tokens))
        request = program.requests[key] = self._requests[key] = Request(program, claim, tokens, prompt, now_s, digests)
        program.view.waiting = True
        self._typical.asked(tokens, max(0, tokens - self._holdings.known_tokens(request)))

    def _home(self, claim: PromptClaim) -> str:
        """The program that a workflow is part of: the one its first request named, whatever is heard of those above it.

        What these are changes as they begin and end, and a workflow in two programs would wait for itself.

        Cost: O(1), or O(programs) for the first request of a workflow.
        """
        name = claim.program_id or claim.workflow_id
        if name in self._programs and claim.workflow_id in self._programs[name].workflows:
            return name
        return next((other for other, one in self._programs.items() if claim.workflow_id in one.workflows), name)

    def _missed_share(self, claim: PromptClaim, program: Program, digests: Sequence[int]) -> float:
        """What bringing an agent's context back takes, as a share of computing all of it."""
        tokens, lost_tokens, host_tokens = self._holdings.missing(claim, program, digests)
        if not tokens or not lost_tokens + host_tokens:
            return 0.0
        found_tokens = max(0, tokens - lost_tokens)
        return self._admission.need_s(tokens, found_tokens, host_tokens) / self._admission.need_s(tokens, 0, 0)

    def _bring(self, claim: PromptClaim, fixed_digest: int | None) -> FixedPrompt | None:
        """The fixed prompt that a request brings; None if that cannot be told yet."""
        if fixed_digest is None:
            return None
        prompt = self._claims.role(claim.workflow_type, claim.agent).prompt_of(fixed_digest, claim.fixed_tokens or 0)
        held = self._claims.claim(claim.workflow_id, claim.workflow_type, claim.agent)
        if held is not None:
            held.own_prompt = prompt
        return prompt

    def started(self, key: Hashable) -> None:
        """A request has been given its memory."""
        request = self._requests.get(key)
        if request is not None:
            self._run(request, running=True)

    def refused(self, key: Hashable) -> bool:
        """There is no memory for a request; tells whether others may go before it.

        If so, it is not let in either until one that runs has given back its own.
        """
        request = self._requests.get(key)
        return request is not None and self._large.refused(key, request)

    def retracted(self, key: Hashable) -> None:
        """A request has lost its memory to others: less fits than was thought."""
        if key in self._requests:
            self.stopped(key)
            if self._margin.retracted(self._claims.clock.now_s):
                self._spare_tokens = 0

    def stopped(self, key: Hashable) -> None:
        """A request has lost its memory, and waits again."""
        self._large.ask_again()
        request = self._requests.get(key)
        if request is not None:
            self._run(request, running=False)

    def left(self, key: Hashable, generated_tokens: int, digests: Sequence[int] = ()) -> None:
        """A request has been answered or given up; the latter say nothing about how much is generated.

        Args:
            key: its name.
            generated_tokens: length of its answer; 0 if it has been given up.
            digests: of its prompt and answer, as far as they have been left in the cache.
        """
        self._large.ask_again()
        request = self._requests.pop(key, None)
        if request is not None:
            program, now_s = request.program, self._claims.clock.now_s
            program.book(now_s)
            if request.running:
                self._holdings.remember(request, digests or request.digests)
            self._run(request, running=False)
            del program.requests[key]
            if generated_tokens:
                program.answered_s = now_s
            program.view.waiting = any(not one.under_way for one in program.requests.values())
            self._spare_tokens -= generated_tokens
            if generated_tokens:
                self._typical.answered(generated_tokens)
            self._margin.answered()

    def give_up(self) -> None:
        """Nobody is held any more, nor put off; nothing is known of anybody."""
        self._holds.end(self._programs)
        self._programs.clear()
        self._requests.clear()
        self._running = 0

    def arrange(self, waiting: Sequence[Key], memory: AdmissionMemory) -> list[Key]:
        """Say which of the requests that wait may run, in the order of their turns, or as they are if all programs fit.

        Cost: O(programs, and contexts of those of which something was heard), when something
        has changed and somebody waits. With many contexts decisions pause in between, to take a fiftieth of the time,
        or a tenth for programs that have just come; with room to spare for all, until that may be used up.
        """
        if not waiting:
            self._holds.end(self._programs)
        elif self._fits_with_ease():
            for key in waiting:
                if (request := self._requests.get(key)) is not None:
                    request.program.view.admitted = True
        else:
            self._settle(memory)
        if not self._running:
            self._large.ask_again()
        able = self._large.without(waiting, memory.device_tokens)
        admitted = [key for key in able if (one := self._requests.get(key)) is None or one.may_run]
        if not admitted:
            return []
        ordered = admitted if self._all_fit else self._turns.order(admitted, self._requests)
        running = (key for key, one in self._requests.items() if one.running)
        return self._pioneers.behind(ordered, self._requests, running)

    def _fits_with_ease(self) -> bool:
        """Whether the room to spare that there was holds all that has come since."""
        return self._spare_tokens > 0 and self._claims.clock.now_s - self._settled_s < _EASE_S

    def _settle(self, memory: AdmissionMemory) -> None:
        now_s = self._claims.clock.now_s
        passed_s = now_s - self._settled_s
        if passed_s < max(self._pause_s(), 0.0 if self._changed else _RECONSIDER_S):
            return
        for program in self._programs.values():
            program.book(now_s)
        self._changed, self._undecided, self._settled_s = False, False, now_s
        for name, program in [*self._programs.items()]:
            if self._to_be_looked_at(program, now_s) and not self._holdings.look(program):
                if program.answered_s is not None:
                    self._typical.ended(program.took_s)
                del self._programs[name]
        programs = self._programs.values()
        self._contexts = sum(each.contexts if each.requests or each.view.admitted else 1 for each in programs)
        planned = AdmissionMemory(
            device_tokens=int(memory.device_tokens * (1 - self._margin.share)), host_tokens=memory.host_tokens
        )
        views = [program.view for program in self._programs.values()]
        places = self._admission.admit(views, planned, self._typical.step, self._typical.program_s)
        self._all_fit, self._spare_tokens = places.all_fit, places.spare_tokens
        self._within_device = places.room_tokens <= planned.device_tokens
        self._holds.follow(self._programs, places.room_tokens)

    def _pause_s(self) -> float:
        """How long after the last decision there is no other."""
        if not self._running:
            return 0.0
        per_context_s = _NEWS_PAUSE_S if self._undecided else _PAUSE_S
        return min(_LONGEST_PAUSE_S, per_context_s * max(0, self._contexts - _MANY))

    def _to_be_looked_at(self, program: Program, now_s: float) -> bool:
        looked_s = now_s - program.looked_s
        if not (program.requests or program.view.admitted):
            return looked_s >= _LOOK_S
        return looked_s >= _RECONSIDER_S or self._holdings.outdated(program)

    def _run(self, request: Request, *, running: bool) -> None:
        self._running += running - request.running
        request.interrupted = request.under_way and not running
        request.running = running
        request.program.looked_s = -math.inf
        self._changed = True
