"""Claims: which agents of which workflows expect to use their context, and when."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvflow.predict import WorkflowUpdate

_MAX_ROLES = 65_536
_MIN_WASTED = 4
_TAIL_MEMORY = 64


@dataclass(slots=True, eq=False)
class Role:
    """An agent of a workflow type; its fixed prompt is shared by all workflows of the type.

    Attributes:
        stamp: counts the prompts tagged for this role; nodes with the latest stamp are its current fixed prompt.
        tails_reused: dynamic tails that a later prompt extended.
        tails_wasted: dynamic tails that none did.
    """

    agent: str
    stamp: int = 0
    tails_reused: int = 0
    tails_wasted: int = 0
    _claims_at: dict[float, int] = field(default_factory=dict)

    @property
    def steps(self) -> float | None:
        """Least steps-to-execution over all live workflows of the type; None when none expects to run the agent."""
        return min(self._claims_at) if self._claims_at else None

    @property
    def reuses_tails(self) -> bool:
        """Whether tails of this agent are worth keeping once its step is over: yes, until most proved not to be."""
        return self.tails_wasted < _MIN_WASTED or 4 * self.tails_reused >= self.tails_wasted

    def settle_tail(self, *, reused: bool) -> None:
        """Add to the experience with this agent's tails; older experience fades."""
        if self.tails_reused + self.tails_wasted >= _TAIL_MEMORY:
            self.tails_reused //= 2
            self.tails_wasted //= 2
        if reused:
            self.tails_reused += 1
        else:
            self.tails_wasted += 1

    def move(self, before: float | None, after: float | None) -> None:
        """Account for one claim whose steps changed."""
        if before is not None:
            left = self._claims_at[before] - 1
            if left:
                self._claims_at[before] = left
            else:
                del self._claims_at[before]
        if after is not None:
            self._claims_at[after] = self._claims_at.get(after, 0) + 1


@dataclass(slots=True, eq=False)
class Claim:
    """One workflow's agent expecting to use its context.

    Attributes:
        steps: steps-to-execution; None when it is not expected to run (again).
        pinned: softly pinned.
        retired: its workflow has ended.
        tail_pending: its latest prompt had a dynamic tail that has not proved useful yet.
    """

    role: Role
    steps: float | None = None
    pinned: bool = False
    retired: bool = False
    tail_pending: bool = False

    @property
    def keeps_tail(self) -> bool:
        """Whether the dynamic tail is worth keeping: while the step runs, later only if experience says so."""
        return not self.retired and (self.steps == 0 or self.role.reuses_tails)

    def settle_tail(self, *, reused: bool) -> None:
        """Enter into experience whether the latest tail was extended by a later prompt."""
        if self.tail_pending:
            self.tail_pending = False
            self.role.settle_tail(reused=reused)

    def set(self, steps: float | None, *, pinned: bool = False) -> bool:
        """Take over a prediction; tells whether anything changed."""
        if (steps, pinned) == (self.steps, self.pinned):
            return False
        self.role.move(self.steps, steps)
        self.steps = steps
        self.pinned = pinned
        return True


class ClaimTable:
    """The claims of every live workflow, and of the next one expected of each type.

    Attributes:
        version: grows whenever a prediction changes, so that whoever caches a rank knows when it is stale.
    """

    def __init__(self) -> None:
        self.version = 0
        self._workflows: dict[str, dict[str, Claim]] = {}
        self._expected: dict[str, dict[str, Claim]] = {}
        self._roles: dict[tuple[str, str], Role] = {}

    def __len__(self) -> int:
        """Number of live workflows."""
        return len(self._workflows)

    def role(self, workflow_type: str, agent: str) -> Role:
        """Find the role, or start it. Beyond 65 536 of them the oldest one that nobody claims is forgotten."""
        key = (workflow_type, agent)
        role = self._roles.get(key)
        if role is None:
            if len(self._roles) >= _MAX_ROLES:
                idle = next((name for name, known in self._roles.items() if known.steps is None), None)
                if idle is not None:
                    del self._roles[idle]
            role = self._roles[key] = Role(agent)
        return role

    def claim(self, workflow_id: str, workflow_type: str, agent: str) -> Claim | None:
        """Find the claim of a live workflow's agent, or start it without prediction.

        None when the workflow is not live: it has ended, or nothing was announced about it.
        """
        claims = self._workflows.get(workflow_id)
        if claims is None:
            return None
        claim = claims.get(agent)
        if claim is None:
            claim = claims[agent] = Claim(self.role(workflow_type, agent))
        return claim

    def apply(self, update: WorkflowUpdate) -> None:
        """Replace what is known of one workflow. Cost: O(agents of the workflow)."""
        workflows = self._expected if update.expected else self._workflows
        if update.retired:
            self._retire(workflows.pop(update.workflow_id, {}))
            return
        claims = workflows.setdefault(update.workflow_id, {})
        predicted = {prediction.agent for prediction in update.claims}
        changed = False
        for agent, claim in claims.items():
            if agent not in predicted:
                changed |= claim.set(None)
        for prediction in update.claims:
            claim = claims.get(prediction.agent)
            if claim is None:
                claim = claims[prediction.agent] = Claim(self.role(update.workflow_type, prediction.agent))
            changed |= claim.set(prediction.steps, pinned=prediction.pinned)
        self.version += changed

    def _retire(self, claims: dict[str, Claim]) -> None:
        for claim in claims.values():
            claim.settle_tail(reused=False)
            claim.set(None)
            claim.retired = True
        self.version += 1
