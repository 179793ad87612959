"""What came of a workflow: reuse is judged by it."""

from __future__ import annotations

from uuid import UUID

from kvflow.client.context import active_step
from kvflow.client.facts import tell
from kvflow.client.scopes import Workflow, known_as
from kvflow.hints import FeedbackFact, checked, feedback_action
from kvflow.hints.fields import MAX_IDENTIFIER


def feedback(outcome: float, workflow: Workflow | str | int | UUID | None = None) -> None:
    """Tell the servers how well a workflow did what it was for::

        with kvflow.workflow("fix", reuse=True) as run:
            patch = solve(task)
        kvflow.feedback(passes_tests(patch), run)

    Servers that reuse text approximately compare the outcomes of workflows with reuse and without, and stop reusing
    where it makes them worse. Outside a workflow, and without one given, nothing is said.

    Args:
        outcome: from 0 (failure) to 1 (success); a bool will do.
        workflow: which one, or its id; the one that runs if not given.

    Raises:
        ValueError: the outcome is not between 0 and 1.
        TypeError: the workflow is neither one nor an id.
    """
    fact = checked("feedback", FeedbackFact, workflow_id="-", outcome=float(outcome))
    step = active_step() if workflow is None else None
    workflow = step.workflow if step is not None else workflow
    if workflow is None:
        return
    workflow_id = workflow.id if isinstance(workflow, Workflow) else known_as("workflow id", workflow, MAX_IDENTIFIER)
    tell(feedback_action, workflow_id=workflow_id, outcome=fact.outcome)
