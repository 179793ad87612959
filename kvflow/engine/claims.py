"""The claims of all workflows: which agents expect to use their context, and when."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from kvflow.engine.claim import Claim, ProgramLife
from kvflow.engine.clock import Clock
from kvflow.engine.ports import Node
from kvflow.engine.roles import Role
from kvflow.predict import ClaimPrediction, WorkflowUpdate

_MAX_ROLES = 65_536
_LOOKED_AT = 16
"""Roles looked at to find one that can be forgotten."""
_JUST_S = 0.1
"""A request that was announced longer ago is here, and waits for something else than its way."""
_MANY = 64
"""Announced requests remembered before those that are here are forgotten."""


class ClaimTable:
    """The claims of every live workflow, and of the next one expected of each type.

    Attributes:
        on_ended: told where the contexts of an ended workflow end.
        replicated: predictions reach several servers, and each request only one of them.
    """

    def __init__(self) -> None:
        self.replicated = False
        self.clock = Clock()
        self.on_ended: Callable[[Node], None] = lambda node: None
        self._workflows: dict[str, dict[str, Claim]] = {}
        self._expected: dict[str, dict[str, Claim]] = {}
        self._roles: OrderedDict[tuple[str, str], Role] = OrderedDict()
        self._lives: dict[str, ProgramLife] = {}
        self._contexts = self._updates = 0
        self._updated: dict[str, int] = {}
        self._announced: list[Claim] = []
        self._tidy_at = _MANY

    def __len__(self) -> int:
        """Number of live workflows."""
        return len(self._workflows)

    def role(self, workflow_type: str, agent: str) -> Role:
        """Find the role, or start it.

        Beyond 65 536 of them the oldest one that nobody claims is forgotten. If there is none among the first, the new
        one is not remembered: it serves whoever has asked, and nobody shares it.
        """
        key = (workflow_type, agent)
        role = self._roles.get(key)
        if role is None:
            role = Role(agent)
            if len(self._roles) < _MAX_ROLES or self._forget_role():
                self._roles[key] = role
        return role

    def _forget_role(self) -> bool:
        """Forget a role that nobody claims; those looked at that somebody does go behind the others. Cost: O(1)."""
        for key in [*islice(self._roles, _LOOKED_AT)]:
            if not self._roles[key].claims:
                del self._roles[key]
                return True
            self._roles.move_to_end(key)
        return False

    def of(self, workflow_id: str) -> Mapping[str, Claim] | None:
        """The claims of a live workflow, by agent; None when it is not live."""
        return self._workflows.get(workflow_id)

    def claim_of(self, workflow_id: str, agent: str) -> Claim | None:
        """The claim of a live workflow's agent; None if there is none."""
        return self._workflows.get(workflow_id, {}).get(agent)

    @property
    def contexts(self) -> int:
        """Number of claims of live workflows."""
        return self._contexts

    @property
    def updates(self) -> int:
        """Updates of live workflows that have been applied so far."""
        return self._updates

    def updated_since(self, workflow_id: str, updates: int) -> bool:
        """Whether a workflow has had one after so many, or is not live."""
        return self._updated.get(workflow_id, updates + 1) > updates

    def life_of(self, program_id: str | None) -> ProgramLife | None:
        """Find whether a program goes on, by the id of its root workflow; None if that is not live now."""
        if program_id is None or program_id not in self._workflows:
            return None
        return self._lives.setdefault(program_id, ProgramLife())

    def claim(self, workflow_id: str, workflow_type: str, agent: str) -> Claim | None:
        """Find the claim of a live workflow's agent, or start it without prediction.

        None when the workflow is not live: it has ended, or nothing was announced about it.
        """
        claims = self._workflows.get(workflow_id)
        if claims is None:
            return None
        claim = claims.get(agent)
        if claim is None:
            claim = claims[agent] = self._start(workflow_id, workflow_type, agent)
            self._contexts += 1
        return claim

    def _start(self, workflow_id: str, workflow_type: str, agent: str) -> Claim:
        return Claim(self.role(workflow_type, agent), workflow_id, replicated=self.replicated)

    def apply(self, update: WorkflowUpdate) -> None:
        """Replace what is known of one workflow. Cost: O(agents of the workflow)."""
        workflows = self._expected if update.expected else self._workflows
        if update.retired:
            if not update.expected:
                self._updated.pop(update.workflow_id, None)
                if (life := self._lives.pop(update.workflow_id, None)) is not None:
                    life.over = True
            claims = workflows.pop(update.workflow_id, {})
            self._contexts -= 0 if update.expected else len(claims)
            self._retire(claims)
            return
        if not update.expected:
            self._updates += 1
            self._updated[update.workflow_id] = self._updates
        claims = workflows.setdefault(update.workflow_id, {})
        predicted = {prediction.agent for prediction in update.claims}
        changed = False
        for agent, claim in [*claims.items()]:
            if agent not in predicted:
                changed |= claim.set(None)
                if claim.own_prompt is None and not claim.asked_here:  # it holds nothing, and may be made anew
                    del claims[agent]
                    self._contexts -= not update.expected
        for prediction in update.claims:
            claim = claims.get(prediction.agent)
            if claim is None:
                claim = claims[prediction.agent] = self._start(
                    update.workflow_id, update.workflow_type, prediction.agent
                )
                self._contexts += not update.expected
            changed |= self._set(claim, prediction, live=not update.expected)
        self.clock.version += changed

    def _set(self, claim: Claim, prediction: ClaimPrediction, *, live: bool) -> bool:
        before_s = claim.since_s
        changed = claim.set(prediction)
        if live and claim.since_s is not None and claim.since_s != before_s:
            if len(self._announced) >= self._tidy_at:
                self._tidy_at = _MANY + 2 * len(self.announced())
            self._announced.append(claim)
        return changed

    def announced(self) -> list[Claim]:
        """Claims of live workflows whose request came a tenth of a second ago at most. Cost: O(those)."""
        now_s = self.clock.now_s
        self._announced = [
            claim
            for claim in self._announced
            if claim.since_s is not None and now_s - claim.since_s < _JUST_S and not claim.retired
        ]
        return self._announced

    def hold(self, workflow_id: str, held_s: float) -> None:
        """Take note of how long the turn of a live workflow's program is off; 0 once it has come."""
        for claim in self._workflows.get(workflow_id, {}).values():
            if claim.held_s != held_s:
                if not held_s:
                    claim.let_in_s = self.clock.now_s
                claim.held_s = held_s
                self.clock.version += 1

    def expected(self) -> Iterator[Claim]:
        """Claims of live workflows, and of those expected next, whose next use no request waits for yet."""
        for table in (self._workflows, self._expected):
            for claims in table.values():
                yield from (claim for claim in claims.values() if claim.expected and not claim.waited_for)

    def waited_for(self) -> Iterator[Claim]:
        """Claims of live workflows that a request waits to use."""
        for claims in self._workflows.values():
            yield from (claim for claim in claims.values() if claim.waited_for)

    def forget_nodes(self) -> None:
        """No claim has a prompt in the cache any more."""
        roles = {*self._roles.values()}
        for claims in (*self._workflows.values(), *self._expected.values()):
            roles.update(claim.role for claim in claims.values())  # not all of them are remembered
        for role in roles:
            role.forget_nodes()
        for claims in self._workflows.values():
            for claim in claims.values():
                claim.tip = claim.fixed_prompt.tip = None
                claim.context_tokens = claim.tail_tokens = 0
                claim.tail_pending = False
                claim.branches.others.clear()

    def _retire(self, claims: dict[str, Claim]) -> None:
        for claim in claims.values():
            claim.settle_tail(reused=False, last=True)
            claim.set(None)
            claim.retired, claim.ended_s = True, self.clock.now_s
            claim.role.settle_end(tokens=claim.tail_tokens)
            if claim.tip is not None:
                self.on_ended(claim.tip)
            claim.tip = None
            for branch in claim.branches.others:
                if branch.pending:
                    claim.role.settle_tail(reused=False, last=True)
                claim.role.settle_end(tokens=branch.tail_tokens)
                self.on_ended(branch.tip)
            claim.branches.others.clear()
        self.clock.version += 1
