"""Forecasts: what the learned models say about every claim of one workflow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, partial
from heapq import nsmallest

from kvflow.control.step_lengths import StepLengths
from kvflow.control.workflow import Context, ToolWait, Workflow
from kvflow.graph import NextUse
from kvflow.predict import ClaimPrediction, DurationModel, Durations, Pace, Survival, continuum_ttl
from kvflow.predict.bounds import touched
from kvflow.predict.endings import Endings
from kvflow.predict.next_use import Wait, mean_ahead_s, next_use, still_alive

MOST_AHEAD = 64
"""Agents of one workflow that are predicted although they hold nothing yet. What they may find is the fixed prompt that
all workflows of the type share; of those that come later nothing has to be loaded, or kept for them, for long."""
_RETURN = "return"
_GAP = "gap"
_LEAST_PROBABILITY = 0.01
_DIES = 0.02
"""Share of pauses that no client comes back from, before anything is known."""
_WAITED_WEIGHT = 0.05
_MOST_TYPES = 1024
"""Of which it is known that their clients say when tools end, or that they go through their graphs more than once."""


@dataclass(slots=True)
class Forecaster:
    """The models of one control plane, fed by its facts.

    Attributes:
        tools: how long tools take, by tool and verb.
        returns: how long it takes until an agent's context is used again, whatever happens in between.
        between: how long it takes from the end of an agent's step until the next step begins ...
        gaps: ... and how that varies.
        pace: how long agents' steps take.
        survival: whether contexts are used again, by how often they have been.
        endings: the same, by the tool that was called last.
        queue_s: Continuum's T, the mean queueing delay, as far as anyone has told: the simulator of requests whose
            context was gone, SGLang's schedulers of all.
        reload_s: mean time to bring back a context that was evicted.
    """

    tools: DurationModel = field(default_factory=DurationModel)
    returns: DurationModel = field(default_factory=DurationModel)
    between: Pace = field(default_factory=partial(Pace, cold_start_s=0.0))
    gaps: DurationModel = field(default_factory=DurationModel)
    pace: Pace = field(default_factory=Pace)
    survival: Survival = field(default_factory=Survival)
    endings: Endings = field(default_factory=Endings)
    queue_s: float = 0.0
    reload_s: float = 0.0
    _hears_ends: OrderedDict[str, bool] = field(default_factory=OrderedDict)
    _restart: OrderedDict[str, bool] = field(default_factory=OrderedDict)

    def waited(self, queue_s: float, reload_s: float) -> None:
        """Learn what one request whose context was gone had to wait for."""
        self.queue_s += _WAITED_WEIGHT * (queue_s - self.queue_s)
        self.reload_s += _WAITED_WEIGHT * (reload_s - self.reload_s)

    def ttl_s(self, workflow: Workflow, wait: ToolWait) -> float:
        """How long Continuum would keep a context for a tool call."""
        durations = self._durations(workflow, wait)
        eta = self.survival.eta(workflow.workflow_type)
        return continuum_ttl(durations, queue_s=self.queue_s, eta=eta, reload_s=self.reload_s)

    def hear_end(self, workflow: Workflow) -> None:
        """A client says that a tool has ended: those of the type do."""
        touched(self._hears_ends, workflow.workflow_type, _MOST_TYPES, lambda: True)

    def followed(self, workflow: Workflow) -> None:
        """Learn whether workflows of the type go through their graph more than once."""
        if workflow.declared and workflow.cursor is not None and workflow.cursor.restarted:
            touched(self._restart, workflow.workflow_type, _MOST_TYPES, lambda: True)

    def hears_ends(self, workflow: Workflow) -> bool:
        """Whether clients of the type say when tools end."""
        return workflow.workflow_type in self._hears_ends

    def tools_ended(
        self, workflow: Workflow, waits: Iterable[ToolWait], now_s: float, took_s: float | None = None
    ) -> None:
        """Learn how long tool calls took, as told, or else as it was heard of them."""
        for wait in waits:
            seconds = max(0.0, now_s - wait.started_s) if took_s is None else took_s
            self.tools.observe(wait.tool, wait.verb, seconds, workflow=workflow.workflow_id)

    def asked(self, workflow: Workflow, agent: str, context: Context, now_s: float) -> None:
        """Learn how long a context was left alone; of one whose request was given up that is known already."""
        if context.given_up:
            context.given_up = False
            return
        if context.turns:
            self.endings.observe(workflow.workflow_type, agent, context.last_tool, last=False)
        if context.answered_s is not None and not context.arrivals_s:
            self.returns.observe(_RETURN, _key(workflow, agent), max(0.0, now_s - context.answered_s))

    def step_ended(self, workflow: Workflow, agent: str, seconds: float) -> None:
        """Learn how long a step took, tools included."""
        self.pace.observe_step(workflow.workflow_id, workflow.workflow_type, agent, seconds)

    def step_followed(self, workflow: Workflow, agent: str, seconds: float) -> None:
        """Learn how long after a step of an agent the next one began."""
        self.between.observe_step(workflow.workflow_id, workflow.workflow_type, agent, seconds)
        self.gaps.observe(_GAP, _key(workflow, agent), seconds)

    def workflow_ended(self, workflow: Workflow, *, ended: bool, over: bool | None) -> None:
        """Learn how often the workflow's contexts were used.

        Args:
            workflow: which is over, or lost sight of.
            ended: its client has said so.
            over: its contexts are not used again, as where nobody says that workflows end and nothing has been heard of
                one for long. False if they may be, so that all that is known is that they have been used so often; None
                if even that says nothing, because it has been guessed from how often they were.
        """
        for agent, context in workflow.contexts.items():
            if over is not None:
                self.survival.observe(workflow.workflow_type, agent, context.turns, ended=over)
            if ended:
                self.endings.observe(workflow.workflow_type, agent, context.last_tool, last=True)
        self.pace.forget(workflow.workflow_id)
        self.between.forget(workflow.workflow_id)

    def claims(
        self, workflow: Workflow, steps: dict[str, float | None], now_s: float, most_ahead: int = MOST_AHEAD
    ) -> tuple[ClaimPrediction, ...]:
        """Predict the next use of every context the workflow may still use.

        Args:
            workflow: the run.
            steps: steps-to-execution of every agent, 0 for those that run; as the ``steps`` policy wants them.
            now_s: the time.
            most_ahead: agents to predict, the soonest, of those that have neither a context nor a pin.
        """
        ahead = workflow.cursor.next_use if workflow.cursor is not None else {}
        pinned = {agent for agent, _ in workflow.pins}
        lengths = StepLengths(ahead, lambda agent: self._turn_s(workflow, agent))
        alive = cache(partial(self._alive, workflow, now_s))
        predictions = []
        for agent in _foreseen(steps, pinned | workflow.contexts.keys(), most_ahead):
            count = steps.get(agent)
            if count is None and agent not in pinned and not self._may_return(workflow, agent):
                continue
            context = workflow.contexts.get(agent)
            if context is not None and context.arrivals_s:
                predictions.append(
                    ClaimPrediction(
                        agent=agent,
                        steps=count,
                        pinned=agent in pinned,
                        probability=self.survival.again(workflow.workflow_type, agent, context.turns),
                        since_s=context.arrivals_s[0],
                        requests=len(context.arrivals_s),
                        pause_s=self._pause_s(workflow, agent, context),
                    )
                )
                continue
            probability, due_s = self._next(workflow, agent, count, ahead.get(agent), lengths, alive, now_s)
            predictions.append(
                ClaimPrediction(agent=agent, steps=count, pinned=agent in pinned, probability=probability, due_s=due_s)
            )
        return tuple(predictions)

    def _next(
        self,
        workflow: Workflow,
        agent: str,
        steps: float | None,
        ahead: NextUse | None,
        lengths: StepLengths,
        alive: Callable[[], float],
        now_s: float,
    ) -> tuple[float, float]:
        """Probability and time of the next use of a context that no request uses now."""
        context = workflow.contexts.get(agent)
        later = ahead.probability if ahead is not None else 0.0
        waits = [wait for (owner, _), wait in workflow.waits.items() if owner == agent]
        # Its step goes on, or waits for a tool all the same: the tool, or the client, has the word.
        if (waits or not steps) and context is not None and context.turns:
            again = self._again(workflow, agent, context, now_s)
            # of steps side by side, whichever goes on first uses the context
            after = partial(self._after, workflow, agent, context)
            uses = [_goes_on(own, again, now_s, after) for own in _side_by_side(waits, context)]
            probability = max(probability for probability, _ in uses)
            if workflow.children:  # it waits for a sub-workflow, and silence says nothing
                probability = max(probability, again)
            return probability, round(min(due_s for _, due_s in uses), 2)
        if steps == 0:  # its step has begun, and has asked for nothing yet
            return alive(), round(now_s, 1)
        if ahead is None:  # only the graph's earliest step is known, or nothing at all
            later = 1.0 if steps is not None else 0.0
        if self._is_declared(workflow, agent) or context is None or not context.turns:
            later *= alive()
        else:
            returns, due_s = self._return(workflow, agent, context, now_s)
            if ahead is None or ahead.steps is None or _is_between_runs(workflow):
                return returns, due_s
            later = max(returns, later * alive()) if workflow.declared else returns
        if ahead is None or ahead.steps is None or later < _LEAST_PROBABILITY:
            return later, round(now_s + (steps or 0.0) * self._turn_s(workflow, agent), 1)
        left_s = max(self._step_left_s(workflow, agent, step, now_s) for step in workflow.steps_before(agent))
        return later, round(now_s + mean_ahead_s(ahead.steps, left_s, lengths.before_s(agent, ahead.steps)), 1)

    def _after(
        self,
        workflow: Workflow,
        agent: str,
        context: Context,
        waits: Sequence[ToolWait],
        again: float,
        now_s: float,
    ) -> tuple[float, float]:
        """Probability and mean time of the next use after all of some tools.

        While none is, one may begin that nobody has told of yet: then by how such contexts have returned so far.
        """
        if len(waits) > 1:
            elapsed = [max(0.0, now_s - wait.started_s) for wait in waits]
            tools = [
                Wait(durations=self._durations(workflow, wait), elapsed_s=seconds)
                for wait, seconds in zip(waits, elapsed, strict=True)
            ]
            forecast = next_use(again=again, tools=tools)
            return forecast.probability, forecast.mean_s
        if waits:
            durations, elapsed_s = self._durations(workflow, waits[0]), max(0.0, now_s - waits[0].started_s)
        else:
            durations = self.returns.of(_RETURN, _key(workflow, agent))
            elapsed_s = max(0.0, now_s - (context.answered_s or now_s))
        return still_alive(again, durations.longer_than(elapsed_s)), durations.residual_s(elapsed_s)

    def _may_return(self, workflow: Workflow, agent: str) -> bool:
        """Whether an agent of which nobody knows when it runs may run again: a declared graph knows of those it has."""
        return agent in workflow.contexts and not self._is_declared(workflow, agent)

    def _is_declared(self, workflow: Workflow, agent: str) -> bool:
        """Whether a graph that somebody has declared says when an agent runs.

        Of what goes through its graph again and again, as conversations do, it does not say when, nor whether.
        """
        cursor = workflow.cursor
        if cursor is None or not workflow.declared:
            return workflow.declared
        goes_on = cursor.restarted or (workflow.workflow_type in self._restart and cursor.at_end)
        return agent in cursor.graph and not goes_on

    def _return(self, workflow: Workflow, agent: str, context: Context, now_s: float) -> tuple[float, float]:
        """Forecast from experience alone: an undeclared graph says less than how such agents have returned so far."""
        returns = self.returns.of(_RETURN, _key(workflow, agent))
        elapsed_s = max(0.0, now_s - (context.answered_s or now_s))
        alive = still_alive(self._again(workflow, agent, context, now_s), returns.longer_than(elapsed_s))
        return alive, round(now_s + returns.residual_s(elapsed_s), 2)

    def _pause_s(self, workflow: Workflow, agent: str, context: Context) -> float | None:
        """How long a context will be left alone once its request has been answered, going by experience."""
        if len(context.arrivals_s) > 1:
            return None
        return round(self.returns.of(_RETURN, _key(workflow, agent)).residual_s(0.0), 2)

    def _again(self, workflow: Workflow, agent: str, context: Context, now_s: float) -> float:
        """Probability that a context is used at least once more."""
        before = self.survival.again(workflow.workflow_type, agent, context.turns)
        if not context.last_tool and context.is_untold(now_s):
            return before
        return self.endings.again(workflow.workflow_type, agent, context.last_tool, before)

    def _durations(self, workflow: Workflow, wait: ToolWait) -> Durations:
        return self.tools.of(wait.tool, wait.verb, workflow=workflow.workflow_id)

    def _step_left_s(self, workflow: Workflow, agent: str, step: tuple[str, str] | None, now_s: float) -> float:
        """What is left of a step before an agent's; once it should be over, as long as such steps vary (exponential).

        So it is of what lies between two steps; and what is later than that may be as late again.

        Args:
            workflow: whose steps they are.
            agent: who comes after it.
            step: which, by agent and step id; None if none is known.
            now_s: the time.
        """
        if step is None:
            return self._step_s(workflow, agent)
        if step not in workflow.started_s:  # it has ended, and the next one is to begin
            ended_s = now_s if workflow.ended_s is None else workflow.ended_s
            silent_s = max(0.0, now_s - ended_s)
            left_s = self.between.step_s(workflow.workflow_id, workflow.workflow_type, step[0]) - silent_s
            return max(abs(left_s), self.between.spread_s(workflow.workflow_type, step[0]))
        step_s = self._step_s(workflow, step[0])
        passed_s = max(0.0, now_s - workflow.started_s[step])
        return min(step_s, max(step_s - passed_s, self.pace.spread_s(workflow.workflow_type, step[0])))

    def _alive(self, workflow: Workflow, now_s: float) -> float:
        """Probability that a run goes on which says nothing: its client may have died, and its graph does not know."""
        if workflow.at_work or workflow.waits_as_told(now_s) or workflow.latest is None:
            return 1.0
        answered_s = [context.answered_s for context in workflow.contexts.values() if context.answered_s is not None]
        silent_s = max(0.0, now_s - max([workflow.last_seen_s, *answered_s]))
        latest = _key(workflow, workflow.latest[0])
        known = self.returns.of(_RETURN, latest), self.gaps.of(_GAP, latest)
        likely = max(durations.longer_than(silent_s) for durations in known)
        for wait in workflow.waits.values():
            likely = max(likely, self._durations(workflow, wait).longer_than(max(0.0, now_s - wait.started_s)))
        return still_alive(1 - _DIES, likely)

    def typical_turn_s(self, workflow_type: str, agent: str) -> float:
        """From the beginning of an agent's step to that of the next one, in any workflow of a type."""
        return self.pace.typical_s(workflow_type, agent) + self.between.typical_s(workflow_type, agent)

    def _turn_s(self, workflow: Workflow, agent: str) -> float:
        """From the beginning of an agent's step to that of the next one."""
        between_s = self.between.step_s(workflow.workflow_id, workflow.workflow_type, agent)
        return self._step_s(workflow, agent) + between_s

    def _step_s(self, workflow: Workflow, agent: str) -> float:
        return self.pace.step_s(workflow.workflow_id, workflow.workflow_type, agent)


def _foreseen(steps: Mapping[str, float | None], own: Set[str], most: int) -> list[str]:
    """Agents to predict, sorted: those that hold something, and so many others, the soonest."""
    others = [(count, agent) for agent, count in steps.items() if count is not None and agent not in own]
    return sorted(own | {agent for _, agent in nsmallest(most, others)})


def _goes_on(
    waits: Sequence[ToolWait],
    again: float,
    now_s: float,
    after: Callable[[Sequence[ToolWait], float, float], tuple[float, float]],
) -> tuple[float, float]:
    """Probability and time of a step's next request, which comes when the last of its tools has answered.

    The client knows better how long a tool takes, if it says so, and until then silence says nothing.
    """
    others = [wait for wait in waits if wait.told_s <= now_s]
    told_s = max((wait.told_s for wait in waits), default=now_s)
    if waits and not others:
        return again, told_s
    probability, left_s = after(others, again, now_s)
    return again if told_s > now_s else probability, max(told_s, now_s + left_s)


def _side_by_side(waits: Sequence[ToolWait], context: Context) -> list[list[ToolWait]]:
    """What each step of an agent waits for; one that asks while others wait, if it has since they do, for nothing."""
    steps: dict[str | None, list[ToolWait]] = {}
    for wait in waits:
        steps.setdefault(wait.step_id, []).append(wait)
    asks = all(wait.started_s < (context.answered_s or 0.0) for wait in waits)
    return [*steps.values(), []] if asks else [*steps.values()]


def _is_between_runs(workflow: Workflow) -> bool:
    """Whether nothing runs of what goes through a declared graph again and again; no graph tells how long."""
    return (
        workflow.declared and workflow.cursor is not None and workflow.cursor.restarted and not workflow.cursor.active
    )


def _key(workflow: Workflow, agent: str) -> str:
    return f"{workflow.workflow_type}/{agent}"[:128]
