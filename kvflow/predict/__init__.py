"""What the control plane predicts, and the models it learns to do so.

One :class:`WorkflowUpdate` replaces everything the engine believed about one workflow: plain numbers, since the engine
has no clock, no graph and no model. Above it are the models that learn from facts: how long tools and steps take,
whether a context is used again; and what follows from them: when a context is used next, and how long
it pays to keep it. All are bounded in memory, forget what was not seen for long, and know no clock and no chance.
"""

from kvflow.predict.distribution import Durations
from kvflow.predict.durations import DurationModel
from kvflow.predict.endings import Endings
from kvflow.predict.next_use import NextUseForecast, StepsAhead, Wait, next_use, still_alive
from kvflow.predict.pace import Pace
from kvflow.predict.survival import Survival
from kvflow.predict.ttl import continuum_ttl
from kvflow.predict.update import ClaimPrediction, WorkflowUpdate

__all__ = [
    "ClaimPrediction",
    "DurationModel",
    "Durations",
    "Endings",
    "NextUseForecast",
    "Pace",
    "StepsAhead",
    "Survival",
    "Wait",
    "WorkflowUpdate",
    "continuum_ttl",
    "next_use",
    "still_alive",
]
