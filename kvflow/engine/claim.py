"""A claim: one agent of one workflow that expects to use its context, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvflow.engine.branches import Branches, Mark
from kvflow.engine.clock import SOON_S, Clock
from kvflow.engine.ports import Node
from kvflow.engine.roles import FixedPrompt, Role
from kvflow.policy import Standing
from kvflow.predict import ClaimPrediction

_STEP_S = 5.0
"""How long a step is taken to be when a prediction gives steps only."""
_ON_ITS_WAY_S = 2.0
"""Between what is heard of a request and itself: the time to tokenize its prompt, and more."""


@dataclass(slots=True, eq=False)
class ProgramLife:
    """Whether a program, a workflow with its sub-workflows, goes on."""

    over: bool = False


@dataclass(slots=True, eq=False)
class Claim:
    """One workflow's agent expecting to use its context.

    Attributes:
        steps: steps-to-execution; None when it is not expected to run (again).
        pinned: softly pinned.
        retired: its workflow has ended.
        ended_s: when, on the control plane's clock.
        program: the one its workflow belongs to, which may run another like it; None if nobody knows of one.
        probability: that the context is used again; by another request, if there is one that uses it now.
        due_s: when, on the control plane's clock; None if only the steps are known.
        since_s: arrival of the request that uses it now, or waits to; None while there is none.
        requests: how many requests use it now, or wait to.
        placed: how many of them have their memory; of those that all do what counts is the use after them.
        answered_here: how many of those have been answered since the last prediction that knows of an answer.
        replicated: predictions reach several servers, and each request only one of them.
        asked_here: that request is at this one.
        pause_s: how long after that request has been answered, as far as known.
        held_s: how long the use will be put off, because other programs have their turn.
        let_in_s: when its program's turn came last; the control plane's clock.
        tail_pending: its latest prompt had a dynamic tail that has not proved useful yet.
        tip: deepest node of its latest prompt.
        mark: of that prompt; None if it is too short for one.
        branches: what other conversations of the agent have left.
        context_tokens: length of its latest prompt.
        tail_tokens: length of that prompt's dynamic tail.
        stamp: the role's when that prompt was tagged.
        own_prompt: what its latest prompt begins with, once there has been one.
        tail_standing: of nodes in its dynamic tail that nobody else claims, with the clock's version it is valid for.
    """

    role: Role
    workflow_id: str = ""
    steps: float | None = None
    pinned: bool = False
    retired: bool = False
    ended_s: float = 0.0
    program: ProgramLife | None = None
    probability: float = 1.0
    due_s: float | None = None
    since_s: float | None = None
    requests: int = 0
    pause_s: float | None = None
    placed: int = 0
    answered_here: int = 0
    replicated: bool = False
    asked_here: bool = False
    held_s: float = 0.0
    let_in_s: float = 0.0
    tail_pending: bool = False
    tip: Node | None = None
    mark: Mark | None = None
    branches: Branches = field(default_factory=Branches)
    context_tokens: int = 0
    tail_tokens: int = 0
    stamp: int = 0
    own_prompt: FixedPrompt | None = None
    tail_standing: tuple[int, Standing] | None = None
    _version: int = -1
    _outlook: tuple[float, float] | None = None

    @property
    def fixed_prompt(self) -> FixedPrompt:
        """What its prompts begin with: as the latest did, or the latest of its role."""
        return self.own_prompt or self.role.prompt

    def ends_tokens(self) -> Iterator[int]:
        """Positions from which its next prompts may go on: where its conversations have ended, or its fixed prompt."""
        yield self.context_tokens
        yield self.fixed_prompt.tokens
        for branch in self.branches.others:
            if branch.tip.owners is not None:
                yield branch.tip.owners.end_tokens

    @property
    def ended_for_good(self) -> bool:
        """Whether nobody is expected to continue what it leaves: its program is over, and others of its role do not."""
        over = self.retired and (self.program is None or self.program.over)
        return over and self.role.ends_for_good

    @property
    def keeps_tail(self) -> bool:
        """Whether the dynamic tail is worth keeping: while the step runs, later only if experience says so."""
        return not self.retired and (self.steps == 0 or self.since_s is not None or self.role.reuses_tails)

    @property
    def branch_share(self) -> float:
        """Probability that the next use of its context, if there is one, is that of one of its conversations."""
        others = len(self.branches.others)
        return min(1.0, max(1, self.requests) / (1 + others)) if others else 1.0

    @property
    def likelihood(self) -> float:
        """Probability of the next use, which is certain while a request waits for it."""
        return 1.0 if self.waited_for else self.probability

    @property
    def waited_for(self) -> bool:
        """Whether a request waits to use it, and not at another server."""
        if self.since_s is None or (self.replicated and not self.asked_here):
            return False
        return self.placed < max(1, self.requests)

    def is_elsewhere(self, clock: Clock) -> bool:
        """Whether another replica has the request that uses it: this one would have it by now."""
        there = self.since_s is not None and self.replicated and not self.asked_here
        return there and clock.now_s - (self.since_s or 0.0) > _ON_ITS_WAY_S

    @property
    def expected(self) -> bool:
        """Whether a next use is expected."""
        if self.retired or self.waited_for:
            return not self.retired
        known = any(each is not None for each in (self.steps, self.due_s, self.pause_s, self.since_s))
        return known and self.probability > 0

    def next_s(self, clock: Clock) -> float:
        """Seconds until the context is used again, the wait for its turn included."""
        return self.held_s + self._due_in_s(clock, clock.queue_s)

    def back_s(self, clock: Clock) -> float:
        """Seconds until there is a request that wants to use the context again."""
        return self._due_in_s(clock, 0.0)

    def _due_in_s(self, clock: Clock, queue_s: float) -> float:
        if self.since_s is not None and self.waited_for:
            return clock.until(self.since_s + queue_s)  # by arrival, as the queue is
        if self.since_s is not None:
            return (self.pause_s or 0.0) + queue_s + SOON_S
        if self.due_s is not None:
            return clock.until(self.due_s + queue_s)
        return (self.steps or 0.0) * _STEP_S + SOON_S

    def outlook(self, clock: Clock) -> tuple[float, float] | None:
        """Likelihood of the next use and seconds until then; None when none is expected.

        Cost: O(1), next to nothing when nothing has changed since the last call.
        """
        if self._version != clock.version:
            self._version = clock.version
            self._outlook = (self.likelihood, self.next_s(clock)) if self.expected else None
        return self._outlook

    def rate_hz(self, clock: Clock) -> float:
        """Expected uses per second until then; 0 when none is expected."""
        outlook = self.outlook(clock)
        return outlook[0] / outlook[1] if outlook is not None else 0.0

    def answered(self, clock: Clock) -> None:
        """Its request has been answered: what was predicted for afterwards begins, before anyone has to say so."""
        if self.since_s is None:
            return
        if self.pause_s is None:
            self.answered_here = min(self.answered_here + 1, self.requests - 1)  # samples of one are answered apart
        else:
            self.since_s, self.due_s, self.placed = None, clock.now_s + self.pause_s, 0
            clock.version += 1

    def settle_tail(self, *, reused: bool, last: bool = False) -> None:
        """Enter into experience whether the latest tail was extended by a later prompt; ``last``: none came."""
        if self.tail_pending:
            self.tail_pending = False
            self.role.settle_tail(reused=reused, last=last)

    def set(self, prediction: ClaimPrediction | None) -> bool:
        """Take over a prediction, None if there is none any more; tells whether anything changed."""
        steps = prediction.steps if prediction is not None else None
        pinned = prediction is not None and prediction.pinned
        probability = prediction.probability if prediction is not None else 0.0
        due_s = prediction.due_s if prediction is not None else None
        since_s = prediction.since_s if prediction is not None else None
        self.pause_s = prediction.pause_s if prediction is not None else None
        if since_s != self.since_s:
            others = since_s is not None and self.requests > 1  # one of several has been answered, or given up
            self.placed = max(0, min(self.placed - self.answered_here, self.requests - 1)) if others else 0
            self.answered_here = 0
            self.asked_here = self.asked_here and others
        self.requests = prediction.requests if prediction is not None else 0
        before = (self.steps, self.pinned, self.probability, self.due_s, self.since_s)
        if before == (steps, pinned, probability, due_s, since_s):
            return False
        self.steps, self.pinned, self.probability = steps, pinned, probability
        self.due_s, self.since_s = due_s, since_s
        if prediction is None:
            self.role.claims.pop(self, None)
        else:
            self.role.claims[self] = None
        return True
