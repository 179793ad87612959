"""Whose requests the simulated server admits: everyone's, in SGLang's orders, or those of the programs that fit."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

from kvflow.engine import Coordinator, Programs, PromptClaim
from kvflow.engine.programs import Key
from kvflow.policy import AdmissionMemory, ProgramAdmission
from kvflow.sim.context import Context
from kvflow.sim.node import first_page
from kvflow.sim.request import Request
from kvflow.sim.tree import RadixTree

Admission = Literal["fcfs", "lpm", "workflow"]

_MOST_SORTED = 128
"""SGLang takes requests as they come while more of them wait."""
_FEW_TOKENS = 32
"""Who has no more on the device waits for another that begins with as many alike."""
_Beginning = tuple[tuple[int, int], ...]


class Everyone:
    """First come, first served; the same face as :class:`kvflow.engine.Programs`."""

    def arrived(self, key: Hashable, claim: PromptClaim, tokens: int, digests: Sequence[int] = ()) -> None:
        """Nothing."""

    def started(self, key: Hashable) -> None:
        """Nothing."""

    def refused(self, key: Hashable) -> bool:
        """Nobody goes before it."""
        return False

    def retracted(self, key: Hashable) -> None:
        """Nothing."""

    def left(self, key: Hashable, generated_tokens: int, digests: Sequence[int] = ()) -> None:
        """Nothing."""

    def arrange(self, waiting: Sequence[Key], memory: AdmissionMemory) -> list[Key]:
        """All of them."""
        return list(waiting)


class LongestPrefix(Everyone):
    """Longest prefix match, as SGLang's ``--schedule-policy lpm``: who has most in the cache, on either tier, is next.

    Of several that have next to nothing on the device and begin alike, one keeps its place, and the rest go behind all
    others, whatever the host has of them.

    Source: SGLang, ``managers/schedule_policy.py``, ``SchedulePolicy.calc_priority``; itself after SGLang (arXiv
    2312.07104, §3).
    """

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree

    def arrange(self, waiting: Sequence[Key], memory: AdmissionMemory) -> list[Key]:
        """All of them, if not many, by what they have in the cache. Their contexts count as used by it."""
        if len(waiting) > _MOST_SORTED:
            return list(waiting)
        begun: set[_Beginning] = set()
        return sorted(waiting, key=lambda key: self._turn(key, begun))

    def _turn(self, key: Hashable, begun: set[_Beginning]) -> tuple[bool, int]:
        assert isinstance(key, Request)
        page_tokens = self._tree.page_tokens
        node = self._tree.match(key.whole, key.near, (key.goal - 1) // page_tokens).cached
        beginning = _beginning(key.whole, -(-_FEW_TOKENS // page_tokens))
        if node.resident.end * page_tokens > _FEW_TOKENS or beginning is None:
            return False, -node.end
        if beginning in begun:
            return True, 0
        begun.add(beginning)
        return False, -node.end


def _beginning(context: Context, pages: int) -> _Beginning | None:
    """Identify so many first pages; None if there are fewer."""
    return tuple(first_page(context, page) for page in range(pages)) if context.pages >= pages else None


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
