"""What a comparison comes to: means over seeds with their intervals, differences to LRU, the gap to Belady."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

from kvflow.policy import ORACLES
from kvflow.sim.compare import BASELINE, IDEAL, Plan, Run, Setup
from kvflow.sim.workload import Workload

LEAST_GAP = 0.02
"""Share of LRU's lost time that Belady must save before a share of that saving means anything."""
RELATIVE = ("lost_s", "completion_mean_s", "completion_p95_s", "ttft_mean_s", "ttft_p95_s", "queue_mean_s")
"""Measures that are also told relative to LRU."""

_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with its 95 % interval; ``low`` and ``high`` are None for a single value."""

    mean: float
    low: float | None = None
    high: float | None = None
    n: int = 1


LEAST_ROUNDS = 3
"""Of fewer nothing is known of how they differ: the interval of two is thirteen standard errors to either side."""


def t_95(freedom: int) -> float:
    """Quantile 0.975 of Student's t distribution: what a standard error is multiplied by for a 95 % interval.

    From a table up to 30 degrees of freedom, beyond from the normal distribution by the first terms of the
    Cornish-Fisher expansion (off by less than 0.0001 there).
    """
    if freedom <= len(_T_95):
        return _T_95[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def estimate(values: Sequence[float]) -> Estimate:
    """Mean of values, with the 95 % interval by the t distribution if there are several."""
    mean, count = fmean(values), len(values)
    if count < 2:
        return Estimate(mean=mean)
    half = t_95(count - 1) * stdev(values) / math.sqrt(count)
    return Estimate(mean=mean, low=mean - half, high=mean + half, n=count)


def relative(values: Sequence[float], baseline: Sequence[float]) -> Estimate | None:
    """Mean of values as a share of the baseline's mean; the interval is that of the paired differences.

    Args:
        values: one per seed.
        baseline: of the same seeds.

    Returns:
        None if the baseline is zero.
    """
    mean = fmean(baseline)
    if mean <= 0:
        return None
    change = estimate([one - other for one, other in zip(values, baseline, strict=True)])
    if change.low is None or change.high is None:
        return Estimate(mean=1 + change.mean / mean)
    return Estimate(mean=1 + change.mean / mean, low=1 + change.low / mean, high=1 + change.high / mean, n=change.n)


def gap_note(ideal: Estimate | None) -> str:
    """Say why there is no gap between LRU and Belady that a policy could close a share of; empty if there is one.

    Args:
        ideal: Belady's lost time relative to LRU's; None if LRU loses none.
    """
    if ideal is None:
        return "LRU loses nothing here: all that is used again stays cached"
    saved = 1 - ideal.mean
    told = f"Belady loses {abs(saved):.1%} {'less' if saved >= 0 else 'more'} than LRU"
    if abs(saved) < LEAST_GAP:
        return f"{told}: below {LEAST_GAP:.0%}, a share of that would be noise"
    if ideal.n > 2 and ideal.low is not None and ideal.high is not None and ideal.low < 1 < ideal.high:
        return f"{told}, but over these {ideal.n} seeds that may be chance: a share of it would be noise"
    if saved < 0:
        return f"{told} here: it knows what programs do next, not when the server will let them"
    return ""


def summarize(plan: Plan, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Sum up runs by setup and policy, as plain data (see ``kvflow.report.simulation_record`` for the fields)."""
    return [
        _summarize_setup(plan, setup, [run for run in runs if run.setup == index])
        for index, setup in enumerate(plan.setups)
    ]


def _summarize_setup(plan: Plan, setup: Setup, runs: Sequence[Run]) -> dict[str, Any]:
    by_policy = {
        policy: [run for run in runs if run.policy == policy]
        for policy in plan.all_policies
        if any(run.policy == policy for run in runs)
    }
    lost_s = {policy: [run.measures["lost_s"] for run in own] for policy, own in by_policy.items()}
    note = gap_note(relative(lost_s[IDEAL], lost_s[BASELINE]))
    baseline_s, ideal_s = fmean(lost_s[BASELINE]), fmean(lost_s[IDEAL])
    policies = []
    for policy, own in by_policy.items():
        summed = _summarize_policy(own, by_policy[BASELINE])
        summed |= {
            "policy": policy,
            "asked": policy in plan.policies,
            "oracle": policy in ORACLES,
            "gap_closed": None if note else (baseline_s - fmean(lost_s[policy])) / (baseline_s - ideal_s),
        }
        policies.append(summed)
    return asdict(setup) | {"gap_note": note, "policies": policies}


def _summarize_policy(own: Sequence[Run], baseline: Sequence[Run]) -> dict[str, Any]:
    names = [name for name in own[0].measures if all(name in run.measures for run in own)]
    measures = {name: asdict(estimate([run.measures[name] for run in own])) for name in names}
    to_baseline = {}
    for name in RELATIVE:
        if name in measures and all(name in run.measures for run in baseline):
            found = relative([run.measures[name] for run in own], [run.measures[name] for run in baseline])
            to_baseline[name] = asdict(found) if found else None
    places = sorted({place for run in own for place in run.evicted_tokens})
    evicted = {place: fmean(run.evicted_tokens.get(place, 0) for run in own) for place in places}
    return {"measures": measures, "relative": to_baseline, "evicted_tokens": evicted}


def document(plan: Plan, workload: Workload, runs: Sequence[Run]) -> dict[str, Any]:
    """Everything about a comparison as plain data; where and when it was made is for the caller to add."""
    page_tokens = plan.settings(plan.setups[0], BASELINE, 0).page_tokens
    return {
        "kind": "simulation",
        "settings": {
            "policies": list(plan.policies),
            "seeds": list(plan.seeds),
            "limit": plan.limit,
            "admission": plan.admission,
            "prefetch": plan.prefetch,
            "guard": plan.guard,
            "exclusive": plan.exclusive,
            "page_tokens": page_tokens,
            **asdict(plan.waits),
        },
        "profile": plan.profile.model_dump(),
        "programs": len(workload.programs),
        "times": workload.times,
        "traces": [asdict(file) for file in workload.files],
        "context_tokens": workload.context_tokens,
        "longest_request_tokens": workload.request_tokens[-1],
        "baseline": BASELINE,
        "ideal": IDEAL,
        "setups": [
            summary | {"too_long": workload.too_long(setup.device_tokens, page_tokens)}
            for setup, summary in zip(plan.setups, summarize(plan, runs), strict=True)
        ],
        "runs": [asdict(run) for run in runs],
    }
