"""What the control plane predicts, in the form in which it travels to the engine.

One :class:`WorkflowUpdate` replaces everything the engine believed about one workflow. Plain numbers only: no clock, no
graph and no model below this line. Learned durations and next-use distributions will live here as well.
"""

from kvflow.predict.update import ClaimPrediction, WorkflowUpdate

__all__ = ["ClaimPrediction", "WorkflowUpdate"]
