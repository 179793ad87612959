"""What the arms' records say about each other."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from kvflow.demo.arms import ArmResult
from kvflow.demo.measure import RoundRecord
from kvflow.sim.measures import quantile


def compare(baseline: ArmResult, candidate: ArmResult) -> list[dict[str, Any]]:
    """Compare two arms metric by metric; ratio is candidate over baseline."""
    ours, theirs = _metrics(candidate), _metrics(baseline)
    return [
        {
            "metric": name,
            "unit": unit,
            "baseline": theirs[name][0],
            "kvflow": value,
            "ratio": value / theirs[name][0] if theirs[name][0] else None,
            "lower_is_better": lower,
        }
        for name, (value, unit, lower) in ours.items()
    ]


def identical_tokens(left: Sequence[RoundRecord], right: Sequence[RoundRecord]) -> bool:
    """Whether both arms generated the same tokens, call by call."""
    return [_outputs(record) for record in left] == [_outputs(record) for record in right]


def differing_calls(left: Sequence[RoundRecord], right: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """Calls with the same prompt and another answer: where arms that went apart did so, and what was cached there."""
    found = []
    for one, other in zip(left, right, strict=True):
        answers = {step.prompt: step for step in other.steps}
        for step in one.steps:
            twin = answers.get(step.prompt)
            if twin is not None and twin.output != step.output:
                position = next(n for n, (a, b) in enumerate(zip(step.output, twin.output, strict=True)) if a != b)
                calls = [call.as_dict() | {"output": call.output} for call in (step, twin)]
                found.append({"position": position, "prompt": step.prompt, "calls": calls})
    return found


def _outputs(record: RoundRecord) -> dict[tuple[str, str], list[tuple[int, ...]]]:
    outputs: dict[tuple[str, str], list[tuple[int, ...]]] = defaultdict(list)
    for step in sorted(record.steps, key=lambda step: step.start_s):
        outputs[step.workflow, step.agent].append(step.output)
    return outputs


def _metrics(result: ArmResult) -> dict[str, tuple[float, str, bool]]:
    """Value, unit and whether lower is better, by metric."""
    steps = [step for record in result.rounds for step in record.steps]
    flows = [w["end_s"] - w["start_s"] for record in result.rounds for w in record.workflows]
    latency = sorted(step.latency_s for step in steps)

    def tokens(name: str) -> int:
        return sum(getattr(step, name) for step in steps)

    return {
        "recomputed + reloaded tokens": (tokens("recomputed_tokens") + result.loaded_tokens, "tokens", True),
        "recomputed tokens": (tokens("recomputed_tokens"), "tokens", True),
        "load-back tokens": (result.loaded_tokens, "tokens", True),
        "load-back stall": (result.stall_s, "s", True),
        "cached tokens, device": (tokens("device_tokens"), "tokens", False),
        "step latency p50": (quantile(latency, 0.50), "s", True),
        "step latency p95": (quantile(latency, 0.95), "s", True),
        "workflow completion mean": (statistics.fmean(flows), "s", True),
        "workflow completion p95": (quantile(sorted(flows), 0.95), "s", True),
        "LLM calls": (len(steps), "calls", False),
    }
