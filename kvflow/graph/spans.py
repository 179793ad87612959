"""One observed run: its steps in time, and which of them followed which."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvflow.graph.nodes import END, START

MAX_SPANS = 1024
"""Steps of one run beyond this are not recorded."""


@dataclass(slots=True, kw_only=True)
class Span:
    """When one step of an agent was seen.

    Attributes:
        agent: whose step.
        started: position of its first sign of life among the facts of the run.
        ended: position of its end, or of its last sign of life as long as no end is known.
        open: no end is known.
    """

    agent: str
    started: int
    ended: int
    open: bool = True


@dataclass(slots=True, kw_only=True)
class Visit:
    """One step of an agent, START or END, with the agents it followed and those that followed it."""

    agent: str
    sources: set[str] = field(default_factory=set)
    followers: set[str] = field(default_factory=set)


class Run:
    """The steps of one run, recorded as they happen and related to each other afterwards.

    Without end facts a step lasts until its last sign of life, so plain requests one after the other form a chain,
    and steps whose requests interleave are parallel.
    """

    def __init__(self) -> None:
        self._clock = 0
        self._spans: list[Span] = []
        self._by_step: dict[tuple[str, str], Span] = {}

    def __len__(self) -> int:
        """Number of steps recorded."""
        return len(self._spans)

    def start(self, agent: str, step_id: str | None = None) -> None:
        """Record the start of a step, or a further sign of life of the step with that id."""
        self._clock += 1
        if step_id is not None and (agent, step_id) in self._by_step:
            span = self._by_step[agent, step_id]
            span.ended, span.open = self._clock, True
        elif len(self._spans) < MAX_SPANS:
            span = Span(agent=agent, started=self._clock, ended=self._clock)
            self._spans.append(span)
            if step_id is not None:
                self._by_step[agent, step_id] = span

    def end(self, agent: str, step_id: str | None = None) -> None:
        """Record the end of a step; without an id, of the agent's latest open one. Unknown steps are ignored."""
        self._clock += 1
        if step_id is not None:
            span = self._by_step.get((agent, step_id))
        else:
            span = next((span for span in reversed(self._spans) if span.agent == agent and span.open), None)
        if span is not None and span.open:
            span.ended, span.open = self._clock, False

    def visits(self, *, finished: bool) -> list[Visit]:
        """Relate the steps recorded so far.

        A step follows those that ended before it started, except where another step fits in between. If some of
        them have not been followed by anything yet, it follows only these.

        Args:
            finished: END follows the last steps. Otherwise it is not known what does.

        Returns:
            START, the steps in order of their start and, if finished, END.

        Cost: O(n log n + n w) for n steps of which at most w run in parallel.
        """
        spans = [Span(agent=START, started=0, ended=0), *self._spans]
        if finished:
            spans.append(Span(agent=END, started=self._clock + 1, ended=self._clock + 1))
        visits = [Visit(agent=span.agent) for span in spans]
        ending = sorted(range(len(spans)), key=lambda i: spans[i].ended, reverse=True)
        candidates: list[int] = []
        for i in range(1, len(spans)):
            while spans[ending[-1]].ended < spans[i].started:
                candidates.append(ending.pop())
            latest = max(spans[c].started for c in candidates)
            candidates = [c for c in candidates if spans[c].ended >= latest]
            for source in [c for c in candidates if not visits[c].followers] or candidates:
                visits[source].followers.add(spans[i].agent)
                visits[i].sources.add(spans[source].agent)
        return visits
