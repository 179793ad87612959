"""Rows of kv-cache-tester's traces: a session, with its requests and sub-agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from kvflow.trace.importers.base import Clock, Row, Tokens


def _kind(value: Any) -> str:
    return "agent" if isinstance(value, dict) and "requests" in value else "request"


class Request(Row):
    """An LLM call. Its times are in seconds, and its blocks are in ``hash_ids``, or coded in ``h``.

    See :mod:`kvflow.trace.importers.weka`.
    """

    t: Clock
    tokens: Tokens = Field(alias="in")
    out: Tokens
    stop: str | None = None
    input_types: tuple[str, ...] = ()
    api_time: float | None = None
    think_time: float | None = None
    h: Annotated[list[Tokens], Field(min_length=1)] | None = None
    hash_ids: list[Tokens] | None = None


class Agent(Row):
    """A list of requests and sub-agents; of a sub-agent ``t`` is the end, in seconds, if it has a ``duration_ms``."""

    t: Clock = 0.0
    subagent_type: str | None = None
    duration_ms: float | None = None
    requests: list[
        Annotated[
            Annotated[Request, Tag("request")] | Annotated[Agent, Tag("agent")],
            Discriminator(_kind),
        ]
    ]


class Session(Agent):
    """A row; ``block_size`` is in tokens."""

    id: str
    block_size: Annotated[int, Field(ge=1)] = 64
    group: str | None = None


def begun_s(entry: Request | Agent) -> float:
    """When a request or a sub-agent began, in seconds of the clock of the list it stands in."""
    waited_ms = entry.duration_ms or 0.0 if isinstance(entry, Agent) else 0.0
    return entry.t - max(0.0, waited_ms) / 1000


def as_begun(entries: Sequence[Request | Agent]) -> list[Request | Agent]:
    """A thread's requests in their order, with its sub-agents where they began."""
    ordered: list[Request | Agent] = []
    for entry in entries:
        place = len(ordered)
        while isinstance(entry, Agent) and place and begun_s(ordered[place - 1]) > begun_s(entry):
            place -= 1
        ordered.insert(place, entry)
    return ordered
