"""A program and its requests, as admission follows them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from kvflow.engine.branches import Mark
from kvflow.engine.conversations import Context, Tail, told_apart
from kvflow.engine.coordinator import PromptClaim
from kvflow.engine.roles import FixedPrompt
from kvflow.policy import ProgramView

_MOST_IDLE_S = 5.0
"""Of a pause between two decisions counts for a program that asks for nothing."""

Agent = tuple[str, str]
"""A workflow, and one of its agents."""


class Talk(NamedTuple):
    """A conversation of an agent, as of its latest answer.

    Attributes:
        digests: of the prompt and the answer, one per full unit.
        mark: of the prompt; None if it has none.
    """

    digests: array[int]
    mark: Mark | None = None


@dataclass(slots=True)
class Request:
    """A request of a program.

    Attributes:
        tokens: length of its prompt, and of what it had generated before it lost its memory.
        fixed_prompt: the fixed part of it; None if that cannot be told yet.
        arrived_s: when it came.
        digests: of its prompt, one per full unit.
        running: it has been given its memory.
        interrupted: it has lost that in the middle of its answer, and needs no place to go on with it.
    """

    program: Program
    claim: PromptClaim
    tokens: int
    fixed_prompt: FixedPrompt | None
    arrived_s: float
    digests: Sequence[int] = ()
    running: bool = False
    interrupted: bool = False

    @property
    def under_way(self) -> bool:
        """Whether it runs, or has begun to."""
        return self.running or self.interrupted

    @property
    def may_run(self) -> bool:
        """Whether it does not wait for its program's turn."""
        return self.under_way or self.program.view.admitted

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
        talks: what its agents go on from, of each the conversations that it has at once; the latest last.
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
    talks: dict[Agent, list[Talk]] = field(default_factory=dict)
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
        for agent in [agent for agent in self.talks if agent[0] == workflow_id]:
            del self.talks[agent]

    def remember(self, agent: Agent, digests: Sequence[int], mark: Mark | None = None, most: int = 1) -> None:
        """An agent has got an answer, or a part of one: what it goes on from.

        Args:
            agent: whose it is.
            digests: of the prompt and the answer.
            mark: of the prompt.
            most: how many conversations it has at once.
        """
        talks = self.talks.pop(agent, [])
        own = _longest(talks, digests)
        others = [talk for talk in talks if talk is not own]
        self.talks[agent] = [*others[max(0, len(others) - most + 1) :], Talk(array("Q", digests), mark)]

    def talks_of_others(self, agent: Agent, most: int) -> Iterator[tuple[Agent, Talk]]:
        """What other agents go on from, of each the latest, and no more than so many agents, the latest first."""
        others = (other for other in reversed(self.talks) if other != agent)
        return ((other, self.talks[other][-1]) for other in islice(others, most))

    def idle_talks(self, agent: Agent, most: int) -> list[Talk]:
        """Conversations of an agent that no request goes on with. A new one takes the place of the oldest.

        Args:
            agent: whose.
            most: how many it has at once.
        """
        idle = list(self.talks.get(agent, ()))
        asking = [request for request in self.requests.values() if request.agent == agent]
        for request in asking:
            own = _longest(idle, request.digests)
            idle = [talk for talk in idle if talk is not own]
        return idle[max(0, len(idle) - max(0, most - len(asking))) :]

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


def _longest(talks: Sequence[Talk], digests: Sequence[int]) -> Talk | None:
    """The conversation that a prompt goes on with; None if it begins another."""
    known = ((talk.mark.unit, talk) for talk in talks if talk.mark is not None and talk.mark.begins(digests))
    return max(known, key=itemgetter(0), default=(0, None))[1]
