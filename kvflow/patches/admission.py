"""Program-aware admission in SGLang: requests of programs that wait for their turn are kept out of its sight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvflow.engine import Programs
from kvflow.patches.claim import claim_of, refused
from kvflow.patches.guard import Guard
from kvflow.policy import AdmissionMemory, ProgramAdmission

if TYPE_CHECKING:
    from kvflow.patches.tree import KvflowRadixCache


_LOOK_S = 0.25
"""How often to look at a queue of which SGLang lets nobody in: what programs will use fades."""


class Gate:
    """Follows the programs of one scheduler's requests, and holds requests back for one pass at a time.

    Decides by what every rank sees alike. Should it fail, or what it goes by, SGLang admits as it always does.

    Args:
        cache: what there is to hold contexts in, and whose they are.
    """

    def __init__(self, cache: KvflowRadixCache) -> None:
        coordinator = cache.coordinator
        self.programs = Programs(
            coordinator.claims,
            ProgramAdmission(coordinator.costs),
            cache.journal,
            cached=coordinator.cached,
            unit_tokens=cache.tree_core.unit_tokens,
        )
        self._cache = cache
        self._queued: dict[str, int] = {}
        self._failed = self._idle = self._passes_by = False
        self._looked_s = 0.0
        self._looks = False
        self._scheduler: Any = None
        self._guard = Guard("admission")

    def hold(self, scheduler: Any, running_batch: Any = None) -> list[Any]:
        """Put the requests that may run in their order, and take the others out of the queue and return them.

        Args:
            scheduler: whose queue it is.
            running_batch: those that run, as SGLang is going to see them; None if nobody knows.

        Cost: O(queue); O(1) in passes in which SGLang lets nobody in, nobody has come or gone, and it is not yet time
        to look again.
        """
        queue: list[Any] = scheduler.waiting_queue
        self._scheduler, self._looks = scheduler, not self._given_up()
        if not self._looks:
            return []
        self._idle = self.programs.at_rest and self._guard.run(_without_claims, queue, default=False)
        if self._idle:  # most passes decode, or nobody has hints
            self._queued = {}
            return []
        self._passes_by = self._guard.run(self._nothing_to_do, scheduler, running_batch, default=False)
        if self._passes_by:
            return []
        allowed = self._guard.run(self._allowed, queue, default=None)
        self._failed = allowed is None
        if allowed is None:
            return []
        requests = {req.rid: req for req in queue}
        scheduler.waiting_queue = [requests.pop(rid) for rid in allowed]
        return list(requests.values())

    def release(self, scheduler: Any, held: list[Any], batch: Any) -> None:
        """Put them back where they were; of what has left the queue, what is in the new batch has started.

        SGLang gives up the others: its queue was full, for example.
        """
        if self._idle or not self._looks or (self._passes_by and batch is None):
            return
        if not self._failed:
            queued, last = self._queued, len(self._queued)
            queue = [*held, *scheduler.waiting_queue]
            scheduler.waiting_queue = sorted(queue, key=lambda req: queued.get(req.rid, last))
        self._guard.run(self._started, scheduler.waiting_queue, batch, default=None)

    def late(self, req: Any) -> bool:
        """Whether a request has come since the pass began: its grammar has been compiled. The next pass has it."""
        return self._looks and not self._failed and req.rid not in self._queued and _counts(req)

    def refused(self, req: Any) -> bool:
        """SGLang has no memory for a request; tells whether others may go before it."""
        return self._looks and self._guard.run(self.programs.refused, req.rid, default=False)

    def left(self, req: Any, digests: Sequence[int]) -> None:
        """A request has given its memory back: answered, aborted, or to start again.

        Args:
            req: the request.
            digests: of what of it has been left in the cache.
        """
        if req.finished():
            generated_tokens = 0 if refused(req) else len(req.output_ids)
            self._guard.run(self.programs.left, req.rid, generated_tokens, digests, default=None)
        elif getattr(self._scheduler, "_engine_paused", False):  # everybody loses their memory then
            self._guard.run(self.programs.stopped, req.rid, default=None)
        else:
            self._guard.run(self.programs.retracted, req.rid, default=None)

    def _given_up(self) -> bool:
        """Whether admission has failed too often, or following contexts has, by which it decides."""
        if self._guard.failures_left and self._cache.follows:
            return False
        if self._looks:
            Guard("admission").run(self.programs.give_up, default=None)
        return True

    def _nothing_to_do(self, scheduler: Any, running_batch: Any) -> bool:
        """Whether nobody can be let in, and there is nothing to learn either."""
        queue, now_s = scheduler.waiting_queue, self._cache.coordinator.claims.clock.now_s
        if self._failed or running_batch is None or not queue or now_s - self._looked_s >= _LOOK_S:
            return False
        is_known = len(queue) == len(self._queued) and queue[-1].rid in self._queued  # who comes is the last
        return is_known and is_shut(scheduler, running_batch)

    def _allowed(self, queue: list[Any]) -> list[str]:
        rids = {req.rid: place for place, req in enumerate(queue)}
        for rid in [rid for rid in self.programs.waiting() if rid not in rids]:
            self.programs.left(rid, 0)  # aborted before it could start, or start again
        for req in queue:
            claim = claim_of(req)
            if claim is not None and _counts(req) and req.rid not in self._queued:
                if getattr(req, "skip_radix_cache_insert", False):  # of what it computes others find nothing
                    claim = replace(claim, fixed_tokens=None)
                self._cache.coordinator.asked(claim)
                digests = self._cache.watch.digests(req)
                tokens = len(req.origin_input_ids) + len(req.output_ids)  # it has some if it was retracted
                self.programs.arrived(req.rid, claim, tokens, digests)
        self._queued, self._looked_s = rids, self._cache.coordinator.claims.clock.now_s
        return self.programs.arrange(list(rids), self._memory())

    def _started(self, queue: list[Any], batch: Any) -> None:
        waits = {req.rid for req in queue}
        starts = {req.rid for req in batch.reqs} if batch is not None else set()
        for rid in [rid for rid in self._queued if rid not in waits]:
            if rid in starts:
                self.programs.started(rid)
            else:
                self.programs.left(rid, 0)
        self._queued = {rid: place for rid, place in self._queued.items() if rid in waits}

    def _memory(self) -> AdmissionMemory:
        memory = self._cache.watch.memory()
        return AdmissionMemory(device_tokens=memory.device_tokens, host_tokens=memory.host_tokens)


def is_shut(scheduler: Any, running_batch: Any) -> bool:
    """Whether SGLang goes on without a look at its queue, since nobody has left the batch that was full."""
    asks_anew = getattr(scheduler, "enable_priority_preemption", True) or getattr(scheduler, "is_hybrid_swa", True)
    full = running_batch.batch_is_full and not running_batch.is_empty()
    return full and scheduler.chunked_req is None and not asks_anew


def _counts(req: Any) -> bool:
    """Whether a request has a turn to wait for: one that SGLang has refused only waits to be told."""
    return claim_of(req) is not None and not refused(req)


def _without_claims(queue: list[Any]) -> bool:
    return not any(map(claim_of, queue))
