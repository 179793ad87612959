"""Keeping our own mistakes from hurting the server: catch, count, log once, and give up after too many."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

degraded: Counter[str] = Counter()
"""Failures of this process by component; part of ``GET /kvflow/v1/status``."""


class Guard:
    """Runs our code inside SGLang's.

    Decides by counting alone, so that all ranks, which see the same inputs, give up together.

    Args:
        component: what is guarded, for log and status.
        limit: failures after which the component stays off.
    """

    def __init__(self, component: str, limit: int = 8) -> None:
        self._component = component
        self._limit = limit
        self._failures = 0

    @property
    def open(self) -> bool:
        """Whether the component has been given up."""
        return self._failures >= self._limit

    def run(self, function: Callable[..., T], *arguments: Any, default: T) -> T:
        """Call a function; ``default`` if it fails or has been given up."""
        if self.open:
            return default
        try:
            return function(*arguments)
        except Exception:
            self.note()
            return default

    def note(self) -> None:
        """Count the failure being handled; the first one is logged with its traceback."""
        self._failures += 1
        degraded[self._component] += 1
        if self._failures == 1:
            logger.error("kvflow: %s failed; SGLang goes on without it", self._component, exc_info=True)  # noqa: LOG014 - called while handling
        if self._failures == self._limit:
            logger.error("kvflow: %s failed %d times and stays off", self._component, self._limit)
