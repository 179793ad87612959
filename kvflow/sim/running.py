"""The running batch: the requests that decode together."""

from __future__ import annotations

import heapq

from kvflow.sim.request import Request


class RunningBatch:
    """Requests that generate, each a token a step, in the order in which they joined.

    Attributes:
        context_tokens: tokens of all their contexts.
    """

    def __init__(self) -> None:
        self.context_tokens = 0
        self._requests: dict[Request, None] = {}
        self._ends: list[tuple[int, int, Request]] = []
        self._joined = self._step = 0

    def __len__(self) -> int:
        """Number of requests."""
        return len(self._requests)

    def least(self) -> Request:
        """The one that has generated least: of alike ones the longest, then the latest; there has to be one."""

        def order(one: Request) -> tuple[int, int, int]:
            return one.generated + self._step - one.started_step, -one.prompt.tokens, -one.joined

        return min(self._requests, key=order)

    def steps_left(self) -> int:
        """Count the steps until the first of them ends; there has to be one."""
        while True:
            end, joined, request = self._ends[0]
            if self._there(request, joined):
                return end - self._step
            heapq.heappop(self._ends)

    def join(self, request: Request, left_tokens: int) -> None:
        """A request has been prefilled, and generates so many tokens more."""
        self._joined += 1
        self._requests[request] = None
        self.context_tokens += request.goal
        request.joined, request.started_step = self._joined, self._step
        heapq.heappush(self._ends, (self._step + left_tokens, self._joined, request))

    def leave(self, request: Request) -> int:
        """A request ends, or loses its memory; returns how many tokens it has generated since it joined."""
        generated = self._step - request.started_step
        del self._requests[request]
        self.context_tokens -= request.goal + generated
        return generated

    def advance(self, steps: int) -> list[tuple[Request, int]]:
        """Decode so many steps; returns who has ended by then, with what it has generated since it joined."""
        self._step += steps
        self.context_tokens += len(self) * steps
        ended: list[tuple[Request, int]] = []
        while self._ends and self._ends[0][0] <= self._step:
            _, joined, request = heapq.heappop(self._ends)
            if self._there(request, joined):
                ended.append((request, self.leave(request)))
        return ended

    def _there(self, request: Request, joined: int) -> bool:
        """Whether a request still has the turn in which it joined; it may have lost its memory since."""
        return request in self._requests and request.joined == joined
