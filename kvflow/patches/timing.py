"""How long the scheduler's batches take, from their launch or the end of the one before, whichever is later."""

from __future__ import annotations

import time
from typing import Any

from kvflow.engine.speed import Speed
from kvflow.patches.guard import Guard
from kvflow.policy import ServingCosts

_MOST_UNDER_WAY = 8


class Timing:
    """Times batches that do nothing but compute, on the device's queue, which works them off one by one.

    Left out are prefill batches that wait for loads or may reuse texts, those that decode as well, and all speculation.

    Args:
        costs: as they were set.
    """

    def __init__(self, costs: ServingCosts) -> None:
        self.speed = Speed(costs)
        self._done_s = 0.0
        self._under_way: dict[int, tuple[Any, ...]] = {}
        self._guard = Guard("timing")

    def launched(self, batch: Any) -> None:
        """A batch has been launched."""
        self._guard.run(self._launched, batch, default=None)

    def processed(self, batch: Any) -> None:
        """What came of it has been taken over."""
        self._guard.run(self._processed, batch, default=None)

    def _launched(self, batch: Any) -> None:
        mode = batch.forward_mode
        work: tuple[Any, ...]
        if mode.is_decode() and batch.spec_algorithm.is_none():
            work = (len(batch.reqs), int(batch.seq_lens_cpu.sum()))
        elif mode.is_extend_without_speculative() and not (mode.is_mixed() or batch.hicache_consumer_index >= 0):
            work = ([(start, start + new) for start, new in zip(batch.prefix_lens, batch.extend_lens, strict=True)],)
        else:
            return
        if len(self._under_way) >= _MOST_UNDER_WAY:
            self._under_way.clear()
        self._under_way[batch.forward_iter] = work

    def _processed(self, batch: Any) -> None:
        now_s = time.monotonic()
        work = self._under_way.pop(batch.forward_iter, None)
        taken_s = now_s - max(batch.launch_ts or now_s, self._done_s)
        self._done_s = now_s
        if work is not None:
            (self.speed.decoded if batch.forward_mode.is_decode() else self.speed.prefilled)(*work, taken_s)


def launched(result: Any, self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Take note of a batch (hook after ``Scheduler.run_batch``)."""
    timing = getattr(self.tree_cache, "timing", None)
    if timing is not None and (self.tree_cache.splicer is None or batch.forward_mode.is_decode()):
        timing.launched(batch)
    return result


def processed(result: None, self: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Take note that it is over (hook after ``Scheduler.process_batch_result``)."""
    timing = getattr(self.tree_cache, "timing", None)
    if timing is not None:
        timing.processed(batch)
