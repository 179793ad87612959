"""The workflow table: which workflows live, and what their facts predict."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvflow.config import Settings
from kvflow.control.arrivals import Arrivals
from kvflow.control.graphs import GraphBook
from kvflow.control.workflow import Workflow
from kvflow.graph import END, START, steps_to_execution
from kvflow.hints import DecodedFact, Outcome, Status, StepFact, ToolFact
from kvflow.predict import ClaimPrediction, WorkflowUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """What came of some facts.

    Attributes:
        outcomes: one per fact, in order.
        updates: predictions that changed, to be sent to every scheduler rank in this order.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    updates: list[WorkflowUpdate] = field(default_factory=list)


@dataclass(slots=True)
class _TypeState:
    """What the live workflows of one type have in common.

    Attributes:
        live: how many there are.
        arrivals: when the next one is expected.
        last_seen_s: clock reading when one was last seen.
        announced: what the engine was told of the one to come.
    """

    live: int = 0
    arrivals: Arrivals = field(default_factory=Arrivals)
    last_seen_s: float = 0.0
    announced: WorkflowUpdate | None = None


class ControlPlane:
    """Turns facts into predictions. Not thread-safe: everything happens on the event loop's thread.

    Args:
        settings: limits, time-outs and the kind of prediction.
        clock: monotonic seconds.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self.graphs = GraphBook(learn=settings.graph.learn, max_types=settings.graph.max_types)
        self.outcome_counts: Counter[tuple[str, str]] = Counter()
        self._settings = settings
        self._clock = clock
        self._workflows: OrderedDict[str, Workflow] = OrderedDict()
        self._types: dict[str, _TypeState] = {}

    def __len__(self) -> int:
        return len(self._workflows)

    def take(self, facts: Sequence[DecodedFact]) -> Intake:
        """Take facts in the order in which they happened."""
        intake = Intake()
        for item in facts:
            fact = item.fact
            status, reason = self._step(fact, intake) if isinstance(fact, StepFact) else self._tool(fact, intake)
            intake.outcomes.append(
                Outcome(action_id=item.action_id, action_type=item.action_type, status=status, reason=reason)
            )
        self.count(intake.outcomes)
        return Intake(outcomes=intake.outcomes, updates=_latest(intake.updates))

    def finish(self, workflow_id: str) -> list[WorkflowUpdate]:
        """End a workflow whose final request has been answered."""
        intake = Intake()
        workflow = self._workflows.get(workflow_id)
        if workflow is not None:
            self._retire(workflow, intake)
        return intake.updates

    def count(self, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes by action type and status; foreign action types are counted together."""
        for outcome in outcomes:
            known = outcome.action_type.startswith("kvflow.")
            self.outcome_counts[outcome.action_type if known else "other", outcome.status] += 1

    def expire(self) -> list[WorkflowUpdate]:
        """Let pins and workflows expire; to be called a few times a second. Cost: O(live workflows)."""
        now_s = self._clock()
        intake = Intake()
        for workflow in list(self._workflows.values()):
            if now_s - workflow.last_seen_s > self._settings.intake.workflow_idle_s:
                self._retire(workflow, intake)
            elif workflow.expire_pins(now_s):
                self._predict(workflow, intake)
        for workflow_type, state in list(self._types.items()):
            if not state.live and now_s - state.last_seen_s > self._settings.intake.arrival_idle_s:
                del self._types[workflow_type]
                if state.announced is not None:
                    intake.updates.append(replace(state.announced, claims=(), retired=True))
        return intake.updates

    def view(self) -> list[dict[str, Any]]:
        """Describe the live workflows, the one idle for longest first."""
        now_s = self._clock()
        return [workflow.view(now_s) for workflow in self._workflows.values()]

    def _step(self, fact: StepFact, intake: Intake) -> tuple[Status, str]:
        workflow = self._workflows.get(fact.workflow_id)
        if fact.agent == END:
            if workflow is None:
                return Status.MISSING, "workflow is not live"
            self._retire(workflow, intake)
            return Status.ACCEPTED, ""
        if fact.event == "end":
            if workflow is None:
                return Status.MISSING, "workflow is not live"
            return self._step_end(workflow, fact, intake)
        if workflow is None:
            workflow = self._open(fact, intake)
        if fact.agent not in workflow.agents and len(workflow.agents) >= self._settings.intake.max_agents:
            return Status.REJECTED, f"workflow already has {len(workflow.agents)} agents (intake.max_agents)"
        self._touch(workflow)
        known_step = workflow.latest
        step_id = workflow.start(fact.agent, fact.step_id)
        if workflow.latest != known_step:
            state = self._types[workflow.workflow_type]
            state.arrivals.step(state.live)
        learner = self.graphs.learner(workflow.workflow_type)
        if learner is not None:
            learner.start(workflow.workflow_id, fact.agent, step_id)
        self._predict(workflow, intake)
        return Status.ACCEPTED, ""

    def _step_end(self, workflow: Workflow, fact: StepFact, intake: Intake) -> tuple[Status, str]:
        self._touch(workflow)
        step_id = workflow.end(fact.agent, fact.step_id)
        learner = self.graphs.learner(workflow.workflow_type)
        if learner is not None:
            learner.end(workflow.workflow_id, fact.agent, step_id)
        if fact.final:
            self._retire(workflow, intake)
        else:
            self._predict(workflow, intake)
        return Status.ACCEPTED, ""

    def _tool(self, fact: ToolFact, intake: Intake) -> tuple[Status, str]:
        workflow = self._workflows.get(fact.workflow_id)
        if workflow is None:
            return Status.MISSING, "workflow is not live"
        self._touch(workflow)
        if fact.agent not in workflow.agents:
            return Status.MISSING, "this agent has not run in the workflow"
        key = (fact.agent, fact.call_id or fact.tool)
        if fact.event == "end":
            known = workflow.pins.pop(key, None) is not None
            self._predict(workflow, intake)
            return (Status.ACCEPTED, "") if known else (Status.MISSING, "no such tool call is pinned (any more)")
        pin = self._settings.pin
        if len(workflow.pins) >= pin.max_calls and key not in workflow.pins:
            return Status.REJECTED, f"workflow already waits for {len(workflow.pins)} calls (pin.max_calls)"
        wanted_s = fact.expected_s if fact.expected_s is not None else pin.default_ttl_s
        ttl_s = min(wanted_s, pin.max_ttl_s)
        workflow.pins[key] = self._clock() + ttl_s
        self._predict(workflow, intake)
        if ttl_s < wanted_s:
            return Status.CLIPPED, f"pinned for {ttl_s:g} s (pin.max_ttl_s), {wanted_s:g} s were expected"
        return Status.ACCEPTED, ""

    def _open(self, fact: StepFact, intake: Intake) -> Workflow:
        while len(self._workflows) >= self._settings.intake.max_workflows:
            self._retire(next(iter(self._workflows.values())), intake)
        workflow = Workflow(
            workflow_id=fact.workflow_id,
            workflow_type=fact.workflow_type,
            parent_id=fact.parent_workflow_id,
            tenant=fact.tenant,
            last_seen_s=self._clock(),
        )
        self._workflows[fact.workflow_id] = workflow
        state = self._types.setdefault(fact.workflow_type, _TypeState())
        state.arrivals.start()
        state.live += 1
        self._announce_next(fact.workflow_type, state, intake)
        return workflow

    def _announce_next(self, workflow_type: str, state: _TypeState, intake: Intake) -> None:
        """Predict the workflow of this type that has not started yet."""
        known = self.graphs.find(workflow_type)
        if known is None or state.arrivals.gap_steps is None:
            return
        steps = steps_to_execution(known.graph, frozenset({START}))
        claims = tuple(
            ClaimPrediction(agent=agent, steps=round(count + state.arrivals.gap_steps, 1))
            for agent, count in sorted(steps.items())
            if count is not None and agent != END
        )
        update = WorkflowUpdate(workflow_id=workflow_type, workflow_type=workflow_type, claims=claims, expected=True)
        if update != state.announced:
            state.announced = update
            intake.updates.append(update)

    def _touch(self, workflow: Workflow) -> None:
        """Note a sign of life; a sub-workflow is one for its parents too."""
        now_s = self._clock()
        seen: set[str] = set()
        current: Workflow | None = workflow
        while current is not None and current.workflow_id not in seen:
            seen.add(current.workflow_id)
            current.last_seen_s = now_s
            self._workflows.move_to_end(current.workflow_id)
            current = self._workflows.get(current.parent_id) if current.parent_id else None

    def _predict(self, workflow: Workflow, intake: Intake) -> None:
        known = self.graphs.find(workflow.workflow_type)
        if known is not None:
            workflow.follow(known.graph)
        update = workflow.update(self._settings.eviction.prediction)
        if update != workflow.sent:
            workflow.sent = update
            intake.updates.append(update)

    def _retire(self, workflow: Workflow, intake: Intake) -> None:
        learner = self.graphs.learner(workflow.workflow_type)
        if learner is not None:
            learner.finish(workflow.workflow_id)
        del self._workflows[workflow.workflow_id]
        state = self._types[workflow.workflow_type]
        state.live -= 1
        state.last_seen_s = self._clock()
        intake.updates.append(
            WorkflowUpdate(workflow_id=workflow.workflow_id, workflow_type=workflow.workflow_type, retired=True)
        )


def _latest(updates: list[WorkflowUpdate]) -> list[WorkflowUpdate]:
    """Leave out predictions that a later one of the same facts replaces; ends stay where they are."""
    kept: list[WorkflowUpdate] = []
    replaced: set[tuple[str, bool]] = set()
    for update in reversed(updates):
        key = (update.workflow_id, update.expected)
        if update.retired or key not in replaced:
            kept.append(update)
        if update.retired:
            replaced.discard(key)
        else:
            replaced.add(key)
    return kept[::-1]
