"""The quality gate: what reuse does to answers is measured, and where it does too much, it stops.

Some of the prompts that were spliced are computed twice more, spliced and exactly, off the critical path, and the
distributions of a token that follows are compared. A slot whose texts do not pass is computed from then on; after a
rest it is tried again, on copies of prompts nobody waits for, and opened when those pass. Distances between KV play no
part: they say little about answers.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import torch

from kvflow.reuse.prompt import SlotKey

_JUDGED = 20
"""Checks a verdict on agreement looks back on."""
_DIVERGED = 8
"""Checks a verdict on divergence looks back on."""
_LEAST = 3
"""Checks either needs."""
_WATCHED = 6
"""Uses of a slot that are all checked before checks are a sample: at first, when it opens again, and after one that
disagrees."""
_MOST_KL = 2.5
"""What one check counts at most, of the mean that is accepted: of the fewest checks one alone closes nothing."""
_WORST_KL = 1e3
"""Of distributions that cannot be compared."""
_TIE = math.log(2)
"""Tokens whose logarithmic probabilities differ by less may change places."""
_ROUNDING = 1e-9
"""Of a share of the checks that is a whole number."""
_PASSES = 3
"""Checks in a row that open a slot again."""
_SLOTS = 4096
"""Slots remembered; their names come from clients."""
_REST = 32
_MAX_REST = 1024
"""Prompts for which a slot stays closed: at first, and at most."""


class Door(StrEnum):
    """Whether texts of a slot may be spliced."""

    OPEN = "open"
    CLOSED = "closed"
    TRIAL = "trial"
    """Into copies only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How the distribution after a spliced prompt differs from the exact one.

    Attributes:
        agrees: what is likeliest after the spliced is so after the exact, or at least half as likely as what is.
        kl: Kullback-Leibler divergence of the spliced from the exact, in nats.
    """

    agrees: bool
    kl: float

    @classmethod
    def between(cls, exact: torch.Tensor, spliced: torch.Tensor) -> Difference:
        """Compare two rows of logits, [vocabulary] each."""
        exact, spliced = torch.log_softmax(exact.double(), 0), torch.log_softmax(spliced.double(), 0)
        kl = float(torch.nn.functional.kl_div(spliced, exact, reduction="sum", log_target=True))
        if not math.isfinite(kl):  # logits that are not, or tokens that one of both excludes
            return cls(agrees=False, kl=_WORST_KL)
        return cls(agrees=bool(exact[spliced.argmax()] >= exact.max() - _TIE), kl=kl)


@dataclass(slots=True)
class _Record:
    door: Door = Door.OPEN
    seen: int = 0
    used: int = 0
    watched: int = _WATCHED
    rest: int = _REST
    until: int = 0
    losses: int = 0
    checks: deque[Difference] = field(default_factory=lambda: deque(maxlen=_JUDGED))
    closed: int = 0


class QualityGate:
    """The doors of all slots. Decides by counting, so that ranks decide alike.

    Args:
        agreement: share of checks that have to agree; a single one that does not closes no open slot.
        kl: mean divergence that is still accepted, in nats.
        every: one of so many spliced prompts is checked, once a slot is no longer watched.
    """

    def __init__(self, agreement: float = 0.9, kl: float = 0.2, every: int = 8) -> None:
        self._agreement = agreement
        self._disagreements = max(1, math.floor((1 - agreement) * _JUDGED + _ROUNDING))
        self._kl = kl
        self._every = every
        self._records: OrderedDict[SlotKey, _Record] = OrderedDict()

    def door(self, slot: SlotKey) -> Door:
        """Ask whether a text may be spliced into a slot; to be asked once a prompt."""
        record = self._record(slot)
        record.seen += 1
        if record.door is Door.CLOSED and record.seen >= record.until:
            record.door = Door.TRIAL
            record.checks.clear()
        return record.door

    def lets_in(self, slot: SlotKey) -> bool:
        """Whether what has been put in before may be put in again; this is no prompt, and changes nothing."""
        record = self._records.get(slot)
        return record is None or record.door is Door.OPEN

    def rest(self, slot: SlotKey) -> int:
        """For how many prompts a slot stays closed if it is now."""
        return self._record(slot).rest

    def samples(self, slots: Iterable[SlotKey]) -> bool:
        """Count a prompt that was or could be spliced in these slots; whether it is to be checked for one of them."""
        checked = [self._samples(self._record(slot)) for slot in slots]
        return any(checked)

    def judge(self, slot: SlotKey, difference: Difference) -> bool:
        """Take a check; true if it closes the slot."""
        record = self._record(slot)
        if record.door is Door.CLOSED:
            return False
        record.checks.append(difference)
        if record.door is Door.TRIAL:
            if difference.agrees < self._agreement or difference.kl > self._kl:
                return self._close(record)
            if len(record.checks) >= _PASSES:
                record.door = Door.OPEN
                record.rest = min(_MAX_REST, _REST << record.losses)
                record.watched = record.used + _WATCHED
            return False
        if not difference.agrees and self._disagreements < _JUDGED:
            record.watched = max(record.watched, record.used + _WATCHED)
        return len(record.checks) >= _LEAST and not self._passes(list(record.checks)) and self._close(record)

    def close(self, slot: SlotKey) -> None:
        """Close a slot for what applications say came of it; each time it rests twice as long."""
        record = self._record(slot)
        if record.door is Door.CLOSED:
            return
        record.losses += 1
        record.door = Door.OPEN  # not a failed trial, which would rest twice as long again
        record.rest = min(_MAX_REST, _REST << record.losses)
        self._close(record)

    def clear(self) -> None:
        """Forget all slots: ranks may have judged them differently."""
        self._records.clear()

    def report(self) -> dict[SlotKey, dict[str, object]]:
        """State of every slot."""
        return {
            slot: {
                "door": record.door.value,
                "prompts": record.seen,
                "closed": record.closed,
                "agreement": _mean([float(check.agrees) for check in record.checks]),
                "kl": _mean([check.kl for check in record.checks]),
            }
            for slot, record in self._records.items()
        }

    def _record(self, slot: SlotKey) -> _Record:
        record = self._records.setdefault(slot, _Record())
        self._records.move_to_end(slot)
        if len(self._records) > _SLOTS:
            self._records.popitem(last=False)
        return record

    def _samples(self, record: _Record) -> bool:
        if record.door is Door.OPEN:
            record.used += 1
            return record.used <= record.watched or record.used % self._every == 0
        return record.door is Door.TRIAL

    def _passes(self, checks: list[Difference]) -> bool:
        recent = checks[-_DIVERGED:]
        disagreements = sum(not check.agrees for check in checks)
        most = _MOST_KL * self._kl or _WORST_KL
        kl = sum(min(check.kl, most) for check in recent) / len(recent)
        return disagreements <= self._disagreements and kl <= self._kl

    def _close(self, record: _Record) -> bool:
        if record.door is Door.TRIAL:
            record.rest = min(_MAX_REST, 2 * record.rest)
        record.door = Door.CLOSED
        record.until = record.seen + record.rest
        record.closed += 1
        return True


def _mean(numbers: list[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None
