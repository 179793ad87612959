"""A program and its requests, as admission follows them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from kvflow.engine.conversations import Context, Tail, told_apart
from kvflow.engine.coordinator import PromptClaim
from kvflow.engine.roles import FixedPrompt
from kvflow.policy import ProgramView

_MOST_IDLE_S = 5.0
"""Of a pause between two decisions counts for a program that asks for nothing."""

Agent = tuple[str, str]
"""A workflow, and one of its agents."""


@dataclass(slots=True)
class Request:
    """A request of a program.

    Attributes:
        tokens: length of its prompt.
        fixed_prompt: the fixed part of it; None if that cannot be told yet.
        arrived_s: when it came.
        digests: of its prompt, one per full unit.
        running: it has been given its memory.
    """

    program: Program
    claim: PromptClaim
    tokens: int
    fixed_prompt: FixedPrompt | None
    arrived_s: float
    digests: Sequence[int] = ()
    running: bool = False

    @property
    def agent(self) -> Agent:
        """Whose it is."""
        return self.claim.workflow_id, self.claim.agent


@dataclass(slots=True, eq=False)
class Program:
    """A workflow with its sub-workflows, and their requests.

    Attributes:
        view: what admission may know.
        began_s: when its first request came.
        booked_s: up to when its time has been entered.
        workflows: in the order in which they came.
        contexts: how many it has, with those of its requests.
        looked_s: when the view was last brought up to date; minus infinity if it is to be again in any case.
        updates: of live workflows that had been applied by then.
        answered_s: when a request of it was last answered; None before that.
        held_since_s: how long it had been held before, when it began to be held again; None if it is not held.
        digests: of what its agents were asked last, with the answers; the latest last.
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
    digests: dict[Agent, array[int]] = field(default_factory=dict)
    tails: list[Tail] = field(default_factory=list)
    told_apart: list[tuple[Hashable, int, int, int | None]] = field(default_factory=list)

    def tails_of(self, contexts: Mapping[Hashable, Context], unit_tokens: int) -> list[Tail]:
        """Tell contexts apart that the program will use, unless they are as they were."""
        these = [
            (key, one.tokens, one.fixed_tokens, one.digests[-1] if one.digests else None)
            for key, one in contexts.items()
        ]
        if these != self.told_apart:
            self.tails, self.told_apart = told_apart(contexts, unit_tokens), these
        return self.tails

    def forget(self, workflow_id: str) -> None:
        """One of its workflows has ended."""
        del self.workflows[workflow_id]
        for agent in [agent for agent in self.digests if agent[0] == workflow_id]:
            del self.digests[agent]

    def remember(self, agent: Agent, digests: Sequence[int]) -> None:
        """An agent has got an answer, or a part of one: what it goes on from."""
        self.digests.pop(agent, None)
        self.digests[agent] = array("Q", digests)

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
