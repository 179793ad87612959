"""Hooks of SGLang's scheduler by which loads in the background are waited for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from sglang.srt.managers.schedule_policy import AddReqResult


def adder_class(result: type, self: Any) -> type:
    """Let requests be passed over (hook after ``Scheduler.get_prefill_adder_class``)."""
    cache = self.tree_cache
    deciding = getattr(cache, "prefetch", None) is not None or getattr(cache, "gate", None) is not None
    if not deciding or cache.supports_mamba():  # who is passed over there keeps a state that is somebody else's by then
        return result
    return _patient(result)


def decode(result: None, self: Any) -> None:
    """Forget which load the batch had to wait for (hook after ``ScheduleBatch.prepare_for_decode``).

    SGLang keeps the number of the load that a prefill waited for. All of it has arrived since, and the number may by
    now be that of a load ahead, for which decoding would wait in every layer.
    """
    self.hicache_consumer_index = -1


def settle(self: Any, *args: Any, **kwargs: Any) -> None:
    """Let what kvflow has begun end, for what SGLang does only when it is idle.

    Hook before ``Scheduler.flush_cache``, ``attach_hicache_storage_wrapped`` and ``detach_hicache_storage_wrapped``,
    which refuse if it is not, and ``SchedulerWeightUpdaterManager.release_memory_occupation``, by which it then ends.
    Where requests run or wait they refuse nevertheless, and nothing is waited for.
    """
    scheduler = self if hasattr(self, "tree_cache") else self.scheduler
    prefetch = getattr(getattr(scheduler, "tree_cache", None), "prefetch", None)
    if prefetch is not None and scheduler.is_fully_idle(for_health_check=True, ignore_waiting=scheduler._engine_paused):
        prefetch.settle()


@cache
def _patient(base: type) -> type:
    """A prefill adder that passes over requests whose context is still being loaded, while others can run.

    And those that admission has not seen yet, and large ones that there is no memory for.
    """

    class PatientAdder(base):
        def add_one_req(self, req: Any, *args: Any, **kwargs: Any) -> Any:
            if self.preempt_list:  # requests have lost their memory to this one
                return super().add_one_req(req, *args, **kwargs)
            busy = bool(self.can_run_list) or not self.running_batch.is_empty()
            gate, prefetch = self.tree_cache.gate, self.tree_cache.prefetch
            if gate is not None and gate.late(req):
                return AddReqResult.CONTINUE
            if prefetch is not None and self._has_adapter_of(req) and prefetch.passes_over(req, busy=busy):
                return AddReqResult.CONTINUE
            result = super().add_one_req(req, *args, **kwargs)
            refused = result is AddReqResult.NO_TOKEN and not (self.can_run_list and self.can_run_list[-1] is req)
            if refused and gate is not None and self._has_adapter_of(req) and gate.refused(req):
                return AddReqResult.CONTINUE
            return result

        def _has_adapter_of(self, req: Any) -> bool:
            """Whether a request needs no LoRA adapter but those of the batch, among which SGLang counts it anyway.

            None is one of them, where there are others.
            """
            return req.lora_id in self._adapters() or not (req.lora_id or any(self._adapters()))

        def _adapters(self) -> Iterator[str | None]:
            yield from (each.lora_id for each in self.can_run_list)
            yield from (each.lora_id for each in self.running_batch.reqs if not each.finished())

    return PatientAdder
