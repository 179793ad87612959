"""Owners: the claims that sit on one radix node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvflow.engine.claim import Claim
from kvflow.engine.clock import Clock
from kvflow.engine.ports import Node
from kvflow.engine.roles import Role
from kvflow.policy import UNKNOWN, EvictionClass, Rank, Standing

_PRUNE_FLOOR = 16
_MAX_IDLE_ROLES = 64
_GAP_WEIGHT = 0.25
_STALE_GAPS = 8
_COMMON = 0.5
"""What at least this share of an agent's prompts use is its fixed prompt; the rest are parts that come and go."""


@dataclass(slots=True)
class FixedMark:
    """How one role holds a node: as part of its fixed prompt, or of what several of its workflows have in common.

    Attributes:
        stamp: the role's stamp when it last used the node.
        gap: how many of the role's prompts it takes, on average, until one uses the node again.
        shared: several workflows have used it, so it does not depend on one workflow's task.
        first: the claim that used it first.
    """

    stamp: int
    first: Claim
    gap: float = 1.0
    shared: bool = False

    def use(self, stamp: int) -> None:
        """Note that a prompt of the role uses the node."""
        if stamp > self.stamp:
            self.gap += _GAP_WEIGHT * (stamp - self.stamp - self.gap)
            self.stamp = stamp

    def share(self, role: Role) -> float:
        """Share of the role's next prompts expected to use the node; 0 once it has gone unused for too long.

        As often as so far, and less as it fails to turn up: by the square of the prompts since, which is what is left
        of regular uses once they stop.
        """
        since = role.stamp - self.stamp
        if since > _STALE_GAPS * self.gap or not (self.shared or since == 0):
            return 0.0
        return min(1.0, 1 / self.gap, self.gap / (since * since) if since else 1.0)


Asked = dict[tuple[str | None, str | None], float]
"""Until when who has asked, by workflow and agent; the control plane's clock."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Somebody's command to keep a node; soft, like all pins.

    Attributes:
        until_s: on the control plane's clock.
        priority: 0 to 100; the lowest leaves first.
        on_device: keep it on the device, not only somewhere.
        asked: until when each workflow and agent has asked for it.
    """

    until_s: float
    priority: int
    on_device: bool
    asked: Asked = field(default_factory=dict)


@dataclass(slots=True)
class Owners:
    """Claims and roles on one radix node, with the rank they gave last.

    Attributes:
        end_tokens: position of the node's last token + 1.
        fixed: roles that hold the node in their fixed prompt, or share it among a few of their workflows.
        claims: claims on the node; True where it belongs to the claim's fixed prompt, False in its dynamic tail.
        superseded: it was part of a state that a newer one has replaced.
        since_s: when a claim was entered last, replaced, or forgotten because it had ended; the control plane's clock.
        pins: commands to keep it, by tenant and tier.
        used: some claim has been entered; else there is nothing but pins.
        rank: cached rank, valid while ``rank_version`` equals the version of the clock.
        cls: order class it was given with.
    """

    end_tokens: int = 0
    fixed: dict[Role, FixedMark] = field(default_factory=dict)
    claims: dict[Claim, bool] = field(default_factory=dict)
    superseded: bool = False
    since_s: float = 0.0
    pins: dict[tuple[str, str], Pin] = field(default_factory=dict)
    used: bool = False
    rank: Rank = (0.0, 0.0)
    cls: EvictionClass = EvictionClass.UNCLAIMED
    rank_version: int = -1
    _prune_at: int = _PRUNE_FLOOR

    def copy(self, end_tokens: int) -> Owners:
        """Duplicate for the upper half of a split node, which ends at ``end_tokens``."""
        marks = {role: FixedMark(mark.stamp, mark.first, mark.gap, mark.shared) for role, mark in self.fixed.items()}
        claims, pins = dict(self.claims), dict(self.pins)
        return replace(self, end_tokens=end_tokens, fixed=marks, claims=claims, pins=pins, rank_version=-1)

    def pinned(self, now_s: float, *, on_device: bool) -> int | None:
        """Highest priority with which the node is to be kept; None if nobody said so.

        Args:
            now_s: on the control plane's clock.
            on_device: it would leave the device only; else the cache.
        """
        if not self.pins:
            return None
        self.pins = {key: pin for key, pin in self.pins.items() if pin.until_s > now_s}
        kept = [pin.priority for pin in self.pins.values() if pin.on_device or not on_device]
        return max(kept, default=None)

    def fixed_roles(self) -> list[Role]:
        """Roles whose fixed prompt covers the node."""
        return [role for role, mark in self.fixed.items() if mark.share(role) >= _COMMON]

    def shared_with(self, claim: Claim) -> bool:
        """Whether other workflows have used the node for the same agent."""
        return claim.role in self.fixed or any(other.role is claim.role and other is not claim for other in self.claims)

    def hold_fixed(self, claim: Claim, now_s: float) -> None:
        """Enter a claim whose fixed prompt covers the node, or that shares it with other workflows.

        Once a second workflow shares the node, the role alone stands for all of them: it already adds up its
        workflows, and the node's memory stays bounded however many workflows come.
        """
        self.rank_version, self.since_s, self.used = -1, now_s, True
        self.superseded = False
        role = claim.role
        mark = self.fixed.get(role)
        if mark is None:
            mark = self.fixed[role] = FixedMark(claim.stamp, claim)
            others = [other.stamp for other in self.claims if other.role is role and other is not claim]
            if others:
                mark.shared = True
                mark.gap = max(1.0, claim.stamp - max(others))
            else:
                self.claims[claim] = True
            self._prune()
            return
        mark.use(claim.stamp)
        if mark.first is not claim and not mark.shared:
            mark.shared = True
            self.claims.pop(mark.first, None)

    def hold_tail(self, claim: Claim, now_s: float) -> None:
        """Enter a claim whose dynamic tail covers the node."""
        self.rank_version, self.since_s, self.used = -1, now_s, True
        self.superseded = False
        self.claims.setdefault(claim, False)
        self._prune()

    def supersede(self, claim: Claim, now_s: float) -> None:
        """Take a claim off a node that its newer state does not contain."""
        if self.claims.get(claim) is False:
            del self.claims[claim]
            self.superseded, self.since_s = True, now_s
            self.rank_version = -1

    def _prune(self) -> None:
        """Keep memory bounded, whoever comes: drop what has ended, and beyond a limit roles that nobody claims."""
        if max(len(self.claims), len(self.fixed)) < self._prune_at:
            return
        self.since_s = self._idle_since_s()
        self.claims = {held: fixed for held, fixed in self.claims.items() if not held.retired}
        idle = [role for role in self.fixed if not role.claims]
        for role in idle[: max(0, len(self.fixed) - _MAX_IDLE_ROLES)]:
            del self.fixed[role]
        self._prune_at = max(_PRUNE_FLOOR, 2 * max(len(self.claims), len(self.fixed)))

    def standing(self, clock: Clock) -> Standing:
        """Add up the claims: minimum of steps and times, sum of rates, over sharers and concurrent workflows.

        Cost: O(claims and roles), O(1) for another node in the tail of the same claim alone.
        """
        if not self.used:
            return UNKNOWN
        alone = self.alone()
        if alone is not None and alone.tail_standing is not None and alone.tail_standing[0] == clock.version:
            return alone.tail_standing[1]
        standing = self._sum(clock)
        if alone is not None and standing.rate_hz:  # else it depends on when this node was used
            alone.tail_standing = clock.version, standing
        return standing

    def _sum(self, clock: Clock) -> Standing:
        fixed_steps = tail_steps = next_s = None
        rate_hz = probability = 0.0
        context_tokens = 0
        pinned = False
        for role, mark in self.fixed.items():
            share = mark.share(role) if role.claims else 0.0
            if share:
                steps, role_hz, role_next_s = role.outlook(clock)
                if share >= _COMMON:
                    fixed_steps = _least(fixed_steps, steps)
                else:
                    tail_steps = _least(tail_steps, steps)
                next_s = _least(next_s, role_next_s)
                rate_hz += share * role_hz
                probability = max(probability, share)
        for claim, is_fixed in self.claims.items():
            pinned |= claim.pinned
            context_tokens = max(context_tokens, claim.context_tokens)
            if not (is_fixed or claim.keeps_tail):
                continue
            if is_fixed:
                fixed_steps = _least(fixed_steps, claim.steps)
            else:
                tail_steps = _least(tail_steps, claim.steps)
            outlook = claim.outlook(clock)
            if outlook is None or (is_fixed and self._counted(claim)):
                continue
            likelihood, claim_next_s = outlook
            kept = 1.0 if is_fixed else claim.role.tail_probability * claim.branch_share
            rate_hz += kept * (likelihood / claim_next_s)
            next_s = _least(next_s, claim_next_s)
            probability = max(probability, kept * likelihood)
        return Standing(
            fixed_steps=fixed_steps,
            tail_steps=tail_steps,
            pinned=pinned,
            retired=not self.superseded and all(claim.ended_for_good for claim in self.claims) and not self._wanted(),
            superseded=self.superseded,
            idle_s=clock.now_s - self._idle_since_s() if not rate_hz else 0.0,
            rate_hz=rate_hz,
            next_s=next_s,
            probability=probability,
            context_tokens=context_tokens,
        )

    def alone(self) -> Claim | None:
        """The claim in whose tail the node is, if nobody else has anything to do with it."""
        if self.fixed or self.superseded or len(self.claims) != 1:
            return None
        ((claim, is_fixed),) = self.claims.items()
        return None if is_fixed else claim

    def lone_tail(self, clock: Clock) -> Claim | None:
        """The claim :meth:`alone` tells of, if the standing it gives is still that of all such nodes.

        None if the node is pinned by command, or the claim has no such standing: no use is expected, or something has
        changed.
        """
        claim = None if self.pins else self.alone()
        if claim is None or claim.tail_standing is None or claim.tail_standing[0] != clock.version:
            return None
        return claim

    def ends_within(self, reach_tokens: int) -> bool:
        """Whether a context that is claimed ends at the node, or less than so many tokens behind it.

        What is pinned by command counts wherever it ends. Cost: O(claims and roles, with their fixed prompts).
        """
        if self.pins:
            return True
        live = [claim for claim in self.claims if not claim.retired]
        ends = (end for holder in (*live, *self.fixed) for end in holder.ends_tokens())
        return any(0 <= end - self.end_tokens < reach_tokens for end in ends)

    def _idle_since_s(self) -> float:
        return max([self.since_s, *(claim.ended_s for claim in self.claims if claim.retired)])

    def _counted(self, claim: Claim) -> bool:
        """Whether the claim's role has added the claim up already."""
        mark = self.fixed.get(claim.role)
        return mark is not None and mark.share(claim.role) > 0

    def _wanted(self) -> bool:
        """Whether some role's workflows will want the node whoever they are, or one that lives may still use it."""
        return any(mark.share(role) > 0 or (mark.shared and role.claims) for role, mark in self.fixed.items())


def _least(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def pin_priority(node: Node, now_s: float) -> int | None:
    """Highest priority of the pins that keep a leaf where it is; None if none does.

    Args:
        node: on the device or the host.
        now_s: on the control plane's clock.
    """
    if node.owners is None or not node.owners.pins:
        return None
    last = node.evicted or not node.backuped  # without a copy it would be lost with the device
    return node.owners.pinned(now_s, on_device=not last)
