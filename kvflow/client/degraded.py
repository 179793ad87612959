"""The one way in which the client fails: it says so in the log, and the program goes on without hints."""

from __future__ import annotations

import logging

logger = logging.getLogger("kvflow.client")

_told: set[str] = set()


def degraded(what: str, *details: object, trace: bool = True) -> None:
    """Log that something is lost: a warning the first time, DEBUG afterwards.

    Args:
        what: the message, with ``%s`` for the details; messages are told apart by it.
        details: values for the message.
        trace: whether the exception being handled belongs to the message.
    """
    level = logging.DEBUG if what in _told else logging.WARNING
    _told.add(what)
    logger.log(level, what, *details, exc_info=trace)
