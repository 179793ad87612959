"""What of the host's memory reuse may hold: one bound for everything, least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable


class HostMemory:
    """Keeps what is remembered below a bound.

    Decides by the order of calls alone, so that ranks that see the same requests forget the same things.

    Args:
        max_bytes: the bound.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.dropped = 0
        self._entries: OrderedDict[Hashable, tuple[int, Callable[[], None]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def ever_holds(self, nbytes: int) -> bool:
        """Whether an entry of this size is not larger than the bound."""
        return nbytes <= self.max_bytes

    def fits(self, nbytes: int) -> bool:
        """Make room for so much; false if there may never be any, so that not even a copy is made."""
        if not self.ever_holds(nbytes):
            return False
        self.make_room(nbytes)
        return True

    def hold(self, key: Hashable, nbytes: int, drop: Callable[[], None]) -> bool:
        """Make room for an entry and take note of it; false if it is larger than the bound.

        Args:
            key: what it is known by; must be new.
            nbytes: what it holds.
            drop: called when it has to go.
        """
        if not self.fits(nbytes):
            return False
        self._entries[key] = (nbytes, drop)
        self.used_bytes += nbytes
        return True

    def make_room(self, nbytes: int) -> None:
        """Let the least recently used go until there is room for so much, or nothing is left."""
        while self._entries and self.used_bytes + nbytes > self.max_bytes:
            _, (freed_bytes, forget) = self._entries.popitem(last=False)
            self.used_bytes -= freed_bytes
            self.dropped += 1
            forget()

    def touch(self, key: Hashable) -> None:
        """An entry has been used."""
        if key in self._entries:
            self._entries.move_to_end(key)

    def release(self, key: Hashable) -> None:
        """An entry is gone."""
        nbytes, _ = self._entries.pop(key, (0, None))
        self.used_bytes -= nbytes

    def clear(self) -> None:
        """All entries are gone."""
        self._entries.clear()
        self.used_bytes = 0
