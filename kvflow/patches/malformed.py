"""Malformed hints: whether they are refused, and how many there were (part of ``GET /kvflow/v1/stats``)."""

from __future__ import annotations

import threading
from functools import cache

from kvflow import config

count = 0
_counting = threading.Lock()
"""Chat requests are taken in by threads."""


def note() -> None:
    """Count one more request or event of this process."""
    global count
    with _counting:
        count += 1


@cache
def strict() -> bool:
    """Whether requests with malformed hints are refused.

    Read once: settings do not change while a server runs, and the file they came from may.
    """
    return config.load().intake.strict
