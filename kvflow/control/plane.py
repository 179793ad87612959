"""The control plane: what the facts of live workflows predict."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from kvflow.config import Settings
from kvflow.control.coming import Coming
from kvflow.control.forecast import MOST_AHEAD, Forecaster
from kvflow.control.graphs import GraphBook
from kvflow.control.intake import Intake, asking
from kvflow.control.quotes import Quotes
from kvflow.control.table import WorkflowTable, parent_problem
from kvflow.control.threads import Threads
from kvflow.control.workflow import Context, ToolWait, Workflow
from kvflow.graph import END
from kvflow.hints import VERBS, DecodedFact, FeedbackFact, Outcome, Status, StepFact, ToolFact
from kvflow.hints.models import FACT_MODELS, SEGMENTS_TYPE
from kvflow.predict import WorkflowUpdate

_LEAST_REVISIT_S, _REVISIT_SHARE = 0.25, 0.1
"""Least time between two predictions of a workflow of which nothing is heard, and as a share of the silence so far."""
_UNLIKELY = 0.02
"""Nobody says that an inferred workflow has ended: it has if it comes back no likelier than this."""
_MOST_CLAIMS, _AHEAD_SHARE = 65_536, 0.5
"""Claims of all live workflows, which schedulers go through again and again. Beyond this share of them, agents without
context or pin get none: contexts come with requests, and must find room whatever graphs there are."""
_MOST_EXPIRE_S = 0.05
"""How long requests may have to wait while predictions are made again."""


class ControlPlane:
    """Turns facts into predictions. Not thread-safe: everything happens on the event loop's thread.

    Args:
        settings: limits, time-outs and the kind of prediction.
        clock: monotonic seconds.
        quotes: finds answers in prompts of those who declare nothing; None for not at all.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float], quotes: Quotes | None = None) -> None:
        self.graphs = GraphBook(learn=settings.graph.learn, max_types=settings.graph.max_types)
        self.forecaster = Forecaster()
        self.outcome_counts: Counter[tuple[str, str]] = Counter()
        self._settings = settings
        self._clock = clock
        self._workflows = WorkflowTable()
        self.threads = Threads(settings.intake.max_workflows, quotes=quotes)
        self._untold: list[WorkflowUpdate] = []
        self._unseen: deque[str] = deque()
        self._claims = 0
        self._let_go: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._coming = Coming(self.graphs, self.forecaster, clock, idle_s=settings.intake.arrival_idle_s)

    def __len__(self) -> int:
        return len(self._workflows)

    def take(self, facts: Sequence[DecodedFact], *, with_request: bool = False) -> Intake:
        """Take facts in the order in which they happened.

        Args:
            facts: what clients state.
            with_request: the facts came with a request, which is that of the last step they start.
        """
        intake = Intake()
        try:
            self._take(facts, intake, asking=asking(facts) if with_request else None)
        except Exception:
            for context in intake.asked:  # nobody will say that it has been answered
                context.arrivals_s.pop()
            raise
        intake.updates.extend(self._tell())
        return intake

    def _take(self, facts: Sequence[DecodedFact], intake: Intake, *, asking: StepFact | None) -> None:
        for item in facts:
            fact = item.fact
            if isinstance(fact, StepFact):
                status, reason = self._step(fact, intake, asks=fact is asking)
            elif isinstance(fact, ToolFact):
                status, reason = self._tool(fact, intake)
            else:
                status, reason = self._feedback(fact, intake)
            intake.outcomes.append(
                Outcome(action_id=item.action_id, action_type=item.action_type, status=status, reason=reason)
            )
        self.count(intake.outcomes)
        self._untold += self._coming.announce()
        for workflow in intake.changed.values():
            if self._workflows.get(workflow.workflow_id) is workflow:
                self._predict(workflow)

    def answered(self, workflow_id: str, agent: str, asked: Context | None = None, *, given_up: bool = False) -> bool:
        """A request of an agent has been answered, or given up; tells whether that is of a workflow that lives.

        What that predicts is told with what is heard of the workflow next, or else by the next :meth:`expire`. Until
        then the claim says when the context is expected to be used again (`ClaimPrediction.pause_s`).

        Args:
            workflow_id: whose request it was.
            agent: of that workflow.
            asked: the context it was for (`Intake.asked`), if known: one workflow may have ended, and another of its
                id have begun since.
            given_up: nobody has had anything of its answer, so that it does not count as a use of the context; who
                asks again, as SDKs do by themselves, does not return to it.
        """
        self.threads.answered(workflow_id, agent)
        workflow = self._workflows.get(workflow_id)
        context = workflow.contexts.get(agent) if workflow is not None else None
        if workflow is None or context is None or (asked is not None and asked is not context):
            return False
        if context.arrivals_s:
            now_s = self._clock()
            context.arrivals_s.popleft()
            context.answered_s, context.given_up = now_s, given_up
            context.told = workflow_id in self.threads  # nobody tells of these
            context.turns -= given_up
            context.last_tool = context.last_tool if given_up else ""
            self._workflows.touch(workflow, now_s)
            workflow.answered = True
        return True

    def finish(self, workflow_id: str) -> list[WorkflowUpdate]:
        """End a workflow whose final request has been answered."""
        workflow = self._workflows.get(workflow_id)
        if workflow is not None:
            self._retire(workflow)
        return self._tell()

    def count(self, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes by action type and status; foreign action types are counted together."""
        for outcome in outcomes:
            known = outcome.action_type in (*FACT_MODELS, *VERBS, SEGMENTS_TYPE)
            self.outcome_counts[outcome.action_type if known else "other", outcome.status] += 1

    def expire(self) -> list[WorkflowUpdate]:
        """Let pins and workflows expire, and tell what answers predict; to be called a few times a second.

        Looks at workflows for 50 ms at most, and at those that it has not come to when it is called next.
        Cost: O(live workflows).
        """
        now_s = self._clock()
        self._unseen = self._unseen or deque(workflow.workflow_id for workflow in self._workflows)
        while self._unseen and self._clock() - now_s <= _MOST_EXPIRE_S:
            workflow = self._workflows.get(self._unseen.popleft())
            if workflow is not None:
                self._expire(workflow, now_s)
        self._untold += self._coming.expire()
        return self._tell()

    def _expire(self, workflow: Workflow, now_s: float) -> None:
        idle = now_s - workflow.last_seen_s > self._settings.intake.workflow_idle_s
        if idle and not workflow.at_work and not workflow.waits_as_told(now_s):
            self._retire(workflow, ended=False, over=not workflow.waits)
        elif workflow.workflow_id in self.threads and _unlikely(workflow):
            self._retire(workflow, ended=False, over=None)  # a guess, from which nothing is to be learned
        else:
            expired = workflow.expire_pins(now_s)
            if expired or workflow.answered or now_s >= workflow.revisit_s:
                self._predict(workflow)

    def view(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Describe the live workflows, or so many of them, the one that was heard of last first."""
        for workflow in list(islice(reversed(self._workflows), limit)):
            if workflow.answered:
                with suppress(Exception):  # whatever it is, it must not keep anybody from looking
                    self._predict(workflow)
        now_s = self._clock()
        return [workflow.view(now_s) for workflow in islice(reversed(self._workflows), limit)]

    def _step(self, fact: StepFact, intake: Intake, *, asks: bool) -> tuple[Status, str]:
        workflow = self._workflows.get(fact.workflow_id)
        if fact.agent == END:
            if workflow is None:
                return Status.MISSING, "workflow is not live"
            self._retire(workflow)
            return Status.ACCEPTED, ""
        if fact.event == "end":
            if workflow is None:
                return Status.MISSING, "workflow is not live"
            return self._step_end(workflow, fact, intake)
        if workflow is None:
            workflow = self._open(fact)
        if fact.agent not in workflow.agents and len(workflow.agents) >= self._settings.intake.max_agents:
            return Status.REJECTED, f"workflow already has {len(workflow.agents)} agents (intake.max_agents)"
        workflow.tenant = workflow.tenant or fact.tenant
        self._workflows.hear(workflow, fact.agent, self._clock())
        known_step, over_s = workflow.latest, workflow.ended_s
        ends_told = self.forecaster.hears_ends(workflow)
        step_id, answered = workflow.start(fact.agent, fact.step_id, ends_told=ends_told)
        workflow.began(fact.agent, step_id, self._clock())
        workflow.final = (fact.agent, step_id) if fact.final else workflow.final
        if asks:
            intake.asked.append(self._ask(workflow, fact.agent))
        self.forecaster.tools_ended(workflow, answered, self._clock())
        if workflow.latest != known_step:
            self._step_over(workflow, known_step, over_s, told=fact.step_id is not None)
        learner = self.graphs.learner(workflow.workflow_type)
        if learner is not None:
            learner.start(workflow.workflow_id, fact.agent, step_id)
        self._change(workflow, intake)
        return Status.ACCEPTED, parent_problem(workflow, fact)

    def _step_over(
        self, workflow: Workflow, step: tuple[str, str] | None, ended_s: float | None, *, told: bool
    ) -> None:
        """The next step begins. Learn from one before that nobody says to have ended, if nothing of it is in flight.

        Args:
            workflow: whose steps they are.
            step: the one before.
            ended_s: when that ended; None if it has not, as far as known.
            told: the client tells steps apart, and so when they end.
        """
        self._coming.stepped(workflow.workflow_type)
        if step is None:
            return
        if ended_s is not None:
            self.forecaster.step_followed(workflow, step[0], self._clock() - ended_s)
        context = workflow.contexts.get(step[0])
        if not told and (context is None or not context.arrivals_s):
            started_s = workflow.started_s.pop(step, None)
            if started_s is not None:
                self.forecaster.step_ended(workflow, step[0], self._clock() - started_s)

    def _ask(self, workflow: Workflow, agent: str) -> Context:
        now_s = self._clock()
        context = workflow.contexts.get(agent)
        if context is None:
            answered_s = self._let_go.pop((workflow.workflow_id, agent), None)
            context = workflow.contexts[agent] = Context(answered_s=answered_s)
        self.forecaster.asked(workflow, agent, context, now_s)
        context.arrivals_s.append(now_s)
        context.turns += 1
        return context

    def _step_end(self, workflow: Workflow, fact: StepFact, intake: Intake) -> tuple[Status, str]:
        self._workflows.hear(workflow, fact.agent, self._clock())
        step_id = workflow.end(fact.agent, fact.step_id)
        started_s = workflow.started_s.pop((fact.agent, step_id or ""), None)
        if started_s is not None:
            self.forecaster.step_ended(workflow, fact.agent, self._clock() - started_s)
        workflow.step_over(self._clock())
        learner = self.graphs.learner(workflow.workflow_type)
        if learner is not None:
            learner.end(workflow.workflow_id, fact.agent, step_id)
        if fact.final or (fact.final is None and workflow.final == (fact.agent, step_id)):
            self._retire(workflow)
        else:
            self._change(workflow, intake)
        return Status.ACCEPTED, ""

    def _feedback(self, fact: FeedbackFact, intake: Intake) -> tuple[Status, str]:
        """Pass an outcome on; the workflow may be over by now, and known to the schedulers only."""
        if self._settings.reuse.mode == "off":
            return Status.UNSUPPORTED, "reuse.mode is off, and outcomes judge nothing but reuse"
        intake.feedback.append((fact.workflow_id, fact.outcome))
        return Status.ACCEPTED, ""

    def _tool(self, fact: ToolFact, intake: Intake) -> tuple[Status, str]:
        workflow = self._workflows.get(fact.workflow_id)
        if workflow is None:
            return Status.MISSING, "workflow is not live"
        self._workflows.hear(workflow, fact.agent, self._clock())
        key = (fact.agent, fact.call_id or fact.tool)
        now_s = self._clock()
        wait = ToolWait(
            tool=fact.tool, verb=fact.verb, started_s=now_s, expected_s=fact.expected_s, step_id=fact.step_id
        )
        if fact.event == "end":
            return self._tool_end(workflow, key, wait, fact.took_s, intake)
        pin = self._settings.pin
        workflow.wait_for(key, wait, pin.max_calls)
        if fact.agent not in workflow.agents:
            return Status.ACCEPTED, "nothing is pinned: the agent has not run yet"
        if fact.agent in workflow.contexts:
            workflow.contexts[fact.agent].last_tool = fact.tool
        wanted_s = fact.expected_s
        if wanted_s is None:
            wanted_s = self.forecaster.ttl_s(workflow, wait) if pin.ttl == "learned" else pin.default_ttl_s
        ttl_s = min(wanted_s, pin.max_ttl_s)
        if ttl_s > 0:
            workflow.pins[key] = now_s + ttl_s
        self._change(workflow, intake)
        if ttl_s < wanted_s:
            return Status.CLIPPED, f"pinned for {ttl_s:g} s (pin.max_ttl_s), {wanted_s:g} s were expected"
        return Status.ACCEPTED, ""

    def _tool_end(
        self, workflow: Workflow, key: tuple[str, str], told: ToolWait, took_s: float | None, intake: Intake
    ) -> tuple[Status, str]:
        wait = workflow.waits.pop(key, None)
        workflow.pins.pop(key, None)
        self.forecaster.hear_end(workflow)
        if wait is None and took_s is not None:
            self.forecaster.tools_ended(workflow, [told], self._clock(), took_s)
        if wait is None:
            return Status.MISSING, "no such tool call is under way (any more)"
        self.forecaster.tools_ended(workflow, [wait], self._clock(), took_s)
        self._change(workflow, intake)
        return Status.ACCEPTED, ""

    def _open(self, fact: StepFact) -> Workflow:
        while len(self._workflows) >= self._settings.intake.max_workflows:
            self._retire(self._workflows.idle_longest(self._clock()), ended=False, over=False)
        self._coming.started(fact.workflow_type)
        return self._workflows.open(fact, self._clock())

    def tenant_of(self, workflow_id: str) -> str:
        """Whose a live workflow is, as its program or else itself says; empty if neither does."""
        return self._workflows.tenant_of(workflow_id)

    def type_of(self, workflow_id: str) -> str | None:
        """The type of a live workflow, which the first fact of it says."""
        workflow = self._workflows.get(workflow_id)
        return workflow.workflow_type if workflow is not None else None

    def program_of(self, workflow_id: str) -> str:
        """The workflow at the root of a live one."""
        return self._workflows.program_of(workflow_id)

    def _change(self, workflow: Workflow, intake: Intake) -> None:
        """Predict it when all facts are in; its cursor has to be in place before the next of them."""
        self._follow(workflow)
        intake.changed[workflow.workflow_id] = workflow

    def _follow(self, workflow: Workflow) -> None:
        known = self.graphs.find(workflow.workflow_type)
        if known is not None and not (known.declared and workflow.has_own_graph(known.graph)):
            workflow.follow(known.graph)
            workflow.declared = known.declared

    def _predict(self, workflow: Workflow) -> None:
        workflow.revisit_s = math.inf  # should it fail, others have their turn
        self._follow(workflow)
        self.forecaster.followed(workflow)
        now_s = self._clock()
        workflow.answered = workflow.answered and workflow.is_untold(now_s)  # then once more
        steps = workflow.steps(self._settings.eviction.prediction)
        others = self._claims - workflow.claims_sent
        most_ahead = MOST_AHEAD if others < _AHEAD_SHARE * _MOST_CLAIMS else 0
        update = WorkflowUpdate(
            workflow_id=workflow.workflow_id,
            workflow_type=workflow.workflow_type,
            claims=self.forecaster.claims(workflow, steps, now_s, most_ahead),
        )
        workflow.revisit_s = _revisit_s(update, now_s, silent_s=now_s - workflow.last_seen_s)
        if update != workflow.sent:
            workflow.sent = update
            self._claims = others + workflow.claims_sent
            self._untold.append(update)
        while self._claims > _MOST_CLAIMS:
            self._retire(self._workflows.idle_longest(now_s), ended=False, over=False)

    def _retire(self, workflow: Workflow, *, ended: bool = True, over: bool | None = True) -> None:
        """Forget a workflow, and then learn from it; see :meth:`Forecaster.workflow_ended`."""
        self._workflows.remove(workflow)
        self._claims -= workflow.claims_sent
        self._coming.ended(workflow.workflow_type)
        self._untold.append(
            WorkflowUpdate(workflow_id=workflow.workflow_id, workflow_type=workflow.workflow_type, retired=True)
        )
        self.threads.ended(workflow.workflow_id)
        if not ended:
            self._remember(workflow)
        self.forecaster.workflow_ended(workflow, ended=ended, over=over)
        learner = self.graphs.learner(workflow.workflow_type)
        if learner is not None:
            (learner.finish if ended else learner.forget)(workflow.workflow_id)

    def _remember(self, workflow: Workflow) -> None:
        """Keep when the contexts of a workflow that may come back were answered: else long pauses are never learned."""
        for agent, context in workflow.contexts.items():
            if context.answered_s is not None and not context.arrivals_s:
                self._let_go[workflow.workflow_id, agent] = context.answered_s
        while len(self._let_go) > self._settings.intake.max_workflows:
            self._let_go.popitem(last=False)

    def _tell(self) -> list[WorkflowUpdate]:
        """What has changed since it was told last, in order; what an exception was in the way of is told late."""
        untold, self._untold = self._untold, []
        return untold


def _unlikely(workflow: Workflow) -> bool:
    """Whether no context of a workflow is in use, or at all likely to be used again."""
    told = workflow.sent.claims if workflow.sent is not None else ()
    claims = [claim for claim in told if claim.agent in workflow.contexts]
    return all(claim.since_s is None and claim.probability < _UNLIKELY for claim in claims) and bool(claims)


def _revisit_s(update: WorkflowUpdate, now_s: float, silent_s: float) -> float:
    """When to look again: as soon as something is overdue, because what is late is expected later still."""
    due_s = [claim.due_s for claim in update.claims if claim.due_s is not None]
    return max(min(due_s), now_s + max(_LEAST_REVISIT_S, _REVISIT_SHARE * silent_s)) if due_s else math.inf
