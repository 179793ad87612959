"""Pictures of a graph: Mermaid and Graphviz text."""

from __future__ import annotations

from collections.abc import Mapping

from kvflow.graph.model import AgentStepGraph
from kvflow.graph.nodes import END, START, Join

Steps = Mapping[str, int | None]


def to_mermaid(graph: AgentStepGraph, steps: Steps | None = None) -> str:
    """Return a Mermaid flowchart: ALL-joins as hexagons, alternatives dotted with their probability.

    Args:
        graph: the graph; any agent name is safe, nodes have generated ids.
        steps: steps-to-execution to write under the names, e.g. ``Cursor.steps``.
    """
    flow = graph.flow
    lines = ["flowchart TD"]
    for i, name in enumerate(flow.names):
        left, right = _mermaid_shape(graph, name)
        label = "<br/>".join(_mermaid_text(line) for line in _label(name, steps))
        lines.append(f'    n{i}{left}"{label}"{right}')
    for u, targets in enumerate(flow.always):
        lines += [f"    n{u} --> n{v}" for v in targets]
        lines += [f'    n{u} -. "{probability:.3g}" .-> n{v}' for v, probability in flow.alternatives[u]]
    return "\n".join(lines) + "\n"


def to_dot(graph: AgentStepGraph, steps: Steps | None = None) -> str:
    """Return a Graphviz digraph: ALL-joins as hexagons, alternatives dashed with their probability.

    Arguments as in ``to_mermaid``.
    """
    flow = graph.flow
    lines = [f"digraph {_dot_text([graph.name])} {{", "    node [shape=box];"]
    for i, name in enumerate(flow.names):
        shape = "ellipse" if name in (START, END) else "hexagon" if graph.join(name) is Join.ALL else "box"
        lines.append(f"    n{i} [label={_dot_text(_label(name, steps))}, shape={shape}];")
    for u, targets in enumerate(flow.always):
        lines += [f"    n{u} -> n{v};" for v in targets]
        lines += [f'    n{u} -> n{v} [style=dashed, label="{p:.3g}"];' for v, p in flow.alternatives[u]]
    return "\n".join([*lines, "}"]) + "\n"


def _label(name: str, steps: Steps | None) -> list[str]:
    lines = name.splitlines() or [name]
    if steps is None or name not in steps:
        return lines
    value = steps[name]
    return [*lines, "never" if value is None else f"in {value}" if value else "now"]


def _mermaid_shape(graph: AgentStepGraph, name: str) -> tuple[str, str]:
    if name in (START, END):
        return "([", "])"
    return ("{{", "}}") if graph.join(name) is Join.ALL else ("[", "]")


def _mermaid_text(text: str) -> str:
    """Write everything that could mean something to Mermaid, HTML or Markdown as a character code."""
    return "".join(c if c.isalnum() or c in " _-" else f"#{ord(c)};" for c in text)


def _dot_text(lines: list[str]) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
