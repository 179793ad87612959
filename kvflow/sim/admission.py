"""Whose requests the simulated server admits: everyone's, in SGLang's orders, or those of the programs that fit."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

from kvflow.engine import Coordinator, Programs, PromptClaim
from kvflow.engine.programs import Key
from kvflow.policy import AdmissionMemory, ProgramAdmission
from kvflow.sim.node import first_page
from kvflow.sim.request import Request
from kvflow.sim.tree import RadixTree

Admission = Literal["fcfs", "lpm", "workflow"]

_MOST_SORTED = 128
"""SGLang takes requests as they come while more of them wait."""


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


class LongestPrefix(Everyone):
    """Longest prefix match, as SGLang's ``--schedule-policy lpm``: who has most in the cache, on either tier, is next.

    Of several that have nothing there and begin alike, one goes before all others, and the rest behind them.

    Source: SGLang, ``managers/schedule_policy.py``, ``SchedulePolicy.calc_priority``; itself after SGLang (arXiv
    2312.07104, §3).
    """

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree

    def arrange(self, waiting: Sequence[Key], memory: AdmissionMemory) -> list[Key]:
        """All of them, if not many, by what they have in the cache. Their contexts count as used by it."""
        if len(waiting) > _MOST_SORTED:
            return list(waiting)
        begun: set[tuple[int, int]] = set()
        return sorted(waiting, key=lambda key: self._turn(key, begun))

    def _turn(self, key: Hashable, begun: set[tuple[int, int]]) -> tuple[bool, int]:
        assert isinstance(key, Request)
        node = self._tree.match(key.whole, key.near, (key.goal - 1) // self._tree.page_tokens).cached
        if node.end or not key.whole.pages:
            return False, -node.end
        page = first_page(key.whole, 0)
        behind = page in begun
        begun.add(page)
        return behind, 0


def programs_of(
    admission: Admission, coordinator: Coordinator, tree: RadixTree, unit_tokens: int
) -> Programs | Everyone:
    """Who decides under an admission order."""
    if admission == "fcfs":
        return Everyone()
    if admission == "lpm":
        return LongestPrefix(tree)
    return Programs(
        coordinator.claims,
        ProgramAdmission(coordinator.costs),
        cached=coordinator.cached,
        unit_tokens=unit_tokens,
    )
