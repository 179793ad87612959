"""The fixed words of an agent step graph: the two nodes that are no agents, the kinds of join, the limits."""

from __future__ import annotations

from enum import StrEnum

from kvflow.errors import GraphError

START = "START"
"""The node a workflow leaves when its first agent starts."""
END = "END"
"""The node a workflow enters when it finishes."""

MAX_AGENTS = 256
MAX_EDGES = 4096
MAX_NAME_CHARS = 128
MAX_FIXED_PROMPT_TOKENS = 2**31

Edge = tuple[str, str]
"""Source and target of an edge."""


class Join(StrEnum):
    """What an agent with several predecessors waits for.

    Source: KVFlow (arXiv 2507.07400) section 3, the step aggregation function of a node.
    """

    ANY = "any"
    """Every predecessor that finishes starts it, the first one earliest (the paper's OR, minimum)."""
    ALL = "all"
    """It starts when all predecessors have finished (the paper's AND, maximum)."""


def check_agent_name(name: str) -> None:
    """Refuse what cannot be the name of an agent.

    Raises:
        GraphError: the name is empty, longer than ``MAX_NAME_CHARS``, reserved, or no text at all.
    """
    if not isinstance(name, str):
        raise GraphError(f"an agent's name must be text, got {name!r}")
    if name in (START, END):
        raise GraphError(f"{name!r} is reserved and cannot be an agent; call the agent something else")
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise GraphError(f"an agent's name must have 1 to {MAX_NAME_CHARS} characters, got {len(name)}: {name[:40]!r}")
