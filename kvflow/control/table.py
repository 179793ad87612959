"""The workflows that live, which of them are parts of others, and which was idle for longest."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import islice

from kvflow.control.workflow import INFERRED, Workflow
from kvflow.hints import StepFact

_MOST_PASSED_OVER = 16
"""Workflows at work that are looked at for an idle one when there are too many."""
_CROWD = 1 / 8
"""Nobody with a smaller share of all workflows has too many of them: where one client has a type for each of its own,
the largest number of one type is somebody else's."""
_MOST_GENERATIONS = 32
"""Workflows that may be part of each other: every fact of the last is a sign of life of all of them."""


def _whose(workflow: Workflow) -> tuple[str, str]:
    """Who a workflow is of: its tenant, or, where none is named, all of its type, or all that are inferred."""
    if workflow.tenant:
        return workflow.tenant, ""
    return "", INFERRED if workflow.workflow_type.startswith(INFERRED) else workflow.workflow_type


class WorkflowTable:
    """Live workflows by id, the one idle for longest first. A sub-workflow may begin before its parent."""

    def __init__(self) -> None:
        self._workflows: OrderedDict[str, Workflow] = OrderedDict()
        self._children: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._workflows)

    def __iter__(self) -> Iterator[Workflow]:
        return iter(self._workflows.values())

    def __reversed__(self) -> Iterator[Workflow]:
        return reversed(self._workflows.values())

    def get(self, workflow_id: str) -> Workflow | None:
        """Find a live workflow."""
        return self._workflows.get(workflow_id)

    def idle_longest(self, now_s: float) -> Workflow:
        """The workflow that can best be missed: one not at work, if there is one among the first.

        If somebody has an eighth of all or more, it is of whom has the most. Cost: O(workflows).
        """
        ((crowd, most),) = Counter(map(_whose, self)).most_common(1)
        crowded = most >= _CROWD * len(self)
        oldest = list(islice((each for each in self if not crowded or _whose(each) == crowd), _MOST_PASSED_OVER))
        idle = (each for each in oldest if not each.at_work and not each.waits_as_told(now_s))
        return next(idle, oldest[0])

    def open(self, fact: StepFact, now_s: float) -> Workflow:
        """Enter the workflow that a step begins."""
        workflow = Workflow(
            workflow_id=fact.workflow_id,
            workflow_type=fact.workflow_type,
            parent_id=self._parent_id(fact.workflow_id, fact.parent_workflow_id),
            last_seen_s=now_s,
            children=self._children.setdefault(fact.workflow_id, set()),
        )
        self._workflows[fact.workflow_id] = workflow
        if workflow.parent_id:  # which may begin later, or again
            self._children.setdefault(workflow.parent_id, set()).add(workflow.workflow_id)
        return workflow

    def remove(self, workflow: Workflow) -> None:
        """A live workflow is over."""
        del self._workflows[workflow.workflow_id]
        if workflow.parent_id:
            self._children[workflow.parent_id].discard(workflow.workflow_id)
        for name in (workflow.workflow_id, workflow.parent_id):
            if name and name not in self._workflows and not self._children[name]:
                del self._children[name]

    def hear(self, workflow: Workflow, agent: str, now_s: float) -> None:
        """Note a fact of a workflow's agent."""
        if agent in workflow.contexts:
            workflow.contexts[agent].told = True
        self.touch(workflow, now_s)

    def touch(self, workflow: Workflow, now_s: float) -> None:
        """Note a sign of life; a sub-workflow is one for its parents too."""
        for each in self._with_parents(workflow.workflow_id):
            each.last_seen_s = now_s
            self._workflows.move_to_end(each.workflow_id)

    def program_of(self, workflow_id: str) -> str:
        """The workflow at the root of a live one."""
        *_, root = (workflow_id, *(each.parent_id or each.workflow_id for each in self._with_parents(workflow_id)))
        return root

    def tenant_of(self, workflow_id: str) -> str:
        """Whose a live workflow is, as its program or else itself says; empty if neither does."""
        known = (self.get(each) for each in (self.program_of(workflow_id), workflow_id))
        return next((workflow.tenant for workflow in known if workflow is not None and workflow.tenant), "")

    def _parent_id(self, workflow_id: str, parent_id: str | None) -> str | None:
        """The parent a workflow asks for, unless it would then be part of itself, or of too many that are of others."""
        if parent_id is None:
            return None
        above = [parent_id, *(each.parent_id for each in self._with_parents(parent_id) if each.parent_id)]
        if workflow_id in above or len(above) + self._generations(workflow_id) > _MOST_GENERATIONS:
            return None
        return parent_id

    def _generations(self, workflow_id: str) -> int:
        """How many there are of a workflow and those that are part of it; they may have begun before it."""
        count, latest = 0, {workflow_id}
        while latest and count < _MOST_GENERATIONS:
            count += 1
            latest = {child for each in latest for child in self._children.get(each, ())}
        return count

    def _with_parents(self, workflow_id: str) -> Iterator[Workflow]:
        """A workflow, and those it is part of, as far as they live; each once."""
        seen: set[str] = set()
        current = self.get(workflow_id)
        while current is not None and current.workflow_id not in seen:
            seen.add(current.workflow_id)
            yield current
            current = self.get(current.parent_id) if current.parent_id else None


def parent_problem(workflow: Workflow, fact: StepFact) -> str:
    """Why a workflow is not part of the one that a fact of it names; empty if it is, or if none is named."""
    if fact.parent_workflow_id in (None, workflow.parent_id):
        return ""
    return (
        "parent_workflow_id is ignored: it has to come with the first fact of its workflow, must be no part of it, and "
        f"no more than {_MOST_GENERATIONS} workflows may be part of each other"
    )
