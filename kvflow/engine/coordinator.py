"""The coordinator: the one object a body talks to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvflow.engine.boundary import FixedPromptBoundary
from kvflow.engine.claims import Claim, ClaimTable
from kvflow.engine.owners import Owners
from kvflow.engine.ports import Node
from kvflow.policy import EvictionPolicy, Rank, make_policy
from kvflow.predict import WorkflowUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptClaim:
    """Whose prompt a request carries.

    Attributes:
        fixed_tokens: declared length of the fixed part in tokens; None leaves it to :class:`FixedPromptBoundary`.
    """

    workflow_id: str
    workflow_type: str
    agent: str
    fixed_tokens: int | None = None


class Coordinator:
    """Keeps the claims on radix nodes and ranks nodes by the active policy.

    Single-threaded by design: it lives on the scheduler thread and is driven by messages that every rank receives in
    the same order, so that all ranks decide alike.
    """

    def __init__(self, policy: str = "steps") -> None:
        """Start without any claim.

        Raises:
            ConfigError: the policy does not exist.
        """
        self.claims = ClaimTable()
        self.boundary = FixedPromptBoundary()
        self._policy: EvictionPolicy = make_policy(policy)
        self._unclaimed: Rank = self._policy.rank(None)

    @property
    def policy(self) -> str:
        """Name of the active policy."""
        return self._policy.name

    def set_policy(self, name: str) -> None:
        """Change the eviction order from the next decision on.

        Raises:
            ConfigError: the policy does not exist; the old one stays.
        """
        self._policy = make_policy(name)
        self._unclaimed = self._policy.rank(None)
        self.claims.version += 1

    def apply(self, update: WorkflowUpdate) -> None:
        """Take over new predictions for one workflow."""
        self.claims.apply(update)

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
        self, claim: PromptClaim, path: Sequence[tuple[Node, int]], fixed_tokens: int, *, first: bool = True
    ) -> None:
        """Enter a claim on the nodes of its prompt.

        Does nothing for a workflow that is not live, so late messages cannot revive one that has ended.

        Args:
            claim: whose prompt it is.
            path: the prompt's nodes with the position of each node's last token + 1, in any order.
            fixed_tokens: length of the fixed part; a node is fixed when it ends within it.
            first: this is the first time this request's nodes are tagged, so what is there is from earlier ones.
        """
        held = self.claims.claim(claim.workflow_id, claim.workflow_type, claim.agent)
        if held is None:
            return
        tail = [node for node, end in path if end > fixed_tokens]
        if first:
            self._learn_from(held, tail)
            self.claims.version += 1  # what counts as the role's current fixed prompt, or as a tail worth keeping
        held.tail_pending |= bool(tail)
        held.role.stamp += 1
        for node, end in path:
            if node.owners is None:
                node.owners = Owners()
            if end <= fixed_tokens:
                node.owners.hold_fixed(held, held.role.stamp)
            else:
                node.owners.hold_tail(held)

    @staticmethod
    def _learn_from(held: Claim, tail: Sequence[Node]) -> None:
        """See which earlier tails this prompt extends, its own and those handed over by other agents."""
        for node in tail:
            for claim, is_fixed in node.owners.claims.items() if node.owners is not None else ():
                if not is_fixed:
                    claim.settle_tail(reused=True)
        held.settle_tail(reused=False)

    def split(self, upper: Node, lower: Node) -> None:
        """Hand the claims of a divided node to its new upper half."""
        upper.owners = lower.owners.copy() if lower.owners is not None else None

    def rank(self, node: Node) -> Rank:
        """Rank a node for eviction, lowest first. Cost: O(1) unless a prediction changed since the last call."""
        owners = node.owners
        if owners is None:
            return self._unclaimed
        version = self.claims.version
        if owners.rank_version != version:
            owners.rank = self._policy.rank(owners.standing())
            owners.rank_version = version
        return owners.rank
