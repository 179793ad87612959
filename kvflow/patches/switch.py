"""Whether kvflow is on in this process, and which of its seams hold."""

from __future__ import annotations

import os

from kvflow.patches.seams import Role, SeamBook

ENABLE_VARIABLE = "KVFLOW_ENABLE"
"""Tells spawned processes that the launching one was asked to switch kvflow on."""

BACKEND = "kvflow"
"""Name under which the radix cache and the tree core are registered with SGLang."""

books: dict[Role, SeamBook] = {}
"""State of the seams of this process."""


def enabled() -> bool:
    """Whether kvflow is switched on in this server."""
    return os.environ.get(ENABLE_VARIABLE, "").lower() in ("1", "true", "on", "yes")
