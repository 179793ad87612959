"""Showing the guard what the requests of a simulated server look for, find and leave."""

from __future__ import annotations

from kvflow.engine import Guard, rest_tokens
from kvflow.engine.guard import MemoryView
from kvflow.sim.context import Context
from kvflow.sim.memory import Memory
from kvflow.sim.request import Request


class Watch:
    """Follows requests for the guard; without one it does nothing.

    Args:
        guard: compares what they find with what LRU would have had.
        unit_tokens: tokens per digest.
    """

    def __init__(self, guard: Guard | None, memory: Memory, unit_tokens: int) -> None:
        self._guard = guard
        self._memory = memory
        self._unit_tokens = unit_tokens

    def looked_up(self, request: Request) -> None:
        """A request has looked for its prompt, to run or to wait on."""
        if self._guard is not None:
            self._guard.looked_up(request, request.prompt.digests)

    def computed(self, request: Request, chunked: Request | None) -> None:
        """A part of a request has been computed: the first one, each time it starts, tells what it found.

        Args:
            request: whose part.
            chunked: the request whose prompt is computed in parts now.
        """
        if request.watched:
            return
        request.watched = True
        if self._guard is not None:
            self._guard.started(
                request,
                request.prompt.digests,
                device_hit=request.hits["device"] - request.brought_tokens,
                host_hit=request.hits["host"] + request.brought_tokens,
                memory=self._view(request, chunked),
                rest_tokens=self._rest_tokens(request.prompt),
            )

    def retracted(self, request: Request, chunked: Request | None) -> None:
        """A request has lost its memory, and starts again later."""
        request.watched = False
        if self._guard is not None:
            self._guard.ended(request, (), memory=self._view(None, chunked))

    def finished(self, request: Request, chunked: Request | None) -> None:
        """A request has left its whole context in the cache."""
        if self._guard is not None:
            whole = request.whole
            memory = self._view(None, chunked)
            self._guard.ended(request, whole.digests, memory=memory, rest_tokens=self._rest_tokens(whole))

    def _rest_tokens(self, context: Context) -> int:
        """What of a context lies behind its last full unit, in pages that can be cached."""
        return rest_tokens(context.tokens, self._unit_tokens, self._memory.page_tokens)

    def _view(self, starting: Request | None, chunked: Request | None) -> MemoryView:
        """Memory as the guard wants to know it: prompts that have started count as a whole, not as what is left."""
        left = sum(one.goal - one.computed for one in {starting, chunked} if one is not None and one.watched)
        return self._memory.view(left)
