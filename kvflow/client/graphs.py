"""The agent step graphs that a program declares, as the documents that servers take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvflow.client.degraded import degraded

if TYPE_CHECKING:
    from kvflow.graph import AgentStepGraph


def document_of(graph: AgentStepGraph | Mapping[str, Any] | str | PathLike[str], workflow_type: str) -> str | None:
    """Return a graph as JSON: the graph, its document, or a file with it; None if it cannot be read."""
    try:
        return json.dumps(graph if isinstance(graph, Mapping) else _fields(graph), sort_keys=True)
    except Exception:
        degraded("the graph of workflow type %r could not be read", workflow_type)
        return None


def _fields(graph: AgentStepGraph | str | PathLike[str]) -> dict[str, Any]:
    from kvflow.graph import to_dict

    if not isinstance(graph, str | PathLike):
        return to_dict(graph)
    path = Path(graph).absolute()
    seen = path.stat()
    return _read(path, seen.st_mtime_ns, seen.st_size)


@lru_cache(maxsize=64)
def _read(path: Path, changed_ns: int, size: int) -> dict[str, Any]:
    """Read a graph's file, once for as long as it stays as it is: a program may begin a workflow for every request."""
    from kvflow.graph import load, to_dict

    return to_dict(load(path))


def type_of(document: str | None) -> str:
    """Return the type that a graph names, unless it has only the name that graphs have by default."""
    name = json.loads(document).get("name") if document is not None else None
    return name if isinstance(name, str) and name != "workflow" else "default"
