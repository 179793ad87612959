"""The agent step graph: which agent of a workflow can run when.

Holds the graph itself, the two predictions made from it (steps-to-execution, expected next use), the cursor that
follows one run, learning a graph from observed runs, and documents and pictures of graphs. Stands on networkx
(imported nowhere else) and ``kvflow.errors``; used by ``policy`` upwards. Knows nothing of tokens in a cache,
requests, engines, clocks or chance: time here is counted in steps.
"""

from kvflow.graph.cursor import Cursor
from kvflow.graph.draw import to_dot, to_mermaid
from kvflow.graph.expected import NextUse, expected_steps
from kvflow.graph.io import dumps_json, dumps_yaml, from_dict, load, loads_json, loads_yaml, to_dict
from kvflow.graph.learn import TransitionLearner
from kvflow.graph.model import AgentStepGraph
from kvflow.graph.nodes import END, MAX_AGENTS, MAX_EDGES, START, Edge, Join
from kvflow.graph.steps import steps_to_execution, steps_until_next

__all__ = [
    "END",
    "MAX_AGENTS",
    "MAX_EDGES",
    "START",
    "AgentStepGraph",
    "Cursor",
    "Edge",
    "Join",
    "NextUse",
    "TransitionLearner",
    "dumps_json",
    "dumps_yaml",
    "expected_steps",
    "from_dict",
    "load",
    "loads_json",
    "loads_yaml",
    "steps_to_execution",
    "steps_until_next",
    "to_dict",
    "to_dot",
    "to_mermaid",
]
