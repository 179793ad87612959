"""How long forward passes wait for loads.

On CUDA the wait is a command in a stream, so it is timed by events around it and read when they have passed; on the
CPU engine the thread itself blocks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

_MAX_PENDING = 4096

_pending: deque[tuple[Any, Any]] = deque(maxlen=_MAX_PENDING)
_stall_s = 0.0


def wait(original: Any, self: Any, layer_index: int) -> None:
    """Time one layer's wait (hook around ``LayerLoadingEvent.wait``)."""
    global _stall_s
    if torch.cuda.is_available():
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        original(self, layer_index)
        after.record()
        _pending.append((before, after))
        return
    start_s = time.perf_counter()
    original(self, layer_index)
    _stall_s += time.perf_counter() - start_s


def total_s() -> float:
    """Seconds waited so far, as far as the device has got."""
    global _stall_s
    while _pending and _pending[0][1].query():
        before, after = _pending.popleft()
        _stall_s += before.elapsed_time(after) / 1000
    return _stall_s


def begins(reqs: Iterable[Any]) -> None:
    """The requests of a batch that waits for loads."""
    for req in reqs:
        req._kvflow_stall_base_s = total_s()


def of(req: Any) -> float:
    """Seconds a request's batch has waited since then; 0 if it waited for nothing, or was asked about before."""
    base_s = req.__dict__.pop("_kvflow_stall_base_s", None)
    return 0.0 if base_s is None else total_s() - base_s
