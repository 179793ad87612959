"""One workflow, as the control plane sees it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from kvflow.graph import END, START, AgentStepGraph, Cursor, Join
from kvflow.predict import ClaimPrediction, WorkflowUpdate

INFERRED = "inferred/"
"""What types of workflows begin with that nobody has told of."""
_MOST_STEPS = 1024
"""Of a workflow that may be under way."""
_UNTOLD_S = 0.5
"""Within so long of an answer its program tells which tool it calls, or that it is over: the client lets facts linger
for a fifth of a second."""


@dataclass(slots=True, kw_only=True)
class ToolWait:
    """A tool call that has not answered.

    Attributes:
        started_s: clock reading.
        expected_s: how long it takes, if the client says so.
        step_id: of the step that waits, if the client says so.
    """

    tool: str
    verb: str | None
    started_s: float
    expected_s: float | None = None
    step_id: str | None = None

    @property
    def told_s(self) -> float:
        """Clock reading until when it takes, as the client says; when it started if the client says nothing."""
        return self.started_s + (self.expected_s or 0.0)


@dataclass(slots=True)
class Context:
    """How an agent has used its context in this workflow.

    Attributes:
        turns: requests so far.
        arrivals_s: when those came that have not been answered. Answers are taken to come in the same order.
        answered_s: when the last one was answered or given up; None before the first.
        told: its agent has been heard of since, or nobody will tell.
        given_up: the last one was given up, and its program may ask again.
        last_tool: the tool that was called since, the latest of them; empty if none was.
    """

    turns: int = 0
    arrivals_s: deque[float] = field(default_factory=deque)
    answered_s: float | None = None
    told: bool = True
    given_up: bool = False
    last_tool: str = ""

    def is_untold(self, now_s: float) -> bool:
        """Whether nothing has been heard since an answer, which says nothing yet: what follows may be on its way."""
        return not self.told and self.answered_s is not None and now_s < self.answered_s + _UNTOLD_S


@dataclass(slots=True, kw_only=True)
class Workflow:
    """State of one live workflow.

    Attributes:
        last_seen_s: clock reading of the latest fact or answer, of a sub-workflow, too.
        answered: what an answer predicts is still to be told, or to be told again.
        children: sub-workflows that live, by id.
        contexts: by agent, for those that have sent requests.
        waits: tool calls under way, by (agent, call).
        started_s: when the steps under way started, by (agent, step id); of those that never end, the latest.
        revisit_s: when its predictions are to be made again although nothing has happened.
        pins: deadline in clock seconds of every tool call the workflow waits for, by (agent, call).
        cursor: follows the run through its graph; None while the type's graph is unknown.
        declared: somebody declared that graph; else it was learned.
        agents: steps taken per agent.
        latest: (agent, step id) that started last.
        ended_s: when that step ended; None while it is under way.
        final: (agent, step id) that is the last one, as told when it started.
    """

    workflow_id: str
    workflow_type: str
    last_seen_s: float
    answered: bool = False
    parent_id: str | None = None
    tenant: str | None = None
    cursor: Cursor | None = None
    declared: bool = False
    agents: dict[str, int] = field(default_factory=dict)
    latest: tuple[str, str] | None = None
    ended_s: float | None = None
    final: tuple[str, str] | None = None
    pins: dict[tuple[str, str], float] = field(default_factory=dict)
    children: set[str] = field(default_factory=set)
    contexts: dict[str, Context] = field(default_factory=dict)
    waits: dict[tuple[str, str], ToolWait] = field(default_factory=dict)
    started_s: dict[tuple[str, str], float] = field(default_factory=dict)
    revisit_s: float = math.inf
    sent: WorkflowUpdate | None = None

    @property
    def claims_sent(self) -> int:
        """How many claims of it the schedulers have been told of."""
        return len(self.sent.claims) if self.sent is not None else 0

    @property
    def at_work(self) -> bool:
        """Whether a request of it, or of a sub-workflow, may be under way."""
        return bool(self.children) or any(context.arrivals_s for context in self.contexts.values())

    def waits_as_told(self, now_s: float) -> bool:
        """Whether a tool is under way that takes, as its client has said, until later than now."""
        return any(wait.told_s > now_s for wait in self.waits.values())

    def is_untold(self, now_s: float) -> bool:
        """Whether that is so of one of its contexts."""
        return any(context.is_untold(now_s) for context in self.contexts.values())

    def has_own_graph(self, graph: AgentStepGraph) -> bool:
        """Whether it follows a declared graph with agents that this one has not: its type has another since."""
        own = self.cursor.graph if self.declared and self.cursor is not None else graph
        return own is not graph and not set(own.agents) <= set(graph.agents)

    def follow(self, graph: AgentStepGraph) -> None:
        """Follow the run through a graph from here on; a graph it follows already is taken over as it is now."""
        if self.cursor is not None:
            self.cursor.graph = graph
            return
        self.cursor = Cursor(graph)
        if self.latest is not None:
            self.cursor.start(*self.latest)

    def start(self, agent: str, step_id: str | None, *, ends_told: bool = False) -> tuple[str, list[ToolWait]]:
        """An agent starts a step, or continues one; returns the step's id and the tool calls it has waited for.

        A client that names no steps starts a new one whenever another agent has run in between.

        Args:
            agent: whose step it is.
            step_id: of the step, if the client names steps.
            ends_told: the client says when tools end, so that a request before that is asked beside them, or by them.
        """
        if step_id is None and self.latest is not None and self.latest[0] == agent:
            step_id = self.latest[1]
        if step_id is None:
            step_id = f"{agent}#{sum(self.agents.values())}"
        step = (agent, step_id)
        if step != self.latest and step not in self.started_s:  # parallel steps take turns
            self.agents[agent] = self.agents.get(agent, 0) + 1
            self.latest = step
        if self.cursor is not None:
            self.cursor.start(agent, step_id)
        return step_id, [] if ends_told else self._unpin(agent, step_id)

    def began(self, agent: str, step_id: str, now_s: float) -> None:
        """Note when a step started, unless it goes on."""
        self.ended_s = None
        self.started_s.setdefault((agent, step_id), now_s)
        if len(self.started_s) > _MOST_STEPS:
            del self.started_s[next(iter(self.started_s))]

    def step_over(self, now_s: float) -> None:
        """A step has ended; note when, if it is the one that started last."""
        if self.ended_s is None and self.latest is not None and self.latest not in self.started_s:
            self.ended_s = now_s

    def end(self, agent: str, step_id: str | None) -> str | None:
        """An agent has ended a step; returns the step's id as far as known."""
        if step_id is None and self.latest is not None and self.latest[0] == agent:
            step_id = self.latest[1]
        if self.cursor is not None:
            self.cursor.end(agent, step_id)
        self._unpin(agent, step_id)
        return step_id

    def steps_before(self, agent: str) -> list[tuple[str, str] | None]:
        """Steps under way that an agent's waits for: all that it joins, or the latest one, which may be over."""
        graph = self.cursor.graph if self.cursor is not None else None
        joined: list[tuple[str, str] | None] = []
        if graph is not None and agent in graph and graph.join(agent) is Join.ALL:
            joined += [step for step in self.started_s if step[0] in graph.predecessors(agent)]
        return joined or [self.latest]

    def wait_for(self, key: tuple[str, str], wait: ToolWait, most: int) -> None:
        """A tool call is under way; of more than so many the oldest are forgotten: nobody has said that they ended."""
        self.waits.pop(key, None)
        while len(self.waits) >= most:
            oldest = next(iter(self.waits))
            del self.waits[oldest]
            self.pins.pop(oldest, None)
        self.waits[key] = wait

    def expire_pins(self, now_s: float) -> bool:
        """Drop pins whose deadline has passed; tells whether there were any."""
        late = [key for key, deadline_s in self.pins.items() if deadline_s <= now_s]
        for key in late:
            del self.pins[key]
        return bool(late)

    def view(self, now_s: float) -> dict[str, Any]:
        """Describe the workflow for ``GET /kvflow/v1/workflows``."""
        update = self.sent
        return {
            "workflow_id": self.workflow_id,
            "workflow_type": self.workflow_type,
            "parent_workflow_id": self.parent_id,
            "tenant": self.tenant,
            "idle_s": round(now_s - self.last_seen_s, 3),
            "running": sorted(self._running()),
            "steps_taken": dict(sorted(self.agents.items())),
            "steps_to_execution": {c.agent: c.steps for c in update.claims} if update else {},
            "next_use": {c.agent: _next_use(c, now_s) for c in update.claims} if update else {},
            "pins": [
                {"agent": agent, "call": call, "expires_in_s": round(deadline_s - now_s, 3)}
                for (agent, call), deadline_s in sorted(self.pins.items())
            ],
        }

    def _unpin(self, agent: str, step_id: str | None) -> list[ToolWait]:
        """A step that goes on has what it waited for, whatever became of the calls; so has its agent of others."""
        keys = [key for key, wait in self.waits.items() if key[0] == agent and wait.step_id in (None, step_id)]
        for key in keys:
            self.pins.pop(key, None)
        return [self.waits.pop(key) for key in keys]

    def _running(self) -> set[str]:
        """Agents that run now: those the cursor knows of, and the latest one if its graph does not have it."""
        running = set(self.cursor.active) - {START} if self.cursor is not None else set()
        if self.latest is not None and (self.cursor is None or self.latest[0] not in self.cursor.graph):
            running.add(self.latest[0])
        return running

    def steps(self, prediction: Literal["earliest", "expected"]) -> dict[str, float | None]:
        """Steps-to-execution of every agent: 0 for those that run, None for those not expected to."""
        steps: dict[str, float | None] = {}
        if self.cursor is not None and prediction == "expected":
            steps = {agent: use.steps for agent, use in self.cursor.next_use.items()}
        elif self.cursor is not None:
            steps = {agent: None if count is None else float(count) for agent, count in self.cursor.steps.items()}
        steps.pop(END, None)
        return steps | dict.fromkeys(self._running(), 0.0)


def _next_use(claim: ClaimPrediction, now_s: float) -> dict[str, Any]:
    """When a context is used next, as last predicted; now, if a request uses it or waits to."""
    if claim.since_s is not None:
        return {"probability": 1.0, "in_s": 0.0, "asked": True}
    in_s = None if claim.due_s is None else round(max(0.0, claim.due_s - now_s), 3)
    return {"probability": round(claim.probability, 3), "in_s": in_s, "asked": False}
