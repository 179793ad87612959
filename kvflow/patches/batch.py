"""Where SGLang forms a prefill batch: who may be in it, which load it has to wait for, and what is loaded next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvflow.patches import stall

if TYPE_CHECKING:
    from kvflow.patches.admission import Gate
    from kvflow.patches.prefetch import Prefetch


def form(original: Callable[..., Any], self: Any, prefill_delayer_single_pass: Any, running_batch: Any) -> Any:
    """Form a prefill batch (hook around ``Scheduler._get_new_batch_prefill_raw``)."""
    gate: Gate | None = getattr(self.tree_cache, "gate", None)
    prefetch: Prefetch | None = getattr(self.tree_cache, "prefetch", None)
    link_is_free = prefetch is not None and prefetch.reap()
    held = gate.hold(self) if gate is not None else []
    if link_is_free or (gate is not None and gate.has_news):
        running_batch.batch_is_full = False  # SGLang looks again when a request leaves
    batch = None
    try:
        result = original(self, prefill_delayer_single_pass, running_batch)
        batch = result[0]
    finally:
        if gate is not None:
            gate.release(self, held, batch)
    if gate is not None and gate.short and gate.tried_all:
        result[1].batch_is_full = True
    if prefetch is not None:
        prefetch.join(batch)
        running = sum(len(each.reqs) for each in result if each is not None)
        prefetch.begin(running, self.chunked_req)
    if batch is not None and batch.hicache_consumer_index >= 0:
        stall.begins(batch.reqs)
    return result
