"""Requests and events of this process whose hints were malformed: part of ``GET /kvflow/v1/stats``."""

from __future__ import annotations

import threading

count = 0
_counting = threading.Lock()
"""Chat requests are taken in by threads."""


def note() -> None:
    """Count one more."""
    global count
    with _counting:
        count += 1
