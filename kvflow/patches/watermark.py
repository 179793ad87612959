"""Giving up a little more than is asked for, so that not every decode step has to rank the leaves.

A device that is full has to give something up with nearly every decode step, a page or a few, and each time the leaves
are ranked anew. So a round that has begun goes on up to a high watermark, as operating systems reclaim memory, as long
as nobody claims what it takes: that would leave within the next few steps anyway. What somebody claims, and all of it
where nobody claims anything, leaves when it has to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvflow.policy import EvictionClass

_SHARE = 128
"""Of the device, at most so large a part is free that would not have to be: on average half as much."""


class Watermark:
    """How far a round of evictions from the device goes on beyond what is asked for.

    Args:
        device_tokens: size of the device.
        class_of: order class of a leaf.
    """

    def __init__(self, device_tokens: int, class_of: Callable[[Any], EvictionClass]) -> None:
        self.high_tokens = device_tokens // _SHARE
        self._class_of = class_of
        self._has_room: Callable[[], bool] | None = None

    @contextmanager
    def raised(self, has_room: Callable[[], bool]) -> Iterator[None]:
        """Let a round go on for the length of a ``with`` block.

        Args:
            has_room: whether there is what was asked for.
        """
        self._has_room = has_room
        try:
            yield
        finally:
            self._has_room = None

    def reached(self, leaves: list[tuple[Any, Any]]) -> bool:
        """Whether a round that goes on is to end before the next leaf, because there is room, and somebody claims it.

        Args:
            leaves: those not evicted yet with what they are compared by, the next one first.
        """
        if self._has_room is None or not self._has_room():
            return False
        return not leaves or self._class_of(leaves[0][1]) > EvictionClass.UNCLAIMED
