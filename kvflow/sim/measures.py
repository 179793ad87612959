"""A simulation in numbers, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean

from kvflow.sim.run import SimResult


def measures_of(result: SimResult) -> dict[str, float]:
    """Put a simulation into numbers; names end in their unit. What was not measured is left out.

    ``lost_s`` is the headline: seconds spent on what had been cached, on computing it again, loading it back from the
    host, or fetching it from storage to there.
    Times of requests and programs are in simulated seconds, ``wall_s`` and ``calls_per_min`` in real ones.
    """
    counters, times = result.counters, result.times
    measures: dict[str, float] = {
        "lost_s": result.lost_s,
        "recomputed_s": times.recompute_s,
        "recomputed_tokens": counters.recomputed_tokens,
        "reloaded_s": counters.load_back_s,
        "reloaded_tokens": counters.load_back_tokens,
        "stalled_s": counters.stall_s,
        "prefill_s": times.prefill_s,
        "decode_s": times.decode_s,
        "prompt_tokens": counters.prompt_tokens,
        "hit_device_tokens": counters.hit_tokens["device"],
        "hit_host_tokens": counters.hit_tokens["host"],
        "retractions": times.retractions,
        "rejected": times.rejected,
        "calls": result.calls,
        "programs": result.workflows,
        "span_s": result.span_s,
        "wall_s": result.wall_s,
        "calls_per_min": 60 * result.calls / max(result.wall_s, 1e-9),
    }
    if result.settings.storage_tokens:
        measures |= {"fetched_s": result.fetched_s, "fetched_tokens": result.fetched_tokens}
    measures |= spread("ttft", times.ttft_s, p50=0.5, p95=0.95, p99=0.99)
    measures |= spread("completion", [*result.completion_s.values()], p95=0.95)
    measures |= spread("queue", times.queue_s, p95=0.95)
    if result.regret is not None:
        measures |= {f"guard_{name}": value for name, value in asdict(result.regret).items()}
        measures["guard_share"] = result.share if result.share is not None else 0.0
    return measures


def spread(name: str, values_s: Sequence[float], **shares: float) -> dict[str, float]:
    """Give mean and quantiles of durations in seconds (``NAME_mean_s``, ``NAME_p95_s``)."""
    if not values_s:
        return {}
    ordered = sorted(values_s)
    return {f"{name}_mean_s": fmean(ordered)} | {
        f"{name}_{label}_s": quantile(ordered, share) for label, share in shares.items()
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """Value that ``share`` of the sorted values do not exceed, interpolated linearly between neighbours."""
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
