"""What comes of facts, and which of them is the step of the request they came with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from kvflow.control.workflow import Context, Workflow
from kvflow.graph import END
from kvflow.hints import DecodedFact, Fact, Outcome, StepFact
from kvflow.predict import WorkflowUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """What came of some facts.

    Attributes:
        outcomes: one per fact, in order.
        updates: predictions that changed, to be sent to every scheduler rank in this order.
        feedback: workflows and their outcomes, for the ranks too.
        changed: workflows to predict anew once all facts are in.
        asked: contexts that the request the facts came with is now in flight for, one at most.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    updates: list[WorkflowUpdate] = field(default_factory=list)
    feedback: list[tuple[str, float]] = field(default_factory=list)
    changed: dict[str, Workflow] = field(default_factory=dict)
    asked: list[Context] = field(default_factory=list)


def asking(facts: Sequence[DecodedFact]) -> StepFact | None:
    """The step whose request the facts came with: the last one they start."""
    started = [item.fact for item in facts if starts_step(item.fact)]
    return started[-1] if started else None


def starts_step(fact: Fact) -> TypeGuard[StepFact]:
    """Whether a fact is that a step starts, as a request's is; the end of a workflow is told the same way."""
    return isinstance(fact, StepFact) and fact.event == "start" and fact.agent != END
