"""The result of a replay as one document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvflow.replay.arms import Arm
from kvflow.replay.folder import traces_digest
from kvflow.replay.live import live_tokens
from kvflow.replay.metrics import PAIRED, difference, measures, values
from kvflow.replay.record import CallRecord, Round, ToolRecord
from kvflow.replay.run import Plan
from kvflow.sim.workload import Workload

KIND = "replay"
_SIZES = ("device_tokens", "host_tokens", "page_tokens", "link_bytes_s")
_SHOWN_CALLS = 400
"""Of one workflow, for its timeline."""


def document(loads: Sequence[tuple[Plan, Sequence[Round]]], workload: Workload) -> dict[str, Any]:
    """Make the document of a replay; the caller adds where and when it was run.

    Args:
        loads: rounds that were played, with their plan, smallest load first.
        workload: what was drawn from.
    """
    rounds = [seen for _, played in loads for seen in played]
    return {
        "kind": KIND,
        "settings": loads[0][0].as_dict(),
        "traces": [asdict(file) for file in workload.files],
        "traces_digest": traces_digest(workload),
        "seams_hold": not any(seen.broken_seams for seen in rounds),
        "loads": [_load(plan, played, workload) for plan, played in loads],
    }


def _load(plan: Plan, rounds: Sequence[Round], workload: Workload) -> dict[str, Any]:
    work = plan.load.drawn(workload, plan.seed)
    of_arm = {arm.name: [seen for seen in rounds if seen.arm == arm.name] for arm in plan.arms}
    base = of_arm[plan.arms[0].name]
    shown = _shown_workflow([own[0] for own in of_arm.values() if own])
    answers = {index: {seen.answers for seen in rounds if seen.index == index} for index in range(plan.rounds)}
    return {
        "at_once": plan.load.at_once or len(work),
        "per_min": plan.load.per_min,
        "programs": len(work),
        "rounds": plan.rounds,
        "kept_rounds": sum(seen.kept for seen in rounds),
        "kept": [f"{seen.arm}, round {seen.index}" for seen in rounds if seen.kept],
        "calls": sum(len(program.calls) for program in work),
        "sizes": {name: plan.notes[name] for name in _SIZES if name in plan.notes},
        "live_tokens": round(live_tokens(work, plan.load.at_once)),
        "identical_tokens": all(len(each) == 1 for each in answers.values()),
        "arms": [_arm(arm, of_arm[arm.name], base, shown) for arm in plan.arms],
    }


def _arm(arm: Arm, rounds: Sequence[Round], base: Sequence[Round], shown: str | None) -> dict[str, Any]:
    against: dict[str, Any] = {}
    if rounds is not base:
        for name in PAIRED:
            found = difference(values(base, name), values(rounds, name))
            against[name] = found and asdict(found) | {"distinct": found.distinct, "tells": found.tells}
    return {
        "name": arm.name,
        "flags": list(arm.flags),
        "env": dict(arm.env),
        "hints": arm.hints,
        "kvflow": any(seen.broken_seams is not None for seen in rounds),
        "device_tokens": next((seen.device_tokens for seen in rounds), None),
        "measures": measures(rounds),
        "against_first": against,
        "workflows": [_workflows(seen) for seen in rounds],
        "timeline": _timeline(rounds[0], shown) if rounds and shown else None,
        "replicas": [seen.stats.get("replicas") for seen in rounds if seen.stats],
        "degraded": dict(sum((Counter(seen.stats.get("degraded")) for seen in rounds), Counter())),
        "errors": _errors(rounds),
    }


def _workflows(seen: Round) -> dict[str, Any]:
    """What of a round is kept: enough to compare it with another run's."""
    paired = {name: values([seen], name)[seen.index] for name in PAIRED}
    return {
        "round": seen.index,
        "seed": seen.seed,
        "span_s": seen.span_s,
        "ended_s": sorted(round(flow.ended_s, 3) for flow in seen.workflows),
        **{name: {key: round(value, 5) for key, value in of.items()} for name, of in paired.items()},
    }


def _shown_workflow(rounds: Sequence[Round]) -> str | None:
    """The workflow with the middle number of calls, of those that no arm failed; None if there is none."""
    whole = [{flow.workflow for flow in seen.workflows if not flow.failed_calls} for seen in rounds]
    common = set.intersection(*whole) if whole else set()
    calls = Counter(call.workflow for seen in rounds for call in seen.calls)
    ranked = sorted(common, key=lambda name: (calls[name], name))
    return ranked[len(ranked) // 2] if ranked else None


def _timeline(seen: Round, name: str) -> dict[str, Any]:
    """All that happened to a workflow."""
    flow = next(flow for flow in seen.workflows if flow.workflow == name)
    events = [_shown(event) for event in (*seen.calls, *seen.tools) if event.workflow == name]
    events.sort(key=lambda event: event["start_s"])
    return {
        "workflow": name,
        "start_s": flow.started_s,
        "end_s": flow.ended_s,
        "events": events[:_SHOWN_CALLS],
        "left_out": max(0, len(events) - _SHOWN_CALLS),
    }


def _shown(event: CallRecord | ToolRecord) -> dict[str, Any]:
    if isinstance(event, ToolRecord):
        kind = {"what": "tool", "name": event.tool, "start_s": event.start_s, "end_s": event.end_s}
    else:
        first_s = event.ended_s if event.first_s is None else event.first_s
        kind = {"what": "call", "name": event.agent, "start_s": event.asked_s, "end_s": event.ended_s}
        kind |= {"run_s": event.asked_s + event.queued_before_s, "first_s": first_s}
        kind |= {"prompt_tokens": event.prompt_tokens, "device_tokens": event.device_tokens}
        kind |= {"host_tokens": event.host_tokens, "recomputed_tokens": event.recomputed_tokens}
        kind |= {"output_tokens": event.output_tokens}
    rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in kind.items()}
    return rounded | {"thread": event.thread}


def _errors(rounds: Sequence[Round]) -> list[str]:
    """Why calls failed, each reason once."""
    return list(dict.fromkeys(call.error for seen in rounds for call in seen.calls if call.error))[:5]
