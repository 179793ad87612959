"""Reading generators in a scope, as ``yield from`` does.

The context variable is set only while the generator's own frame runs: what it yields to does not become part of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from contextvars import copy_context
from types import TracebackType
from typing import Any

from kvflow.client.context import Frame

OpenScope = Callable[..., AbstractContextManager[Any]]
"""Makes the context manager for one call, of the call's arguments (a method's without its instance)."""


class _Within:
    """A scope that is entered and left in a frame, with whatever its generator raises."""

    def __init__(self, frame: Frame, scope: AbstractContextManager[Any]) -> None:
        self._frame = frame
        self._scope = scope
        self._left = False

    def __enter__(self) -> _Within:
        with self._frame:
            self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._left:
            with self._frame:
                self._scope.__exit__(kind, error, trace)

    def close(self, generator: Generator[Any, Any, Any]) -> None:
        """Close a generator that is not run to its end, and leave."""
        self._left = True
        with self._frame:
            try:
                generator.close()
            finally:
                self._scope.__exit__(None, None, None)


def relay(
    open_scope: OpenScope, generator: Generator[Any, Any, Any], frame: Frame | None = None
) -> Generator[Any, Any, Any]:
    """Do as ``yield from generator`` does, with the generator in a scope, and in a frame of its own if not given."""
    frame = frame or Frame()
    with _Within(frame, open_scope()) as scope:
        resume: Callable[[Any], Any] = generator.send
        value: Any = None
        while True:
            with frame:
                try:
                    item = resume(value)
                except StopIteration as stop:
                    return stop.value
            try:
                resume, value = generator.send, (yield item)
            except GeneratorExit:
                # Maybe by the garbage collector, in the middle of whatever else runs in this context: CPython 3.11
                # crashes if a context is changed while a variable of it is being set.
                copy_context().run(scope.close, generator)
                raise
            except BaseException as error:
                resume, value = generator.throw, error


async def relay_async(
    open_scope: OpenScope, generator: AsyncGenerator[Any, Any], frame: Frame | None = None
) -> AsyncGenerator[Any, Any]:
    """Do for an async generator what :func:`relay` does for a generator."""
    frame = frame or Frame()
    with _Within(frame, open_scope()):
        resume: Callable[[Any], Any] = generator.asend
        value: Any = None
        while True:
            with frame:
                try:
                    item = await resume(value)
                except StopAsyncIteration:
                    return
            try:
                resume, value = generator.asend, (yield item)
            except GeneratorExit:
                with frame:
                    await generator.aclose()
                raise
            except BaseException as error:
                resume, value = generator.athrow, error
