"""A replay in cells and sentences. Losses are worded exactly like gains."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from kvflow.report.amounts import NOTHING, amounts, factor
from kvflow.report.replay_record import Against, LoadRecord, ReplayArm, ReplayRecord
from kvflow.report.simulation_rows import Cell, Row
from kvflow.report.verdict import Verdict
from kvflow.sim.summary import LEAST_ROUNDS

_FEW_PAIRS = 8
"""An interval drawn from fewer is not much more than their range."""
MEASURES = (
    ("completion_mean_s", "workflow completion mean", "s"),
    ("completion_p50_s", "workflow completion p50", "s"),
    ("completion_p95_s", "workflow completion p95", "s"),
    ("completion_p99_s", "workflow completion p99", "s"),
    ("run_mean_s", "of that, from its start, mean", "s"),
    ("run_p95_s", "of that, from its start, p95", "s"),
    ("latency_mean_s", "step latency mean", "s"),
    ("latency_p50_s", "step latency p50", "s"),
    ("latency_p95_s", "step latency p95", "s"),
    ("latency_p99_s", "step latency p99", "s"),
    ("ttft_mean_s", "TTFT mean", "s"),
    ("ttft_p50_s", "TTFT p50", "s"),
    ("ttft_p95_s", "TTFT p95", "s"),
    ("ttft_p99_s", "TTFT p99", "s"),
    ("inter_token_mean_s", "a call's inter-token time, mean", "s"),
    ("inter_token_p50_s", "a call's inter-token time, p50", "s"),
    ("inter_token_p95_s", "a call's inter-token time, p95", "s"),
    ("inter_token_p99_s", "a call's inter-token time, p99", "s"),
    ("pause_p50_s", "longest pause of an answer, p50", "s"),
    ("pause_p99_s", "longest pause of an answer, p99", "s"),
    ("queue_mean_s", "queueing mean", "s"),
    ("queue_p95_s", "queueing p95", "s"),
    ("stall_s", "stalled on load-backs", "s"),
    ("recomputed_tokens", "recomputed", "tokens"),
    ("reused_tokens", "put in by reuse", "tokens"),
    ("loaded_tokens", "loaded back", "tokens"),
    ("host_hit_tokens", "found on the host", "tokens"),
    ("fetched_tokens", "fetched from storage", "tokens"),
    ("cached_device_tokens", "cached on the device", "tokens"),
    ("prompt_tokens", "prompts", "tokens"),
    ("prefetched_tokens", "prefetched", "tokens"),
    ("prefetch_wasted_tokens", "prefetched in vain", "tokens"),
    ("prefetch_late_tokens", "prefetched too late", "tokens"),
    ("workflows_per_h", "workflows per hour", ""),
    ("tokens_per_h", "tokens per hour", ""),
    ("span_s", "a round took", "s"),
    ("server_cpu_s", "server's processor time", "s"),
    ("client_cpu_s", "clients' processor time", "s"),
    ("peak_memory_bytes", "server's peak memory", "bytes"),
    ("calls", "calls", ""),
    ("failed_calls", "calls that failed, in all rounds", ""),
    ("late_p99_s", "client late, p99", "s"),
)
_TOTALS = frozenset(
    {"stall_s", "recomputed_tokens", "loaded_tokens", "fetched_tokens", "cached_device_tokens", "prompt_tokens"}
    | {"host_hit_tokens", "calls", "reused_tokens"}
    | {"prefetched_tokens", "prefetch_wasted_tokens", "prefetch_late_tokens", "server_cpu_s", "client_cpu_s"}
)
"""Of all rounds together, and told of one."""
_PAIRED = {
    "completion_mean_s": "completion_s",
    "run_mean_s": "run_s",
    "latency_mean_s": "latency_s",
    "ttft_mean_s": "ttft_s",
}
BRIEF = ("completion s", "of the first", "p95 s", "TTFT s", "of the first", "recomputed", "loaded back", "failed")


def full_rows(load: LoadRecord) -> tuple[Row, ...]:
    """Return everything that was measured at one load, a column per arm; what nobody measured is left out."""
    found: list[Row] = []
    for measure in MEASURES:
        found.append(_row(load, *measure))
        if measure[0] in _PAIRED:
            of_calls = measure[0] in ("latency_mean_s", "ttft_mean_s")
            label = "each workflow's, relative to the first arm" if of_calls else "relative to the first arm"
            found.append(_relative(load, _PAIRED[measure[0]], label))
        if measure[0] == "completion_mean_s":
            found.append(_worst(load))
    return tuple(row for row in found if any(cell.text != NOTHING for cell in row.cells))


def brief_cells(load: LoadRecord) -> tuple[tuple[Cell, ...], ...]:
    """Return a line per arm under ``BRIEF``."""
    columns = [
        _row(load, "completion_mean_s", "", "s").cells,
        _relative(load, "completion_s", "").cells,
        _row(load, "completion_p95_s", "", "s").cells,
        _row(load, "ttft_mean_s", "", "s").cells,
        _relative(load, "ttft_s", "").cells,
        _row(load, "recomputed_tokens", "", "tokens").cells,
        _row(load, "loaded_tokens", "", "tokens").cells,
        _row(load, "failed_calls", "", "").cells,
    ]
    return tuple(zip(*columns, strict=True))


def headline(record: ReplayRecord) -> str:
    """Say how the last arm did against the first, at the largest load at which there were several."""
    load = next((load for load in reversed(record.loads) if len(load.arms) > 1), None)
    if load is None:
        return "One arm was replayed, and compared with nothing"
    arm, first = load.arms[-1], load.arms[0]
    found = arm.against_first.get("completion_s")
    if found is None:
        return f"{arm.name} and {first.name} have no workflow in common"
    between = f"[{found.ratio_low:.2f}, {found.ratio_high:.2f}]"
    if not found.tells:
        told = "in too few rounds or programs to tell"
        return f"{arm.name} took {found.ratio:.2f}x {between} as long as {first.name}, {told}"
    if found.verdict is Verdict.SAME:
        return f"{arm.name} and {first.name} take equally long, as far as can be told: {found.ratio:.2f}x {between}"
    word = "faster" if found.ratio < 1 else "slower, which is worse"
    return f"Workflows with {arm.name} take {found.ratio:.2f}x {between} as long as with {first.name}: {word}"


def _fewest_pairs(load: LoadRecord) -> float:
    found = [arm.against_first.get("completion_s") for arm in load.arms]
    return min((each.pairs for each in found if each is not None), default=inf)


def cautions(record: ReplayRecord) -> tuple[str, ...]:
    """Return what must be known before any number is believed."""
    found: list[str] = []
    if record.broken_off:
        found.append("The replay was broken off: this is of the arms and rounds that were over by then.")
    if record.seams_hold is False:
        found.append("A seam did not hold, so part of kvflow was switched off; kvflow doctor tells which.")
    for load in record.loads:
        found += (f"{load.title}: {caution}" for caution in (*_failures(load), *_doubts(load)))
    return tuple(found)


def _failures(load: LoadRecord) -> Iterator[str]:
    """What went wrong, so that arms did not do the same work."""
    if load.identical_tokens is False:
        yield "the arms did not get the same answers, so they did not do the same work."
    failed = {arm.name: int(arm.measures.get("failed_calls", 0)) for arm in load.arms}
    if any(failed.values()):
        told = ", ".join(f"{name}: {count}" for name, count in failed.items() if count)
        reasons = "; ".join(dict.fromkeys(error for arm in load.arms for error in arm.errors))
        left = ", ".join(f"{arm.name}: {_whole(arm)}" for arm in load.arms if failed[arm.name])
        yield (
            f"calls failed ({told}). Times are of workflows without one ({left}), which where time runs out are the "
            f"shorter ones; ratios are of those that both arms have. {reasons}"
        )
    for arm in load.arms:
        if arm.degraded:
            parts = ", ".join(f"{part}: {count}" for part, count in arm.degraded.items())
            yield f"parts of kvflow failed in {arm.name}, and it went on without ({parts})."


def _whole(arm: ReplayArm) -> str:
    whole, workflows = (arm.measures.get(name, 0) for name in ("whole_workflows", "workflows"))
    return f"{whole:g} of {workflows:g}"


def _doubts(load: LoadRecord) -> Iterator[str]:
    """What makes numbers say little."""
    late_s = max((arm.measures.get("late_p99_s", 0.0) for arm in load.arms), default=0.0)
    step_s = min((arm.measures.get("latency_p50_s", 1.0) for arm in load.arms), default=1.0)
    if late_s > max(0.1, 0.2 * step_s):
        yield f"the client itself was late by up to {late_s:.2f} s; it may be what was measured."
    if load.apart:
        yield f"an earlier run played {'; '.join(load.apart)}, not in turns with what is compared with it."
    pairs = _fewest_pairs(load)
    if pairs < _FEW_PAIRS:
        yield f"intervals are of {pairs} programs, and hardly more than their range."
    if load.rounds < LEAST_ROUNDS:
        many = "was one round only, so nothing is" if load.rounds < 2 else "were two rounds only, so little is"
        yield f"there {many} known of what differs between rounds, and intervals, which are of programs, too narrow."


def _worst(load: LoadRecord) -> Row:
    found = (arm.against_first.get("completion_s") for arm in load.arms)
    return Row(
        "worst workflow, relative", "", tuple(Cell(factor(each.worst_ratio) if each else NOTHING) for each in found)
    )


def _relative(load: LoadRecord, name: str, label: str) -> Row:
    return Row(label, "", tuple(_against(arm.against_first.get(name)) for arm in load.arms))


def _against(found: Against | None) -> Cell:
    if found is None:
        return Cell(NOTHING)
    return Cell(f"{factor(found.ratio)} [{factor(found.ratio_low)}, {factor(found.ratio_high)}]", found.verdict)


def _row(load: LoadRecord, measure: str, label: str, unit: str) -> Row:
    rounds = max(1, load.rounds) if measure in _TOTALS else 1
    found = (arm.measures.get(measure) for arm in load.arms)
    values = tuple(None if value is None else value / rounds for value in found)
    texts, unit = amounts(values, unit)
    return Row(label, unit, tuple(Cell(text) for text in texts))
