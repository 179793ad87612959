"""Telling the servers what happens between requests. Never waits, never raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvflow.client.degraded import degraded
from kvflow.client.outbox import outbox
from kvflow.client.server import GraphDeclaration


def tell(build: Callable[..., dict[str, Any]], **fields: Any) -> None:
    """Queue a fact for the servers, if there are any."""
    try:
        box = outbox()
        if listeners := box.listeners():
            box.put(build(**fields), listeners)
    except Exception:
        degraded("a fact could not be recorded")


def announce(graph: GraphDeclaration) -> None:
    """Have the servers told about the graph of a run that begins, so that they know it by its first request."""
    try:
        for server in outbox().listeners():
            server.declare(graph, begins=True)
    except Exception:
        degraded("a graph could not be declared")
