"""The scheduler's end: ordered messages in, answers out. Runs on every rank alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from sglang.utils import TypeBasedDispatcher

from kvflow.errors import KVFlowError
from kvflow.patches import reuse_hooks, switch
from kvflow.patches.guard import degraded, note
from kvflow.patches.messages import KvflowAnswer, KvflowQuery, KvflowUpdates
from kvflow.patches.orders import require_servable
from kvflow.patches.seams import Role
from kvflow.patches.tree import KvflowRadixCache
from kvflow.predict import WorkflowUpdate


def dispatch(result: None, self: Any) -> None:
    """Route our messages (hook after ``Scheduler.init_request_dispatcher``)."""
    self._request_dispatcher += TypeBasedDispatcher(
        [
            (KvflowUpdates, lambda message: take_updates(self.tree_cache, message)),
            (KvflowQuery, lambda message: answer(self.tree_cache, message)),
        ]
    )
    self.tree_cache.kvflow_reuse_problem = reuse_hooks.start(self)
    if isinstance(self.tree_cache, KvflowRadixCache):
        self.tree_cache.coordinator.claims.replicated = self.server_args.dp_size > 1
        self.tree_cache.commands.tell = self.ipc_channels.send_to_tokenizer.send_output


def take_updates(cache: Any, message: KvflowUpdates) -> None:
    """Take over the time, then predictions. A broken one is logged and skipped: hints never break anything."""
    if not isinstance(cache, KvflowRadixCache):
        return
    cache.coordinator.tick(message.now_s)
    try:
        cache.coordinator.learn_costs(message.costs)
    except Exception:
        note("applying costs")
    cache.commands.tick()
    for update in message.updates:
        try:
            cache.coordinator.apply(WorkflowUpdate.from_wire(update))
        except Exception:
            note("applying predictions")
    for workflow_id, outcome in message.feedback:
        if cache.splicer is not None:
            cache.splicer.feedback(workflow_id, outcome)
    cache.watch.publish()


def answer(cache: Any, message: KvflowQuery) -> KvflowAnswer:
    """Answer a question; an exception here would kill the scheduler, so it travels back as text."""
    try:
        if not isinstance(cache, KvflowRadixCache) and message.op != "status":
            return KvflowAnswer(query_id=message.query_id, error="kvflow's eviction is off; see /kvflow/v1/status")
        data = OPERATIONS[message.op](cache, **message.arguments)
        return KvflowAnswer(query_id=message.query_id, data=data)
    except Exception as error:
        if not isinstance(error, KVFlowError):  # else somebody has asked for what does not exist
            note(f"answering {message.op}")
        return KvflowAnswer(query_id=message.query_id, error=f"{type(error).__name__}: {error}")


def _status(cache: Any) -> dict[str, Any]:
    active = isinstance(cache, KvflowRadixCache)
    return {
        "policy": cache.coordinator.policy if active else None,
        "guard": cache.trust.as_dict() if active else None,
        "now_s": cache.coordinator.claims.clock.now_s if active else None,
        "queue_s": cache.coordinator.claims.clock.queue_s if active else None,
        "costs": asdict(cache.coordinator.costs) if active else None,
        "cache": type(cache).__name__,
        "tree_core": type(getattr(cache, "tree_core", None)).__name__,
        "reuse": getattr(cache, "kvflow_reuse_problem", "") or "on",
        "degraded": dict(degraded),
        "seams": [state.as_dict() for state in switch.books[Role.SCHEDULER].states()],
    }


def _stats(cache: KvflowRadixCache, reset: bool = False) -> dict[str, Any]:
    cache.publish()
    data = asdict(cache.accounting.counters)
    data["live_workflows"] = len(cache.coordinator.claims)
    data["copies_under_way"] = len(cache.ongoing_write_through)
    data["guard"] = cache.trust.as_dict()
    if cache.gate is not None:
        data["admission"] = {"programs": cache.gate.programs.under_way, "held": cache.gate.programs.held}
    if cache.splicer is not None:
        data["reuse"] = cache.splicer.stats()
    data["commands"] = dict(cache.commands.outcomes)
    data["queue_s"] = cache.coordinator.claims.clock.queue_s
    if reset:
        cache.commands.outcomes.clear()
        cache.restart_counters()
    return data


def _waits(cache: KvflowRadixCache) -> dict[str, Any]:
    """What can be learned of this server: how long requests wait, and how long loads and batches take, if known."""
    counters = cache.accounting.counters
    speed = cache.timing.speed if cache.timing is not None else None
    return {
        "queue_s": cache.coordinator.claims.clock.queue_s,
        "reload_s": counters.load_back_s / counters.load_backs if counters.load_backs else None,
        "load_token_s": counters.load_back_s / counters.load_back_tokens if counters.load_back_tokens else None,
        "prefill_factor": speed.prefill_factor if speed is not None else None,
        "decode_factor": speed.decode_factor if speed is not None else None,
    }


def _set_policy(cache: KvflowRadixCache, policy: str) -> dict[str, Any]:
    require_servable(policy)
    cache.coordinator.set_policy(policy)
    cache.trust.restart()
    return {"policy": cache.coordinator.policy}


def _residency(cache: KvflowRadixCache, now_s: float) -> dict[str, Any]:
    return cache.residency.look(now_s)


def _execute(cache: KvflowRadixCache, commands: list[dict[str, Any]]) -> dict[str, Any]:
    return {"answers": cache.commands.execute(commands)}


def _explain(cache: KvflowRadixCache, workflow_id: str | None, limit: int) -> dict[str, Any]:
    journal = cache.journal
    return {
        "now_s": cache.coordinator.claims.clock.now_s,
        "entries": journal.read(workflow_id, limit),
        "stalled": journal.stalls.read(workflow_id, limit),
    }


def _checks(cache: KvflowRadixCache) -> dict[str, Any]:
    if cache.splicer is None:
        return {}
    checks = cache.splicer.checks
    return {"due": checks.due(), "replica": checks.replica}


OPERATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "status": _status,
    "stats": _stats,
    "waits": _waits,
    "set_policy": _set_policy,
    "residency": _residency,
    "commands": _execute,
    "explain": _explain,
    "checks": _checks,
}
