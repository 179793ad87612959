"""Points in the work of a copy stream that can be waited for."""

from __future__ import annotations

import threading
import time

from kvflow.errors import EngineError
from kvflow.patches.cpu.link import Link


class Mark:
    """One point in the work of a stream: reached or not, when, and whether the work before it failed.

    Attributes:
        link: the direction of the stream, None for work that is done at once.
        reached_s: monotonic seconds at which it was reached.
        failure: what the work before it raised.
    """

    __slots__ = ("_reached", "failure", "link", "reached_s")

    def __init__(self, link: Link | None = None) -> None:
        self.link = link
        self.reached_s = 0.0
        self.failure: BaseException | None = None
        self._reached = threading.Event()

    def reach(self, failure: BaseException | None = None) -> None:
        """Note that the stream came here."""
        self.failure = failure
        self.reached_s = time.perf_counter()
        self._reached.set()

    def is_reached(self) -> bool:
        """Tell whether the stream came here.

        Raises:
            EngineError: it did, but work before this point failed.
        """
        if not self._reached.is_set():
            return False
        if self.failure is not None:
            raise EngineError(f"a copy between device and host memory failed: {self.failure!r}") from self.failure
        return True

    def wait(self) -> float:
        """Block until reached, and return the seconds that took; raises like `is_reached`."""
        if self.is_reached():
            return 0.0
        began_s = time.perf_counter()
        self._reached.wait()
        self.is_reached()
        return time.perf_counter() - began_s
