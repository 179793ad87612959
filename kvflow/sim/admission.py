"""Whose requests the simulated server admits: everyone's in turn, or those of the programs that fit."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

from kvflow.engine import Coordinator, Programs, PromptClaim
from kvflow.engine.programs import Key
from kvflow.policy import AdmissionMemory, ProgramAdmission

Admission = Literal["fcfs", "workflow"]


class Everyone:
    """First come, first served; the same face as :class:`kvflow.engine.Programs`."""

    def arrived(self, key: Hashable, claim: PromptClaim, tokens: int, digests: Sequence[int] = ()) -> None:
        """Nothing."""

    def started(self, key: Hashable) -> None:
        """Nothing."""

    def retracted(self, key: Hashable) -> None:
        """Nothing."""

    def left(self, key: Hashable, generated_tokens: int, digests: Sequence[int] = ()) -> None:
        """Nothing."""

    def arrange(self, waiting: Sequence[Key], memory: AdmissionMemory) -> list[Key]:
        """All of them."""
        return list(waiting)


def programs_of(admission: Admission, coordinator: Coordinator, unit_tokens: int) -> Programs | Everyone:
    """Who decides under an admission order."""
    if admission == "fcfs":
        return Everyone()
    return Programs(
        coordinator.claims,
        ProgramAdmission(coordinator.costs),
        cached=coordinator.cached,
        unit_tokens=unit_tokens,
    )
