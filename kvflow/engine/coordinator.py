"""The coordinator: the one object a body talks to."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvflow.engine.ages import Ages, cutoff_of
from kvflow.engine.boundary import FixedPromptBoundary
from kvflow.engine.choice import FREE_CHOICE, Choice
from kvflow.engine.claim import Claim
from kvflow.engine.claims import ClaimTable
from kvflow.engine.digests import MIN_UNIT_TOKENS
from kvflow.engine.entering import Prompt, enter, enter_fixed, learn, settle
from kvflow.engine.owners import pin_priority
from kvflow.engine.ports import Node
from kvflow.policy import UNKNOWN, EvictionClass, EvictionPolicy, Leaf, Rank, ServingCosts, Standing, make_policy
from kvflow.predict import WorkflowUpdate

_COMMANDED = EvictionClass.PINNED + 1.0
"""Above whatever a policy ranks."""

Priority = tuple[bool, Rank]
"""(beyond the guard's candidates, rank); the lowest leaves first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptClaim:
    """Whose prompt a request carries.

    Attributes:
        fixed_tokens: declared length of the fixed part in tokens; None leaves it to :class:`FixedPromptBoundary`.
        program_id: the workflow at the root of its sub-workflows; None if it is that itself.
        tenant: whose program it is; empty if nobody said so.
    """

    workflow_id: str
    workflow_type: str
    agent: str
    fixed_tokens: int | None = None
    program_id: str | None = None
    tenant: str = ""


def _on_host(node: Node) -> bool:
    return node.backuped and not node.evicted


def _on_device_or_host(node: Node) -> bool:
    return node.backuped or not node.evicted


class Coordinator:
    """Keeps the claims on radix nodes and ranks nodes by the active policy.

    Single-threaded by design: it lives on the scheduler thread and is driven by messages that every rank receives in
    the same order, so that all ranks decide alike.

    Attributes:
        on_split: told of the new upper half of a divided node, and the lower.
    """

    def __init__(
        self,
        policy: str = "steps",
        costs: ServingCosts | None = None,
        *,
        backed_up: Callable[[Node], bool] = _on_host,
        cached: Callable[[Node], bool] = _on_device_or_host,
        unit_tokens: int = MIN_UNIT_TOKENS,
    ) -> None:
        """Start without any claim.

        Args:
            policy: name of the eviction order.
            costs: what hits save on this model and machine.
            backed_up: whether the tier below the one a node would leave has a copy of it.
            cached: whether a node is in the cache at all.
            unit_tokens: tokens per digest.

        Raises:
            ConfigError: the policy does not exist.
        """
        self.claims = ClaimTable()
        self.boundary = FixedPromptBoundary()
        self.costs = costs or ServingCosts()
        self._backed_up = backed_up
        self._cached = cached
        self._unit_tokens = unit_tokens
        self.on_split: Callable[[Node, Node], None] = lambda upper, lower: None
        self._cutoff = math.inf
        self._times: list[float] = []
        self._ended_first = True
        self.set_policy(policy)

    @property
    def policy(self) -> str:
        """Name of the active policy."""
        return self._policy.name

    @property
    def uses_claims(self) -> bool:
        """Whether the active policy looks at claims at all."""
        return self._uses_claims

    @property
    def by_parts(self) -> bool:
        """Whether it is enough to look at a part of the leaves: those without claims leave in the order beneath."""
        return self._unclaimed is not None and not self._uses_age

    @property
    def guarded(self) -> bool:
        """Whether the active policy's order is to be guarded against wrong predictions."""
        return getattr(self._policy, "guarded", False)

    def set_policy(self, name: str) -> None:
        """Change the eviction order from the next decision on.

        Raises:
            ConfigError: the policy does not exist; the old one stays.
        """
        self._policy: EvictionPolicy = make_policy(name, self.costs)
        self._uses_age = getattr(self._policy, "uses_age", False)
        self._uses_claims = getattr(self._policy, "uses_claims", True)
        self._path_order = getattr(self._policy, "path_order", False)
        alike = getattr(self._policy, "unclaimed_alike", False)
        self._unclaimed = self._policy.rank(Leaf(standing=UNKNOWN, tokens=1)) if alike else None
        self.claims.clock.version += 1

    def apply(self, update: WorkflowUpdate) -> None:
        """Take over new predictions for one workflow."""
        self.claims.apply(update)

    def tick(self, now_s: float) -> None:
        """Take over the time; it never runs backwards."""
        clock = self.claims.clock
        if now_s > clock.now_s:
            clock.now_s = now_s
            clock.version += 1

    def learn_costs(self, learned: Mapping[str, float]) -> None:
        """Take over measured times, as the ordered messages tell them.

        Args:
            learned: by attribute of :class:`~kvflow.policy.ServingCosts`, seconds.
        """
        self.claims.clock.version += self.costs.learn(learned)

    def fixed_tokens(self, claim: PromptClaim, tokens: Sequence[int]) -> int:
        """Length of the fixed part of this prompt in tokens, as declared or else as observed.

        Args:
            claim: whose prompt it is.
            tokens: the prompt.
        """
        if claim.fixed_tokens is not None:
            return min(claim.fixed_tokens, len(tokens))
        return self.boundary.observe((claim.workflow_type, claim.agent), claim.workflow_id, tokens)

    def tag(
        self,
        claim: PromptClaim,
        path: Sequence[tuple[Node, int]],
        fixed_tokens: int,
        *,
        first: bool = True,
        again: bool = False,
        fixed_digest: int | None = None,
        digests: Sequence[int] = (),
    ) -> None:
        """Enter a claim on the nodes of its prompt.

        Does nothing for a workflow that is not live, so late messages cannot revive one that has ended. A prompt that
        does not continue the claim's previous one replaces it: what only that one needed is superseded. But for
        agents that carry on several conversations side by side, see :mod:`kvflow.engine.branches`.

        Args:
            claim: whose prompt it is.
            path: the prompt's nodes with the position of each node's last token + 1, deepest first.
            fixed_tokens: length of the fixed part; a node is fixed when it ends within it.
            first: this is the first time this request's nodes are tagged, so what is there is from earlier ones.
            again: it had been retracted, and has its memory again.
            fixed_digest: of the declared fixed part; None if it is not declared or too short.
            digests: of the prompt's full units.

        Cost: O(nodes that are new to the claim) and those of the fixed part.
        """
        held = self.claims.claim(claim.workflow_id, claim.workflow_type, claim.agent)
        if held is None or not path:
            return
        held.program = self.claims.life_of(claim.program_id)
        clock, extends = self.claims.clock, False
        if first:
            if held.since_s is not None and held.pause_s is not None:  # else others of the agent are under way too
                clock.waited(clock.now_s - max(held.since_s, held.let_in_s))  # the rest is its program's wait
            clock.version += 1  # what counts as the role's current fixed prompt, or as a tail worth keeping
            held.role.stamp += 1
            held.stamp = held.role.stamp
            extends = learn(held, path, fixed_tokens)
        placed = held.placed if held.since_s is not None else 0
        if held.since_s is not None and (first or again or not placed):
            placed = min(placed + 1, max(1, held.requests))
        if placed != held.placed:
            held.placed = placed
            clock.version += 1
        prompt = Prompt(digests, self._unit_tokens, first)
        entered = enter(held, path, fixed_tokens, clock.now_s, prompt, fixed_digest)
        if first:
            settle(held.role, entered, self._cached, extends=extends)

    def found(self, claim: Claim, lost: Node, path: Sequence[tuple[Node, int]]) -> None:
        """What had left the cache is there again, under other nodes; what is not is forgotten.

        Args:
            claim: who will use it.
            lost: where it ended before.
            path: what there is of it now, as for :meth:`tag`.
        """
        fixed = claim.fixed_prompt
        for holder in (claim, fixed):
            if holder.tip is lost:
                holder.tip = None
        if path and not claim.retired:
            if claim.tip is None:
                enter(claim, path, fixed.tokens, self.claims.clock.now_s, None)
            else:  # it has gone on with something else since
                enter_fixed(claim, path, fixed.tokens, self.claims.clock.now_s)
        self.claims.clock.version += 1

    def asked(self, claim: PromptClaim) -> None:
        """A request has come to this server."""
        held = self.claims.claim_of(claim.workflow_id, claim.agent)
        if held is not None and not held.asked_here:
            held.asked_here = True
            self.claims.clock.version += held.replicated

    def answered(self, claim: PromptClaim) -> None:
        """A request has been answered. The control plane will hear of it too, and say more, but later."""
        held = self.claims.claim(claim.workflow_id, claim.workflow_type, claim.agent)
        if held is not None:
            held.answered(self.claims.clock)

    def retracted(self, claim: PromptClaim) -> None:
        """A request has lost its memory, and waits again."""
        held = self.claims.claim(claim.workflow_id, claim.workflow_type, claim.agent)
        if held is not None and held.placed:
            held.placed -= 1
            self.claims.clock.version += 1

    def flushed(self) -> None:
        """The cache has been flushed: let go of its nodes. Workflows and their claims go on."""
        self.claims.forget_nodes()

    def cached(self, node: Node) -> bool:
        """Whether a node is in the cache at all."""
        return self._cached(node)

    def split(self, upper: Node, lower: Node) -> None:
        """Hand the claims of a divided node to its new upper half."""
        upper.load, upper.arriving, upper.fetched = lower.load, lower.arriving, lower.fetched
        if lower.owners is None:
            upper.owners = None
        else:
            upper.owners = lower.owners.copy(max(0, lower.owners.end_tokens - len(lower.key)))
        self.on_split(upper, lower)

    def open_round(self, leaves: Iterable[Node], choice: Choice = FREE_CHOICE, ages: Ages | None = None) -> None:
        """Prepare a round of evictions: settle who its candidates are.

        Args:
            leaves: evictable leaves of the tier.
            choice: among which of them prediction may choose.
            ages: of all of them, if the round looks at a part (:attr:`by_parts`).

        Cost: O(leaves log leaves) if those are some but not all, or the policy looks at ages; else O(1).
        """
        self._cutoff = math.inf if choice.free else -math.inf
        self._ended_first = self._uses_claims and not choice.none
        if choice.none or (not self._uses_age and (choice.free or choice.window_tokens <= 0)):
            return
        if self._uses_age:
            self._times = sorted(node.last_access_time for node in leaves)
            self.claims.clock.version += 1
        if not choice.free:
            self._cutoff = ages.cutoff(choice) if ages is not None else cutoff_of(leaves, choice)

    @contextlib.contextmanager
    def round_within(self) -> Iterator[None]:
        """Let there be a round within another: SGLang makes room on the host for what is leaving the device."""
        outer = self._cutoff, self._ended_first, self._times
        try:
            yield
        finally:
            self._cutoff, self._ended_first, self._times = outer
            if self._uses_age:
                self.claims.clock.version += 1

    def priority(self, node: Node) -> Priority:
        """Order of a node in the round, lowest first: candidates by rank, the others by recency alone, what is pinned.

        Pins by command hold under every policy, and whatever the guard says.
        """
        pinned = self._pinned(node)
        if pinned is not None:
            return (True, (_COMMANDED, pinned))
        if node.last_access_time > self._cutoff and not (self._ended_first and self._ended(node)):
            return (True, (0.0, 0.0))
        return (False, self.rank(node))

    def priority_on_device(self, node: Node) -> Priority:
        """Order among the leaves of the device that a node on the host would have if it were loaded back."""
        return (False, self._rank_leaf(node, self.standing(node), backed_up=True) if self._uses_claims else (0.0, 0.0))

    def rank(self, node: Node) -> Rank:
        """Rank a node for eviction, lowest first.

        Cost: O(1) unless something has changed since the last call; then O(claims on it), of its roles all that live.
        """
        owners = node.owners
        if owners is None or not self._uses_claims:
            return self._unclaimed or self._rank_leaf(node, UNKNOWN)
        version = self.claims.clock.version
        if owners.rank_version != version:
            standing = owners.standing(self.claims.clock)
            owners.rank, owners.cls = self._rank_leaf(node, standing), _class(standing)
            owners.rank_version = version
        return owners.rank

    def path_of(self, node: Node) -> Claim | None:
        """The claim whose tail leaves in the order of its path when this node of it does; None if none does.

        Policies say whether theirs is such an order (`Policy.path_order`).
        """
        owners = node.owners
        return owners.lone_tail(self.claims.clock) if self._path_order and owners is not None else None

    def follows(self, parent: Node, child: Node, path: Claim) -> bool:
        """Whether a node whose child leaves is sure to be next, if that makes it a leaf. Cost: O(1), no ranking."""
        owners = parent.owners
        if owners is None or owners.pins or owners.alone() is not path:
            return False
        return self._backed_up(parent) or not self._backed_up(child)

    def standing(self, node: Node) -> Standing:
        """What the claims on a node add up to now."""
        return UNKNOWN if node.owners is None else node.owners.standing(self.claims.clock)

    def class_of(self, node: Node) -> EvictionClass:
        """Order class a node is in now."""
        if self._pinned(node) is not None:
            return EvictionClass.PINNED
        owners = node.owners
        if owners is not None and owners.rank_version == self.claims.clock.version:
            return owners.cls
        return _class(self.standing(node))

    def unwanted(self, node: Node) -> bool:
        """Whether nobody will use a node: its workflows have ended, or others have replaced its state.

        Cost: that of :meth:`rank`.
        """
        if node.owners is None or self._pinned(node) is not None:
            return False
        self.rank(node)
        return node.owners.cls in (EvictionClass.RETIRED, EvictionClass.SUPERSEDED)

    def _ended(self, node: Node) -> bool:
        """Whether only ended workflows have used a node. Cost: that of :meth:`rank`."""
        if node.owners is None:
            return False
        self.rank(node)
        return node.owners.cls is EvictionClass.RETIRED

    def _pinned(self, node: Node) -> float | None:
        return pin_priority(node, self.claims.clock.now_s)

    def _rank_leaf(self, node: Node, standing: Standing, *, backed_up: bool | None = None) -> Rank:
        age = 0.0
        if self._uses_age:
            age = 1 - bisect_left(self._times, node.last_access_time) / max(1, len(self._times) - 1)
        return self._policy.rank(
            Leaf(
                standing=standing,
                tokens=len(node.key),
                end_tokens=0 if node.owners is None else node.owners.end_tokens,
                hits=node.hit_count,
                age=age,
                backed_up=self._backed_up(node) if backed_up is None else backed_up,
            )
        )


def _class(standing: Standing) -> EvictionClass:
    """Order class: what is expected is claimed, also where only times are known, and no steps."""
    return max(standing.cls, EvictionClass.TAIL) if standing.rate_hz else standing.cls
