"""How well it is predicted who runs next, and whether a context is used again."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvflow.graph import END
from kvflow.predict.survival import Survival
from kvflow.predict.trials.scores import ReliabilityBin, brier, log_loss, reliability, surprise
from kvflow.predict.trials.transitions import Transitions
from kvflow.trace import MAIN_THREAD, Event, Join, LLMCall, WorkflowEnd, WorkflowStart

ORDERS = (0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderScores:
    """How good predictions of the next agent are.

    Attributes:
        accuracy: how often the likeliest one (or END) it was.
        log_loss: in nats; an agent never seen before is charged the probability left for such.
    """

    accuracy: float
    log_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentScores:
    """How well the agents of one trace are predicted, workflow types of several agents only.

    Attributes:
        steps: predicted steps, the ends of threads included.
        unseen: how many of them named an agent not seen in this workflow type before.
        orders: by number of preceding agents taken into account.
    """

    steps: int
    unseen: int
    orders: dict[int, OrderScores]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainScores:
    """How well it is predicted whether a context is used again.

    Attributes:
        uses: predicted cases: uses of contexts of which it is known whether another one followed.
        share: how many were followed by another one.
        brier: mean squared error.
        base_brier: the same if every case were given that share.
        log_loss: in nats.
        bins: predicted against observed.
        eta: Continuum's η by workflow type, as learned in the end.
    """

    uses: int
    share: float
    brier: float | None
    base_brier: float
    log_loss: float | None
    bins: list[ReliabilityBin]
    eta: dict[str, float]


@dataclass(slots=True)
class _Step:
    """A step that was predicted: by order, whether it was the likeliest one, and the probability it had been given."""

    workflow_type: str
    unseen: bool
    orders: dict[int, tuple[bool, float]]


@dataclass(slots=True)
class _Run:
    """What a live workflow has done: by thread who ran, by thread and agent what was said at each use."""

    workflow_type: str
    threads: dict[str, list[str]] = field(default_factory=lambda: {MAIN_THREAD: []})
    said: dict[tuple[str, str], list[float]] = field(default_factory=dict)


class AgentTrial:
    """Predicts every next agent, and after every use of a context whether there is another; learns from the answer."""

    def __init__(self) -> None:
        self._models = {order: Transitions(order=order) for order in ORDERS}
        self._survival = Survival()
        self._runs: dict[str, _Run] = {}
        self._agents: dict[str, set[str]] = {}
        self._steps: list[_Step] = []
        self._again: list[tuple[float, bool]] = []

    def take(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, WorkflowStart):
            self._runs[event.workflow] = _Run(event.type)
            return
        run = self._runs.get(event.workflow)
        if run is None:
            return
        if isinstance(event, LLMCall):
            self._step(run, event.thread, event.agent)
            said = run.said.setdefault((event.thread, event.agent), [])
            said.append(self._survival.again(run.workflow_type, event.agent, len(said) + 1))
        elif isinstance(event, Join):
            self._end_thread(run, event.child, ended=True)
        elif isinstance(event, WorkflowEnd):
            for thread in list(run.threads):
                self._end_thread(run, thread, ended=True)
            del self._runs[event.workflow]

    def finish(self) -> None:
        """Take note that nothing follows; workflows that have not ended are lost sight of."""
        for run in self._runs.values():
            for thread in list(run.threads):
                self._end_thread(run, thread, ended=False)
        self._runs.clear()

    def agent_scores(self) -> AgentScores | None:
        """Return how well the agents were predicted; None if no workflow type has several."""
        steps = [step for step in self._steps if len(self._agents[step.workflow_type]) > 1]
        if not steps:
            return None
        return AgentScores(
            steps=len(steps),
            unseen=sum(step.unseen for step in steps),
            orders={
                order: OrderScores(
                    accuracy=sum(step.orders[order][0] for step in steps) / len(steps),
                    log_loss=sum(surprise(step.orders[order][1]) for step in steps) / len(steps),
                )
                for order in ORDERS
            },
        )

    def again_scores(self) -> AgainScores | None:
        """Return how well the next uses were predicted; None without uses."""
        if not self._again:
            return None
        said = [probability for probability, _ in self._again]
        came = [label for _, label in self._again]
        share = sum(came) / len(came)
        return AgainScores(
            uses=len(came),
            share=share,
            brier=brier(said, came),
            base_brier=share * (1 - share),
            log_loss=log_loss(said, came),
            bins=reliability(said, came),
            eta={name: self._survival.eta(name) for name in sorted(self._agents)},
        )

    def _step(self, run: _Run, thread: str, agent: str) -> None:
        history = run.threads.setdefault(thread, [])
        orders: dict[int, tuple[bool, float]] = {}
        unseen = False
        for order, model in self._models.items():
            predicted = model.probabilities(run.workflow_type, history)
            unseen = agent not in predicted
            likeliest = max(predicted, key=predicted.__getitem__, default=None)
            given = 1 - sum(predicted.values()) if unseen else predicted[agent]
            orders[order] = likeliest == agent, given
            model.observe(run.workflow_type, history, agent)
        self._steps.append(_Step(run.workflow_type, unseen, orders))
        self._agents.setdefault(run.workflow_type, set()).update({agent} - {END})
        history.append(agent)

    def _end_thread(self, run: _Run, thread: str, *, ended: bool) -> None:
        if run.threads.get(thread) and ended:
            self._step(run, thread, END)
        run.threads.pop(thread, None)
        for name, agent in [key for key in run.said if key[0] == thread]:
            said = run.said.pop((name, agent))
            known = said if ended else said[:-1]
            self._again += [(probability, use < len(said)) for use, probability in enumerate(known, start=1)]
            self._survival.observe(run.workflow_type, agent, len(said), ended=ended)
