"""The control plane: facts from clients go in, predictions for the engine come out.

Lives in the HTTP process, the only place with a wall clock, agent step graphs and learned models. Pure: it returns what
to send and never sends; `patches` owns the sockets, the routes and the timer task.
"""

from kvflow.control.graphs import GraphBook
from kvflow.control.intake import Intake, starts_step
from kvflow.control.plane import ControlPlane
from kvflow.control.quotes import Quotes
from kvflow.control.workflow import Context, Workflow

__all__ = ["Context", "ControlPlane", "GraphBook", "Intake", "Quotes", "Workflow", "starts_step"]
