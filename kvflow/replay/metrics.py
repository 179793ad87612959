"""Rounds in numbers, and arms against each other."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import Any

from kvflow.replay.record import CallRecord, Round, ToolRecord, WorkflowRecord
from kvflow.sim.measures import quantile, spread
from kvflow.sim.summary import LEAST_ROUNDS, estimate

RESAMPLES = 2000
LEAST_PAIRS = 6
"""Of fewer, all go the same way by chance in more than one case of twenty (sign test, two-sided)."""
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
PAIRED = ("completion_s", "run_s", "ttft_s", "latency_s")
"""Measured for each workflow, or its calls on average (each workflow counts alike, however many calls it makes)."""


def measures(rounds: Sequence[Round]) -> dict[str, float]:
    """Put the rounds of an arm into numbers; names end in their unit. What was not measured is left out.

    Times are of workflows without a failed call, and of their calls and tools; ``failed_calls`` says how many failed,
    ``whole_workflows`` how many workflows are left. Tokens and totals of a server are of all calls.
    """
    failed = {(each.index, flow.workflow) for each in rounds for flow in each.workflows if flow.failed_calls}
    every = [call for each in rounds for call in each.calls]
    calls = [call for each in rounds for call in each.calls if (each.index, call.workflow) not in failed]
    tools = [tool for each in rounds for tool in each.tools if (each.index, tool.workflow) not in failed]
    workflows = [flow for each in rounds for flow in each.workflows]
    whole = [flow for flow in workflows if not flow.failed_calls]
    span_s = sum(each.span_s for each in rounds)
    found: dict[str, float] = {
        "workflows": len(workflows),
        "whole_workflows": len(whole),
        "calls": len(every),
        "failed_calls": sum(flow.failed_calls for flow in workflows),
        **spread("completion", [flow.completion_s for flow in whole], **_SHARES),
        **spread("run", [flow.run_s for flow in whole], **_SHARES),
        **spread("latency", [call.ended_s - call.asked_s for call in calls], **_SHARES),
        **spread("ttft", [call.first_s - call.asked_s for call in calls if call.first_s is not None], **_SHARES),
        **spread("inter_token", [_inter_token_s(call) for call in calls if call.output_tokens > 1], **_SHARES),
        **spread("pause", [call.longest_pause_s for call in calls if call.output_tokens > 1], **_SHARES),
        **spread("queue", [call.queue_s for call in calls if call.queue_s is not None], **_SHARES),
        **_spent(calls, tools, len(whole)),
        "span_s": span_s / len(rounds),
        "workflows_per_h": 3600 * len(whole) / span_s,
        "tokens_per_h": 3600 * sum(call.prompt_tokens + call.output_tokens for call in calls) / span_s,
        "prompt_tokens": sum(call.prompt_tokens for call in every),
        "cached_device_tokens": sum(call.device_tokens for call in every),
        "host_hit_tokens": sum(call.host_tokens for call in every),
        "loaded_tokens": sum(map(_loaded_tokens, rounds)),
        "fetched_tokens": sum(call.storage_tokens for call in every),
        "recomputed_tokens": sum(call.recomputed_tokens for call in every),
        "late_p99_s": quantile(sorted(call.late_s for call in calls), 0.99) if calls else 0.0,
    }
    for name in ("stall_s", "server_cpu_s", "client_cpu_s"):
        seen = [value for each in rounds if (value := getattr(each, name)) is not None]
        if seen:
            found[name] = sum(seen)
    peaks = [each.peak_memory_bytes for each in rounds if each.peak_memory_bytes is not None]
    if peaks:
        found["peak_memory_bytes"] = max(peaks)
    return found | _counted(rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An arm against the first one, on the same work.

    Attributes:
        ratio: of the means, below 1 where the arm is faster ...
        ratio_low: ... and its 95 % interval.
        mean_s: of the paired differences, below 0 where the arm is faster ...
        low_s: ... and its 95 % interval. A few pairs, or rounds, have none worth the name.
        worst_ratio: of the workflow that fared worst against the first arm.
        pairs: so many ...
        rounds: ... in so many rounds.
    """

    ratio: float
    ratio_low: float
    ratio_high: float
    mean_s: float
    low_s: float
    high_s: float
    worst_ratio: float
    pairs: int
    rounds: int

    @property
    def distinct(self) -> bool:
        """Whether the ratio's interval leaves out 1, and there are enough pairs and rounds for one."""
        return self.tells and (self.ratio_low > 1 or self.ratio_high < 1)

    @property
    def tells(self) -> bool:
        """Whether there are enough pairs and rounds to tell a difference from chance."""
        return self.pairs >= LEAST_PAIRS and self.rounds >= LEAST_ROUNDS


Values = dict[int, dict[str, float]]
"""Of workflows, by round and workflow id."""


def values(rounds: Sequence[Round], name: str) -> Values:
    """What of :data:`PAIRED` each workflow had; those of which a call failed are left out."""
    return {each.index: _OF_ROUND[name](each) for each in rounds}


def difference(base: Values, arm: Values, seed: int = 0) -> Difference | None:
    """Compare an arm with the first one, pair by pair.

    Workflows of one round share its luck, so rounds are drawn first, and then pairs within each (a two-stage
    bootstrap: Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8). Of a few rounds that is
    too narrow: of three or more it is widened to the interval of the rounds' own differences by the t distribution.

    Args:
        base: of the first arm.
        arm: of the other.
        seed: of the resampling.

    Returns:
        None if there is nothing both have.
    """
    paired = (
        [(mine[key], arm[index][key]) for key in mine if key in arm[index]]
        for index, mine in base.items()
        if index in arm
    )
    strata = [stratum for stratum in paired if stratum]
    pairs = [pair for stratum in strata for pair in stratum]
    if not pairs:
        return None
    draw = random.Random(seed)
    ratios: list[float] = []
    means: list[float] = []
    for _ in range(RESAMPLES):
        drawn: list[tuple[float, float]] = []
        for stratum in draw.choices(strata, k=len(strata)):
            drawn += draw.choices(stratum, k=len(stratum))
        before, after = fmean(a for a, _ in drawn), fmean(b for _, b in drawn)
        means.append(after - before)
        ratios.append(after / before)
    of_rounds = [(fmean(a for a, _ in stratum), fmean(b for _, b in stratum)) for stratum in strata]
    low, high = _interval(list(map(log, ratios)), [log(after / before) for before, after in of_rounds])
    low_s, high_s = _interval(means, [after - before for before, after in of_rounds])
    return Difference(
        ratio=fmean(b for _, b in pairs) / fmean(a for a, _ in pairs),
        ratio_low=exp(low),
        ratio_high=exp(high),
        mean_s=fmean(b - a for a, b in pairs),
        low_s=low_s,
        high_s=high_s,
        worst_ratio=max(b / a for a, b in pairs),
        pairs=len(pairs),
        rounds=len(strata),
    )


def _interval(resampled: Sequence[float], of_rounds: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of what was resampled, as wide at least as that of the rounds if there are enough of them."""
    ordered = sorted(resampled)
    low, high = quantile(ordered, 0.025), quantile(ordered, 0.975)
    rounds = estimate(of_rounds)
    if len(of_rounds) < LEAST_ROUNDS or rounds.low is None or rounds.high is None:
        return low, high
    return min(low, rounds.low), max(high, rounds.high)


def _workflows(seen: Round, value: Callable[[WorkflowRecord], float]) -> dict[str, float]:
    return {flow.workflow: value(flow) for flow in seen.workflows if not flow.failed_calls}


def _calls(seen: Round, value: Callable[[CallRecord], float | None]) -> dict[Any, float]:
    """Means over the calls of each workflow: calls of one workflow share its luck, too."""
    failed = {flow.workflow for flow in seen.workflows if flow.failed_calls}
    found: dict[str, list[float]] = defaultdict(list)
    for call in seen.calls:
        seconds = value(call)
        if seconds is not None and call.workflow not in failed:
            found[call.workflow].append(seconds)
    return {workflow: fmean(values) for workflow, values in found.items()}


_OF_ROUND: dict[str, Callable[[Round], dict[str, float]]] = {
    "completion_s": lambda seen: _workflows(seen, lambda flow: flow.completion_s),
    "run_s": lambda seen: _workflows(seen, lambda flow: flow.run_s),
    "ttft_s": lambda seen: _calls(seen, lambda call: None if call.first_s is None else call.first_s - call.asked_s),
    "latency_s": lambda seen: _calls(seen, lambda call: call.ended_s - call.asked_s),
}


def _inter_token_s(call: CallRecord) -> float:
    return (call.ended_s - (call.first_s or call.asked_s)) / (call.output_tokens - 1)


def _spent(calls: Sequence[CallRecord], tools: Sequence[ToolRecord], workflows: int) -> dict[str, float]:
    """Seconds of all calls and tools of a workflow, mean; what runs in parallel counts as often as it runs.

    A server says only how long a call waited in all: what is longer than the time to its first token was after that,
    and no decoding. One that does not say it has no ``queued_s``: its waits are among ``prefilled_s``.
    """
    calls = [call for call in calls if call.first_s is not None]
    workflows = max(1, workflows)
    queued_s = sum(call.queue_s or 0.0 for call in calls)
    before_s = sum(call.queued_before_s for call in calls)
    first_s = sum((call.first_s or 0.0) - call.asked_s for call in calls)
    after_s = sum(call.ended_s - (call.first_s or 0.0) for call in calls)
    queued = {"queued_s": queued_s / workflows} if any(call.queue_s is not None for call in calls) else {}
    return queued | {
        "prefilled_s": (first_s - before_s) / workflows,
        "decoded_s": max(0.0, after_s - (queued_s - before_s)) / workflows,
        "tools_s": sum(tool.end_s - tool.start_s for tool in tools) / workflows,
    }


def _loaded_tokens(seen: Round) -> int:
    """What a server loaded from the host. Hits there are only what it loaded for requests that it had let in."""
    if seen.loaded_tokens is not None:
        return seen.loaded_tokens
    counted: Any = seen.stats.get("load_back_tokens")
    return sum(call.host_tokens for call in seen.calls if not call.error) if counted is None else int(counted)


def _counted(rounds: Sequence[Round]) -> dict[str, float]:
    """What kvflow itself counted, over all rounds."""
    if not any(each.stats for each in rounds):
        return {}

    def total(name: str) -> float:
        counts: list[Mapping[str, Any]] = [each.stats for each in rounds]
        return sum(count.get(name) or 0 for count in counts)

    names = ["prefetched_tokens", "prefetch_used_tokens", "prefetch_late_tokens", "prefetch_wasted_tokens"]
    if any("reused_tokens" in each.stats for each in rounds):
        names.append("reused_tokens")
    return {name: total(name) for name in (*names, "passed_over", "backups")}
