"""What keeps the models small: how long a name may be, and of how many things they know."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_NAME_CHARS = 128
"""Longer names of workflow types, agents, tools and verbs are not learned."""


def touched(known: OrderedDict[K, V], key: K, most: int, make: Callable[[], V]) -> V:
    """Return what is known of a key, from now on the one seen last; a new one takes the place of the one seen first.

    Args:
        known: in the order in which keys were seen.
        key: what is seen.
        most: how many keys there may be, at least 1.
        make: makes what is known of a new one.

    Cost: O(1).
    """
    value = known.get(key)
    if value is None:
        if len(known) >= most:
            known.popitem(last=False)
        value = known[key] = make()
    else:
        known.move_to_end(key)
    return value
