"""How well tool durations are predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvflow.predict.distribution import Durations
from kvflow.predict.durations import DurationModel
from kvflow.predict.histogram import EDGES_S, bin_of
from kvflow.predict.trials.scores import area_under_curve, interval_coverage, log_loss, median
from kvflow.trace import Event, Join, LLMCall, ToolEnd, ToolStart, WorkflowEnd, WorkflowStart

LONG_S = (2.0, 10.0)
"""A call is long if it takes longer than this."""
SHARES = (0.5, 0.8, 0.95)
MAX_FOLDS = 40
_LEAST_S = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One timed call of a trace."""

    workflow: str
    tool: str
    verb: str | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationScores:
    """How good predicted durations are.

    Attributes:
        auc: by threshold in seconds, whether long calls are told from short ones; None if there are none of a kind.
        log_loss: by threshold, in nats, of "longer than".
        coverage: by nominal share, how many calls lie in the central interval.
        error_factor: median factor between the predicted median and the duration.
    """

    auc: dict[float, float | None]
    log_loss: dict[float, float | None]
    coverage: dict[float, float | None]
    error_factor: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolScores:
    """How well the tool durations of one trace are predicted.

    Attributes:
        calls: number of timed calls.
        long_calls: by threshold, how many took longer.
        online: each call predicted from all that ended before it.
        left_out: each call predicted from all workflows but its own (and those of its fold); None for one workflow.
        by_tool_auc: by threshold, the same for the plain share of long calls of the tool in other workflows.
        by_verb_auc: the same for tool and verb.
    """

    calls: int
    long_calls: dict[float, int]
    online: DurationScores
    left_out: DurationScores | None
    by_tool_auc: dict[float, float | None]
    by_verb_auc: dict[float, float | None]


@dataclass(slots=True)
class _Record:
    """What was predicted, case by case."""

    longer: dict[float, list[float]] = field(default_factory=lambda: {limit_s: [] for limit_s in LONG_S})
    levels: list[tuple[float, float]] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, predicted: Durations, seconds: float) -> None:
        for limit_s, probabilities in self.longer.items():
            probabilities.append(predicted.longer_than(limit_s))
        index = bin_of(seconds)
        below = 1 - predicted.longer_than(EDGES_S[index]) if index else 0.0
        self.levels.append((below, 1 - predicted.longer_than(EDGES_S[index + 1])))
        middle_s, real_s = max(predicted.quantile_s(0.5), _LEAST_S), max(seconds, _LEAST_S)
        self.factors.append(max(middle_s, real_s) / min(middle_s, real_s))
        self.seconds.append(seconds)

    def scores(self) -> DurationScores:
        labels = {limit_s: [seconds > limit_s for seconds in self.seconds] for limit_s in LONG_S}
        return DurationScores(
            auc={limit_s: area_under_curve(p, labels[limit_s]) for limit_s, p in self.longer.items()},
            log_loss={limit_s: log_loss(p, labels[limit_s]) for limit_s, p in self.longer.items()},
            coverage={share: interval_coverage(self.levels, share) for share in SHARES},
            error_factor=median(self.factors),
        )


class ToolTrial:
    """Predicts every tool call of a trace when it starts, and learns from it when it ends.

    Tools that waited for calls or threads are left out: their time is what they took after that.
    """

    def __init__(self) -> None:
        self._waited: dict[tuple[str, str], bool] = {}
        self._model = DurationModel()
        self._record = _Record()
        self._calls: list[ToolCall] = []
        self._under_way: dict[tuple[str, str, str], tuple[ToolStart, Durations]] = {}

    def take(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, WorkflowStart | WorkflowEnd):
            return
        waited = self._waited.get((event.workflow, event.thread), False)
        self._waited[event.workflow, event.thread] = isinstance(event, LLMCall | Join)
        if isinstance(event, ToolStart):
            predicted = self._model.of(event.tool, event.verb, workflow=event.workflow)
            self._under_way[event.workflow, event.thread, event.tool_call] = event, predicted
        elif isinstance(event, ToolEnd):
            known = self._under_way.pop((event.workflow, event.thread, event.tool_call), None)
            if known is not None and event.seconds is not None and not waited:
                start, predicted = known
                self._record.add(predicted, event.seconds)
                self._model.observe(start.tool, start.verb, event.seconds, workflow=event.workflow)
                self._calls.append(
                    ToolCall(workflow=event.workflow, tool=start.tool, verb=start.verb, seconds=event.seconds)
                )

    def scores(self) -> ToolScores | None:
        """Return the scores of the calls so far; None if there were none."""
        calls = self._calls
        if not calls:
            return None
        return ToolScores(
            calls=len(calls),
            long_calls={limit_s: sum(call.seconds > limit_s for call in calls) for limit_s in LONG_S},
            online=self._record.scores(),
            left_out=_left_out(calls),
            by_tool_auc={limit_s: _share_auc(calls, limit_s, lambda call: (call.tool,)) for limit_s in LONG_S},
            by_verb_auc={
                limit_s: _share_auc(calls, limit_s, lambda call: (call.tool, call.verb)) for limit_s in LONG_S
            },
        )


def _left_out(calls: Sequence[ToolCall]) -> DurationScores | None:
    """Predict each workflow from the others, in at most 40 folds."""
    workflows = list(dict.fromkeys(call.workflow for call in calls))
    folds = min(MAX_FOLDS, len(workflows))
    if folds < 2:
        return None
    fold_of = {workflow: index % folds for index, workflow in enumerate(workflows)}
    record = _Record()
    for fold in range(folds):
        model = DurationModel()
        for call in calls:
            if fold_of[call.workflow] != fold:
                model.observe(call.tool, call.verb, call.seconds)
        for call in calls:
            if fold_of[call.workflow] == fold:
                record.add(model.of(call.tool, call.verb), call.seconds)
    return record.scores()


def _share_auc(
    calls: Sequence[ToolCall], limit_s: float, key: Callable[[ToolCall], tuple[str | None, ...]]
) -> float | None:
    """Score calls by their key's share of long calls in the other workflows; unseen ones by the share of all calls."""
    everywhere, here = _counts(calls, limit_s, key), _counts(calls, limit_s, key, by_workflow=True)
    overall = sum(call.seconds > limit_s for call in calls) / len(calls)
    scores = []
    for call in calls:
        name = key(call)
        own = (call.workflow, *name)
        seen = everywhere[0][name] - here[0][own]
        scores.append((everywhere[1][name] - here[1][own]) / seen if seen else overall)
    return area_under_curve(scores, [call.seconds > limit_s for call in calls])


def _counts(
    calls: Iterable[ToolCall],
    limit_s: float,
    key: Callable[[ToolCall], tuple[str | None, ...]],
    *,
    by_workflow: bool = False,
) -> tuple[Counter[tuple[str | None, ...]], Counter[tuple[str | None, ...]]]:
    """Return how many calls there are by key, and how many long ones."""
    names = [((call.workflow, *key(call)) if by_workflow else key(call), call.seconds > limit_s) for call in calls]
    return Counter(name for name, _ in names), Counter(name for name, is_long in names if is_long)
