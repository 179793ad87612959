"""A yes or no that a background thread finds out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from kvflow.client.degraded import degraded


class Answer:
    """A question under way, or settled.

    Waiting is bounded by a deadline that counts from the moment of asking, so that however many requests wait, and
    however late they come, the program as a whole is held up only once. No answer in time counts as no.

    Args:
        find_out: runs in a daemon thread of its own; an exception counts as no.
        timeout_s: how long anybody waits.
    """

    __slots__ = ("_deadline_s", "_found")

    def __init__(self, find_out: Callable[[], bool], timeout_s: float) -> None:
        self._found: Future[bool] = Future()
        self._deadline_s = time.monotonic() + timeout_s
        try:
            threading.Thread(target=self._run, args=(find_out,), name="kvflow-ask", daemon=True).start()
        except RuntimeError:  # no room for another thread, or the interpreter is shutting down
            self._found.set_result(False)

    @classmethod
    def settled(cls, value: bool) -> Answer:
        """Make an answer that is known from the start."""
        answer = cls.__new__(cls)
        answer._found = Future()
        answer._found.set_result(value)
        answer._deadline_s = 0.0
        return answer

    @property
    def known(self) -> bool | None:
        """The answer, or None while it is being found out."""
        return self._found.result() if self._found.done() else None

    def wait(self) -> bool:
        """Return the answer, blocking until the deadline at most."""
        try:
            return self._found.result(self._left_s)
        except TimeoutError:
            return False

    async def wait_async(self) -> bool:
        """Return the answer, without blocking the event loop."""
        if self.known is None:
            await asyncio.wait([asyncio.wrap_future(self._found)], timeout=self._left_s)
        return self.known or False

    @property
    def _left_s(self) -> float:
        return max(0.0, self._deadline_s - time.monotonic())

    def _run(self, find_out: Callable[[], bool]) -> None:
        try:
            found = find_out()
        except Exception:
            degraded("a question to a server failed")
            found = False
        self._found.set_result(found)
