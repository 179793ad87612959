"""Owners: the claims that sit on one radix node."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvflow.engine.claims import Claim, Role
from kvflow.policy import Rank, Standing

_PRUNE_FLOOR = 16
_MAX_IDLE_ROLES = 64


@dataclass(slots=True)
class FixedMark:
    """How one role holds a node as part of its fixed prompt.

    Attributes:
        stamp: the role's stamp when it last used the node.
        shared: workflows other than the first have used it, so it does not depend on one workflow's task.
        first: the claim that used it first.
    """

    stamp: int
    first: Claim
    shared: bool = False


@dataclass(slots=True)
class Owners:
    """Claims and roles on one radix node, with the rank they gave last.

    Attributes:
        fixed: roles that hold the node in their fixed prompt.
        claims: claims on the node; True where it belongs to the claim's fixed prompt, False in its dynamic tail.
        rank: cached rank, valid while ``rank_version`` equals the version of the claim table and policy.
    """

    fixed: dict[Role, FixedMark] = field(default_factory=dict)
    claims: dict[Claim, bool] = field(default_factory=dict)
    rank: Rank = (0, 0.0)
    rank_version: int = -1
    _prune_at: int = _PRUNE_FLOOR

    def copy(self) -> Owners:
        """Duplicate for the other half of a split node."""
        marks = {role: FixedMark(mark.stamp, mark.first, mark.shared) for role, mark in self.fixed.items()}
        return Owners(marks, dict(self.claims), self.rank, self.rank_version, self._prune_at)

    def hold_fixed(self, claim: Claim, stamp: int) -> None:
        """Enter a claim whose fixed prompt covers the node.

        Once a second workflow shares the node, the role alone stands for all of them: it already knows the minimum
        over its workflows, and the node's memory stays bounded however many workflows come.
        """
        self.rank_version = -1
        mark = self.fixed.get(claim.role)
        if mark is None:
            self.fixed[claim.role] = FixedMark(stamp, claim)
            self.claims[claim] = True
            self._prune()
            return
        mark.stamp = stamp
        if mark.first is not claim and not mark.shared:
            mark.shared = True
            self.claims.pop(mark.first, None)

    def hold_tail(self, claim: Claim) -> None:
        """Enter a claim whose dynamic tail covers the node."""
        self.rank_version = -1
        self.claims.setdefault(claim, False)
        self._prune()

    def _prune(self) -> None:
        """Keep memory bounded, whoever comes: drop what has ended, and beyond a limit roles that nobody claims."""
        if max(len(self.claims), len(self.fixed)) < self._prune_at:
            return
        self.claims = {held: fixed for held, fixed in self.claims.items() if not held.retired}
        idle = [role for role in self.fixed if role.steps is None]
        for role in idle[: max(0, len(self.fixed) - _MAX_IDLE_ROLES)]:
            del self.fixed[role]
        self._prune_at = max(_PRUNE_FLOOR, 2 * max(len(self.claims), len(self.fixed)))

    def standing(self) -> Standing:
        """Add up the claims: minimum over sharers and over concurrent workflows."""
        fixed = [
            role.steps
            for role, mark in self.fixed.items()
            if role.steps is not None and (mark.shared or mark.stamp == role.stamp)
        ]
        tail: list[float] = []
        for claim, is_fixed in self.claims.items():
            if claim.steps is not None and (is_fixed or claim.keeps_tail):
                (fixed if is_fixed else tail).append(claim.steps)
        return Standing(
            fixed_steps=min(fixed, default=None),
            tail_steps=min(tail, default=None),
            pinned=any(claim.pinned for claim in self.claims),
            retired=not self._current() and all(claim.retired for claim in self.claims),
        )

    def _current(self) -> bool:
        """Whether the node is some role's fixed prompt as it stands, which later workflows will want."""
        return any(mark.shared or mark.stamp == role.stamp for role, mark in self.fixed.items())
