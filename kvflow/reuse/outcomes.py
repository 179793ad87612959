"""Outcomes: what applications say came of their workflows, with reuse and without.

An outcome belongs to a workflow, and so to every slot whose text was put into a prompt of it or of its sub-workflows.
What it would have been without reuse is learned from workflows into which nothing was put although texts were at hand:
one in so many is computed for comparison as soon as a workflow type reports outcomes at all.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from statistics import fmean, variance
from typing import TypeVar
from zlib import crc32

from kvflow.reuse.prompt import SlotKey

K = TypeVar("K")
V = TypeVar("V")

_LEAST = 8
"""Outcomes of each kind that a verdict needs."""
_LEAST_EVERY = 4
"""However often reuse is checked, most workflows are served with it."""
_LATEST = 64
"""Outcomes of each kind it looks back on."""
_SIGMAS = 3.0
"""Standard errors by which a loss has to exceed the bound; so many because it is asked after every outcome."""
_SLOTS = 256
"""Slots of one workflow."""
_REMEMBERED = 4096
"""Slots, workflow types, and workflows whose outcome is waited for; their names come from clients."""


@dataclass(slots=True)
class _Record:
    reused: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))
    computed: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))


class Outcomes:
    """Outcomes of all slots. Decides by counting and by names, so that ranks decide alike.

    Args:
        loss: how much lower the mean outcome may be with reuse.
        every: one of so many workflows is computed.
    """

    def __init__(self, loss: float = 0.05, every: int = 8) -> None:
        self._loss = loss
        self._every = max(every, _LEAST_EVERY)
        self._pending: OrderedDict[str, dict[SlotKey, bool]] = OrderedDict()
        self._records: OrderedDict[SlotKey, _Record] = OrderedDict()
        self._reporting: OrderedDict[str, None] = OrderedDict()

    def compares(self, workflow_id: str, workflow_type: str) -> bool:
        """Whether a workflow is computed, for the others to be compared with.

        Args:
            workflow_id: the outermost one, so that all of it is computed.
            workflow_type: of the prompt.
        """
        return workflow_type in self._reporting and crc32(workflow_id.encode()) % self._every == 0

    def served(self, workflow_id: str, at_hand: Iterable[SlotKey], put_in: Collection[SlotKey]) -> None:
        """A prompt of a workflow, or of a sub-workflow of it, has been planned.

        Args:
            workflow_id: which.
            at_hand: slots whose texts were.
            put_in: slots whose texts are.
        """
        pending = _latest(self._pending, workflow_id, {})
        for slot in at_hand:
            pending[slot] = slot in put_in or pending.get(slot, False)
        while len(pending) > _SLOTS:
            del pending[next(iter(pending))]

    def report(self, workflow_id: str, outcome: float) -> list[SlotKey]:
        """Take an outcome, from 0 to 1; returns slots in which reuse makes outcomes worse."""
        worse: list[SlotKey] = []
        pending = self._pending.pop(workflow_id, {})
        spliced = any(pending.values())
        for slot, put_in in pending.items():
            _latest(self._reporting, slot[1], None)
            if spliced and not put_in:
                continue
            record = _latest(self._records, slot, _Record())
            (record.reused if spliced else record.computed).append(outcome)
            if self._worse(record):
                record.reused.clear()
                worse.append(slot)
        for slot in worse:  # what was spliced before the verdict says nothing new
            for pending in self._pending.values():
                pending.pop(slot, None)
        return worse

    def means(self, slot: SlotKey) -> dict[str, float | None]:
        """Mean outcome with reuse and without; None where there is none."""
        record = self._records.get(slot, _Record())
        return {"outcome_reused": _mean(record.reused), "outcome_computed": _mean(record.computed)}

    def _worse(self, record: _Record) -> bool:
        """Compare means as Welch's test does, whose kinds may vary differently."""
        if min(len(record.reused), len(record.computed)) < _LEAST:
            return False
        error = sum(variance(kind) / len(kind) for kind in (record.reused, record.computed)) ** 0.5
        return fmean(record.computed) - fmean(record.reused) > self._loss + _SIGMAS * error


def _latest(remembered: OrderedDict[K, V], key: K, new: V) -> V:
    """Find or make an entry, which becomes the last to be forgotten."""
    entry = remembered.setdefault(key, new)
    remembered.move_to_end(key)
    if len(remembered) > _REMEMBERED:
        remembered.popitem(last=False)
    return entry


def _mean(numbers: deque[float]) -> float | None:
    return fmean(numbers) if numbers else None
