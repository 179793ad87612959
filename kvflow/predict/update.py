"""Predictions per claim, from the control plane to every scheduler rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPrediction:
    """When one agent of one workflow is expected to use its context again.

    Attributes:
        agent: name of the agent.
        steps: steps-to-execution, 0 while the agent runs; None when it is not expected to run (again).
        pinned: the agent waits for a tool, so its context is softly pinned.
        probability: that it is used again at all; by another request, if there is one that uses it now.
        due_s: when, on the clock of the control plane; None if only the steps are known.
        since_s: when the request arrived that is using it now, or waits to; None while there is none.
        requests: how many such requests there are.
        pause_s: how long after that request has been answered; None if others are under way, or nothing is known.
    """

    agent: str
    steps: float | None
    pinned: bool = False
    probability: float = 1.0
    due_s: float | None = None
    since_s: float | None = None
    requests: int = 0
    pause_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowUpdate:
    """All predictions of one workflow; it replaces the previous ones.

    Attributes:
        workflow_id: the run.
        workflow_type: the kind of program; agents of one type share their fixed prompts.
        claims: one per agent that the workflow may still run.
        retired: the workflow has ended and its context will not be used again.
        expected: this is the next workflow of its type, which has not started yet; its id is its type.
    """

    workflow_id: str
    workflow_type: str
    claims: tuple[ClaimPrediction, ...] = ()
    retired: bool = False
    expected: bool = False

    def to_wire(self) -> dict[str, Any]:
        """Encode into JSON types, short enough to be broadcast with every step."""
        return {
            "id": self.workflow_id,
            "type": self.workflow_type,
            "retired": self.retired,
            "expected": self.expected,
            "claims": [
                [c.agent, c.steps, c.pinned, c.probability, c.due_s, c.since_s, c.requests, c.pause_s]
                for c in self.claims
            ],
        }

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> WorkflowUpdate:
        """Decode what :meth:`to_wire` made."""
        claims = tuple(
            ClaimPrediction(
                agent=agent,
                steps=steps,
                pinned=pinned,
                probability=probability,
                due_s=due,
                since_s=since,
                requests=requests,
                pause_s=pause,
            )
            for agent, steps, pinned, probability, due, since, requests, pause in data["claims"]
        )
        return cls(
            workflow_id=data["id"],
            workflow_type=data["type"],
            claims=claims,
            retired=data["retired"],
            expected=data["expected"],
        )
