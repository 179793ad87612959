"""How well the time of the next use of a context is predicted."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvflow.graph import END
from kvflow.predict.durations import DurationModel
from kvflow.predict.endings import Endings
from kvflow.predict.histogram import bin_of
from kvflow.predict.next_use import NextUseForecast, StepsAhead, Wait, next_use
from kvflow.predict.pace import Pace
from kvflow.predict.survival import Survival
from kvflow.predict.trials.look_ahead import first_uses
from kvflow.predict.trials.scores import ReliabilityBin, area_under_curve, brier, reliability
from kvflow.predict.trials.transitions import Transitions
from kvflow.trace import Event, Join, LLMCall, Spawn, ToolEnd, ToolStart, WorkflowEnd, WorkflowStart

SOON_S = (2.0, 10.0, 60.0)
"""A use is soon if it comes within this."""
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class UseScores:
    """How good the forecasts of one kind are.

    Attributes:
        forecasts: how many there were.
        used: share of contexts that were used again.
        brier: of the predicted probability.
        timed: number of contexts that were used again at a known time.
        covered: share of those within the predicted 10 to 90 % quantiles (nominal 0.8), bounds included; all times
            are compared to the resolution of the duration bins.
        below_median: share of those before the predicted median (nominal 0.5), what is in its bin counting half.
        auc: by time, whether probability / mean time tells uses that come so soon from later or no uses.
        bins: predicted against observed probability.
    """

    forecasts: int
    used: float
    brier: float | None
    timed: int
    covered: float | None
    below_median: float | None
    auc: dict[float, float | None]
    bins: list[ReliabilityBin]


@dataclass(slots=True)
class _Case:
    """A forecast, and what came of it.

    Attributes:
        made_s: thread time at which it was made; None once an unknown time has passed.
    """

    kind: str
    forecast: NextUseForecast
    made_s: float | None
    used: bool = False
    after_s: float | None = None


@dataclass(slots=True)
class _Thread:
    """A thread, with a clock of its own that runs as a replay would, on recorded durations.

    Attributes:
        now_s: its clock.
        tools: calls under way, with the clock when they started.
        uses: by agent, how often its context was used.
        claims: by agent, the forecast that waits for the next use.
        kinds: by agent, what its latest call ended with: the name of a tool, or nothing.
        done: the agent that has ended its call, until a forecast is made.
        called_tools: the latest call asked for tools, so that its agent goes on with the step.
        step_since_s: when the step under way started; None if that is not known.
        waited: its latest event was a call or a join.
    """

    now_s: float = 0.0
    history: list[str] = field(default_factory=list)
    tools: dict[str, tuple[ToolStart, float]] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    claims: dict[str, _Case] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    done: str | None = None
    called_tools: bool = False
    step_since_s: float | None = None
    waited: bool = False

    def lose_time(self) -> None:
        """An unknown time passes."""
        self.step_since_s = None
        for claim in self.claims.values():
            claim.made_s = None


class UseTrial:
    """Forecasts the next use of every context when a call and the tools it asks for are known; learns from all."""

    def __init__(self) -> None:
        self._tools = DurationModel()
        self._gaps = DurationModel()
        self._pauses = DurationModel()
        self._pace = Pace()
        self._survival = Survival()
        self._endings = Endings()
        self._transitions = Transitions()
        self._types: dict[str, str] = {}
        self._threads: dict[str, dict[str, _Thread]] = {}
        self._cases: list[_Case] = []

    def take(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, WorkflowStart):
            self._types[event.workflow] = event.type
            self._threads[event.workflow] = {}
            return
        threads = self._threads.get(event.workflow)
        if threads is None:
            return
        if isinstance(event, WorkflowEnd):
            self._end(event.workflow, ended=True)
            return
        thread = threads.setdefault(event.thread, _Thread())
        waited, thread.waited = thread.waited, isinstance(event, LLMCall | Join)
        if not isinstance(event, ToolStart):
            self._forecast(event.workflow, thread)
        if isinstance(event, LLMCall):
            self._call(event, thread)
        elif isinstance(event, ToolStart):
            thread.tools[event.tool_call] = event, thread.now_s
            thread.called_tools = True
        elif isinstance(event, ToolEnd):
            self._tool_end(event, thread, waited=waited)
        elif isinstance(event, Spawn):
            threads[event.child] = _Thread(now_s=thread.now_s)
        elif isinstance(event, Join) and event.child in threads:
            thread.now_s = max(thread.now_s, threads[event.child].now_s)
            self._end_thread(event.workflow, threads.pop(event.child), ended=True)

    def finish(self) -> None:
        """Take note that nothing follows; workflows that have not ended are lost sight of."""
        for workflow in list(self._threads):
            self._end(workflow, ended=False)

    def scores(self) -> dict[str, UseScores]:
        """Return the scores by kind of forecast (tools, ahead, pause) that there were any of, and of all of them."""
        by_kind: dict[str, list[_Case]] = {}
        for case in self._cases:
            by_kind.setdefault(case.kind, []).append(case)
        if by_kind:
            by_kind[ALL] = self._cases
        return {kind: _scores(cases) for kind, cases in by_kind.items()}

    def _call(self, call: LLMCall, thread: _Thread) -> None:
        workflow_type = self._types[call.workflow]
        self._step(call, thread)
        claim = thread.claims.pop(call.agent, None)
        if claim is not None:
            self._endings.observe(workflow_type, call.agent, thread.kinds[call.agent], last=False)
            claim.used = True
            if claim.made_s is not None:
                claim.after_s = thread.now_s - claim.made_s
                if claim.kind != "tools":
                    self._gaps.observe(workflow_type, call.agent, claim.after_s)
        thread.uses[call.agent] = thread.uses.get(call.agent, 0) + 1
        thread.now_s += call.llm_s or 0.0
        if call.llm_s is None:
            thread.lose_time()
        thread.done = call.agent
        thread.called_tools = False

    def _step(self, call: LLMCall, thread: _Thread) -> None:
        """Let the time before a call pass, and start a new step unless the agent goes on after its tools."""
        workflow_type = self._types[call.workflow]
        latest = thread.history[-1] if thread.history else None
        ended_s = thread.now_s
        thread.now_s += call.delay_s or 0.0
        if call.delay_s is None and latest is not None and not thread.called_tools:
            thread.lose_time()
        if latest == call.agent and thread.called_tools:
            return
        if latest is not None and thread.step_since_s is not None:
            self._pace.observe_step(call.workflow, workflow_type, latest, ended_s - thread.step_since_s)
            self._pauses.observe(workflow_type, latest, thread.now_s - ended_s)
        self._transitions.observe(workflow_type, thread.history, call.agent)
        thread.history.append(call.agent)
        thread.step_since_s = thread.now_s

    def _tool_end(self, event: ToolEnd, thread: _Thread, *, waited: bool) -> None:
        """Let a tool's time pass; one that has waited for a call or a thread took its own time after that."""
        known = thread.tools.pop(event.tool_call, None)
        if known is None:
            return
        if event.seconds is None:
            thread.lose_time()
            return
        start, started_s = known
        end_s = (max(started_s, thread.now_s) if waited else started_s) + event.seconds
        thread.now_s = max(thread.now_s, end_s)
        self._tools.observe(start.tool, start.verb, end_s - started_s, workflow=event.workflow)

    def _forecast(self, workflow: str, thread: _Thread) -> None:
        """Forecast the next use of the agent whose call has ended, now that its tools are known."""
        agent, thread.done = thread.done, None
        if agent is None:
            return
        workflow_type = self._types[workflow]
        kind = min((start.tool for start, _ in thread.tools.values()), default="")
        thread.kinds[agent] = kind
        again = self._survival.again(workflow_type, agent, thread.uses[agent])
        again = self._endings.again(workflow_type, agent, kind, again)
        tools = [
            Wait(durations=self._tools.of(start.tool, start.verb, workflow=workflow))
            for start, _ in thread.tools.values()
        ]
        ahead = None if tools else self._ahead(workflow, thread, agent)
        pause = Wait(durations=self._gaps.of(workflow_type, agent))
        case = _Case(
            kind="tools" if tools else "ahead" if ahead else "pause",
            forecast=next_use(again=again, tools=tools, ahead=ahead, pause=pause),
            made_s=thread.now_s,
        )
        self._cases.append(case)
        thread.claims[agent] = case

    def _ahead(self, workflow: str, thread: _Thread, agent: str) -> StepsAhead | None:
        """What the transitions say, if they know of several agents."""
        workflow_type = self._types[workflow]
        expected = first_uses(self._transitions, workflow_type, thread.history)
        use = expected.get(agent)
        others = expected.keys() - {agent}
        if use is None or use.steps is None or not others:
            return None
        between_s = self._pauses.of(workflow_type, agent).residual_s(0.0)
        steps = use.steps
        earlier = [other for other in others if (expected[other].steps or steps) < steps] or list(others)
        total = sum(expected[other].probability for other in earlier)
        typical_s = sum(
            expected[other].probability * self._pace.step_s(workflow, workflow_type, other) for other in earlier
        )
        return StepsAhead(
            steps=use.steps,
            left_s=between_s,
            step_s=typical_s / total,
            spread_s=max(self._pace.spread_s(workflow_type, other) for other in others),
            between_s=between_s,
        )

    def _end(self, workflow: str, *, ended: bool) -> None:
        for thread in self._threads.pop(workflow).values():
            self._end_thread(workflow, thread, ended=ended)
        del self._types[workflow]
        self._pace.forget(workflow)

    def _end_thread(self, workflow: str, thread: _Thread, *, ended: bool) -> None:
        self._forecast(workflow, thread)
        workflow_type = self._types[workflow]
        for agent, uses in thread.uses.items():
            self._survival.observe(workflow_type, agent, uses, ended=ended)
            if ended:
                self._endings.observe(workflow_type, agent, thread.kinds[agent], last=True)
        if ended and thread.history:
            self._transitions.observe(workflow_type, thread.history, END)


def _scores(cases: list[_Case]) -> UseScores:
    said = [case.forecast.probability for case in cases]
    used = [case.used for case in cases]
    timed = [(case, case.after_s) for case in cases if case.after_s is not None]
    places = [([bin_of(each_s) for each_s in case.forecast.quantiles_s], bin_of(after_s)) for case, after_s in timed]
    within = sum(low <= place <= high for (low, _, high), place in places)
    early = sum((place < middle) + (place == middle) / 2 for (_, middle, _), place in places)
    known = [case for case in cases if case.after_s is not None or not case.used]
    rates = [case.forecast.rate_hz for case in known]
    return UseScores(
        forecasts=len(cases),
        used=sum(used) / len(used),
        brier=brier(said, used),
        timed=len(timed),
        covered=within / len(timed) if timed else None,
        below_median=early / len(timed) if timed else None,
        auc={
            soon_s: area_under_curve(rates, [case.after_s is not None and case.after_s <= soon_s for case in known])
            for soon_s in SOON_S
        },
        bins=reliability(said, used),
    )
