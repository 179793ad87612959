"""Where SGLang forms a prefill batch: who may be in it, which load it has to wait for, and what is loaded next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvflow.patches import stall

if TYPE_CHECKING:
    from kvflow.patches.admission import Gate
    from kvflow.patches.prefetch import Prefetch


def form(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Form a prefill batch (hook around ``Scheduler._get_new_batch_prefill_raw``)."""
    gate: Gate | None = getattr(self.tree_cache, "gate", None)
    prefetch: Prefetch | None = getattr(self.tree_cache, "prefetch", None)
    if prefetch is not None:
        prefetch.reap()
    running_batch = kwargs.get("running_batch", args[1] if len(args) > 1 else None)
    held = gate.hold(self, running_batch) if gate is not None else []
    batch = None
    try:
        result = original(self, *args, **kwargs)
        batch = result[0]
    finally:
        if gate is not None:
            gate.release(self, held, batch)
    if prefetch is not None:
        prefetch.join(batch)
        running = sum(len(each.reqs) for each in result if each is not None)
        pending = self.flush_wrapper._pending
        prefetch.begin(running, self.chunked_req, flush=pending[0] if pending is not None else None)
    if batch is not None and batch.hicache_consumer_index >= 0:
        stall.begins(batch.reqs)
    return result
