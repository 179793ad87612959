"""How long the scheduler's batches take to be computed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sglang.srt.managers.utils import is_health_check_generate_req
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from kvflow.engine.speed import Speed
from kvflow.patches.guard import Guard
from kvflow.policy import ServingCosts

logger = logging.getLogger(__name__)

_MOST_UNDER_WAY = 8


class Timing:
    """Times batches that do nothing but compute.

    A GPU works off what is launched one by one, so that a batch takes from its launch, or the end of the one before if
    that is later, until its result is there. A CPU computes while it is launched, and SGLang takes the results over a
    batch later. Left out are prefill batches that wait for loads or may reuse texts, those that decode as well,
    health checks, and all of a server that speculates.

    Args:
        costs: as they were set.
    """

    def __init__(self, costs: ServingCosts) -> None:
        self.speed = Speed(costs)
        self._done_s = 0.0
        self._under_way: dict[int, Callable[[float], None]] = {}
        self._guard = Guard("timing")
        self._speculates = False

    def launched(self, batch: Any) -> None:
        """A batch has been launched."""
        self._guard.run(self._launched, batch, default=None)

    def processed(self, batch: Any) -> None:
        """What came of it has been taken over."""
        self._guard.run(self._processed, batch, default=None)

    def _launched(self, batch: Any) -> None:
        mode = batch.forward_mode
        if not batch.spec_algorithm.is_none():
            self._leave_out()
            return
        if all(map(is_health_check_generate_req, batch.reqs)):
            return
        if mode == ForwardMode.DECODE:
            took = partial(self.speed.decoded, len(batch.reqs), int(batch.seq_lens_cpu.sum()))
        elif mode == ForwardMode.EXTEND and batch.hicache_consumer_index < 0:
            spans = [(start, start + new) for start, new in zip(batch.prefix_lens, batch.extend_lens, strict=True)]
            took = partial(self.speed.prefilled, spans)
        else:
            return
        if str(batch.device).startswith("cpu"):
            took(time.monotonic() - batch.launch_ts)
            return
        if len(self._under_way) >= _MOST_UNDER_WAY:
            self._under_way.clear()
        self._under_way[batch.forward_iter] = took

    def _leave_out(self) -> None:
        if not self._speculates:
            self._speculates = True
            logger.info("kvflow: this server speculates, so what it takes to compute is not measured, only loads are")

    def _processed(self, batch: Any) -> None:
        now_s = time.monotonic()
        took = self._under_way.pop(batch.forward_iter, None)
        began_s, self._done_s = max(batch.launch_ts or now_s, self._done_s), now_s
        if took is not None:
            took(now_s - began_s)


def launched(result: Any, self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Take note of a batch (hook after ``Scheduler.run_batch``)."""
    timing = getattr(self.tree_cache, "timing", None)
    if timing is None or getattr(self, "enable_pdmux", False):
        return result
    if self.tree_cache.splicer is None or batch.forward_mode == ForwardMode.DECODE:
        timing.launched(batch)
    return result


def processed(result: None, self: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Take note that it is over (hook after ``Scheduler.process_batch_result``)."""
    timing = getattr(self.tree_cache, "timing", None)
    if timing is not None:
        timing.processed(batch)
