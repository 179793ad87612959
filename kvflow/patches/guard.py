"""Keeping our own mistakes from hurting the server: catch, count, log once, and give up after too many."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

degraded: Counter[str] = Counter()
"""Failures of this process by component; part of ``GET /kvflow/v1/status``."""


def note(component: str) -> None:
    """Count the failure being handled; a component's first one is logged with its traceback."""
    degraded[component] += 1
    if degraded[component] == 1:
        logger.error("kvflow: %s failed; SGLang goes on without it", component, exc_info=sys.exception())


class Guard:
    """Runs our code inside SGLang's, and gives it up after too many failures.

    Decides by counting alone: ranks that see the same inputs give up together.

    Args:
        component: what is guarded, for log and status.
        limit: failures after which the component stays off.

    Attributes:
        failures_left: before it does; ranks whose failures are their own may agree on it.
    """

    def __init__(self, component: str, limit: int = 8) -> None:
        self._component = component
        self.failures_left = limit

    def run(self, function: Callable[..., T], *arguments: Any, default: T) -> T:
        """Call a function; ``default`` if it fails or has been given up."""
        if not self.failures_left:
            return default
        try:
            return function(*arguments)
        except Exception:
            note(self._component)
            self.failures_left -= 1
            if not self.failures_left:
                logger.error("kvflow: %s failed too often and stays off", self._component)
            return default
