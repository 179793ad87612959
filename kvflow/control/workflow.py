"""One workflow, as the control plane sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from kvflow.graph import END, START, AgentStepGraph, Cursor
from kvflow.predict import ClaimPrediction, WorkflowUpdate


@dataclass(slots=True, kw_only=True)
class Workflow:
    """State of one live workflow.

    Attributes:
        last_seen_s: clock reading of the latest fact.
        pins: deadline in clock seconds of every tool call the workflow waits for, by (agent, call).
        cursor: follows the run through its graph; None while the type's graph is unknown.
        agents: steps taken per agent.
        latest: (agent, step id) that started last.
    """

    workflow_id: str
    workflow_type: str
    last_seen_s: float
    parent_id: str | None = None
    tenant: str | None = None
    cursor: Cursor | None = None
    agents: dict[str, int] = field(default_factory=dict)
    latest: tuple[str, str] | None = None
    pins: dict[tuple[str, str], float] = field(default_factory=dict)
    sent: WorkflowUpdate | None = None

    def follow(self, graph: AgentStepGraph) -> None:
        """Follow the run through a graph from here on; a graph it follows already is taken over as it is now."""
        if self.cursor is not None:
            self.cursor.graph = graph
            return
        self.cursor = Cursor(graph)
        if self.latest is not None:
            self.cursor.start(*self.latest)

    def start(self, agent: str, step_id: str | None) -> str:
        """An agent starts a step, or continues one; returns the step's id.

        A client that names no steps starts a new one whenever another agent has run in between.
        """
        if step_id is None and self.latest is not None and self.latest[0] == agent:
            step_id = self.latest[1]
        if step_id is None:
            step_id = f"{agent}#{sum(self.agents.values())}"
        if self.latest != (agent, step_id):
            self.agents[agent] = self.agents.get(agent, 0) + 1
            self.latest = (agent, step_id)
        if self.cursor is not None:
            self.cursor.start(agent, step_id)
        self._unpin(agent)
        return step_id

    def end(self, agent: str, step_id: str | None) -> str | None:
        """An agent has ended a step; returns the step's id as far as known."""
        if step_id is None and self.latest is not None and self.latest[0] == agent:
            step_id = self.latest[1]
        if self.cursor is not None:
            self.cursor.end(agent, step_id)
        self._unpin(agent)
        return step_id

    def expire_pins(self, now_s: float) -> bool:
        """Drop pins whose deadline has passed; tells whether there were any."""
        late = [key for key, deadline_s in self.pins.items() if deadline_s <= now_s]
        for key in late:
            del self.pins[key]
        return bool(late)

    def update(self, prediction: Literal["earliest", "expected"]) -> WorkflowUpdate:
        """Predict every agent's next use."""
        pinned = {agent for agent, _ in self.pins}
        steps = self._steps(prediction)
        claims = tuple(
            ClaimPrediction(agent=agent, steps=steps.get(agent), pinned=agent in pinned)
            for agent in sorted(steps.keys() | pinned)
            if steps.get(agent) is not None or agent in pinned
        )
        return WorkflowUpdate(workflow_id=self.workflow_id, workflow_type=self.workflow_type, claims=claims)

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
            "pins": [
                {"agent": agent, "call": call, "expires_in_s": round(deadline_s - now_s, 3)}
                for (agent, call), deadline_s in sorted(self.pins.items())
            ],
        }

    def _unpin(self, agent: str) -> None:
        for key in [key for key in self.pins if key[0] == agent]:
            del self.pins[key]

    def _running(self) -> set[str]:
        """Agents that run now: those the cursor knows of, and the latest one if its graph does not have it."""
        running = set(self.cursor.active) - {START} if self.cursor is not None else set()
        if self.latest is not None and (self.cursor is None or self.latest[0] not in self.cursor.graph):
            running.add(self.latest[0])
        return running

    def _steps(self, prediction: Literal["earliest", "expected"]) -> dict[str, float | None]:
        steps: dict[str, float | None] = {}
        if self.cursor is not None and prediction == "expected":
            steps = {agent: use.steps for agent, use in self.cursor.next_use.items()}
        elif self.cursor is not None:
            steps = {agent: None if count is None else float(count) for agent, count in self.cursor.steps.items()}
        steps.pop(END, None)
        return steps | dict.fromkeys(self._running(), 0.0)
