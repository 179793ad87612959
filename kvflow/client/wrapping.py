"""Running a function inside a scope without changing anything about its call.

The wrapped function keeps its name, signature, kind (plain, async, generator, async generator; function or method),
result and exceptions. The scope of a generator lasts from its first to its last item, but the context variable is set
only while the generator's own frame runs: what it yields to does not become part of it.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import sys
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from operator import attrgetter
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeVar, cast

import wrapt

from kvflow.client.context import Frame, current_step
from kvflow.client.relays import OpenScope, relay, relay_async

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_UNDER_WAY = (CoroutineType, GeneratorType, AsyncGeneratorType, asyncio.Future, Future)
"""What a plain function may return before its work is done."""


class ScopedMethod(wrapt.BoundFunctionWrapper):  # type: ignore[misc,type-arg]
    """A function in a scope, taken from an object or a class. Copied and pickled as methods are: by its owner's."""

    def __copy__(self) -> ScopedMethod:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ScopedMethod:
        owner, name = self._from
        return getattr(copy.deepcopy(owner, memo), name)

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, str]]:
        return getattr, self._from

    @property
    def _from(self) -> tuple[Any, str]:
        return getattr(self, "__self__", self._self_owner), self.__name__


class ScopedFunction(wrapt.FunctionWrapper):  # type: ignore[misc,type-arg]
    """A function in a scope. Copied and pickled as functions are: by reference.

    One that no name refers to is pickled without its scope: there is no workflow where it arrives, either.
    """

    __bound_function_wrapper__ = ScopedMethod

    def __copy__(self) -> ScopedFunction:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ScopedFunction:
        return self

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Callable[..., Any], tuple[Any]]:
        name = getattr(self.__wrapped__, "__qualname__", "")
        try:
            found = attrgetter(name)(sys.modules[self.__module__])
        except (AttributeError, KeyError, TypeError):
            found = None
        return name if found is self else (_unscoped, (self.__wrapped__,))


def _unscoped(function: Callable[..., Any]) -> Callable[..., Any]:
    """What arrives in place of a function in a scope."""
    return function


def wrap(fn: F, open_scope: OpenScope) -> F:
    """Run every call of a function in a fresh scope.

    Args:
        fn: function, method, classmethod, staticmethod or callable object; async or generator functions too.
        open_scope: called with the call's arguments.

    Raises:
        TypeError: ``fn`` is a class, or cannot be called.
    """
    target = fn.__func__ if isinstance(fn, staticmethod | classmethod) else fn
    if inspect.isclass(target) or not callable(target):
        raise TypeError(f"only functions and methods can be decorated, not {target!r}; decorate the method that runs")
    if not (inspect.isroutine(target) or isinstance(target, partial)):
        target = type(target).__call__

    def call(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return run_in(open_scope(*args, **kwargs), lambda: wrapped(*args, **kwargs))

    async def call_async(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with open_scope(*args, **kwargs):
            return await wrapped(*args, **kwargs)

    def generate(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return relay(lambda: open_scope(*args, **kwargs), wrapped(*args, **kwargs))

    def generate_async(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return relay_async(lambda: open_scope(*args, **kwargs), wrapped(*args, **kwargs))

    wrapper: Callable[..., Any] = call
    if inspect.isasyncgenfunction(target):
        wrapper = generate_async
    elif inspect.isgeneratorfunction(target):
        wrapper = generate
    elif inspect.iscoroutinefunction(target):
        wrapper = call_async
    return cast(F, ScopedFunction(cast(Any, fn), wrapper))


def run_in(scope: AbstractContextManager[Any], call: Callable[[], Any]) -> Any:
    """Call a plain function in a scope, which lasts as long as what it returns is under way.

    That is so where a plain wrapper, such as a retry, is around an async function or a generator function, and where a
    function starts a task.
    """
    outside = current_step.get()
    with ExitStack() as stack:
        stack.enter_context(scope)
        result = call()
        if not isinstance(result, _UNDER_WAY):
            return result
        inside = Frame()
        current_step.set(outside)
        return followed(stack.pop_all(), inside, result)


def followed(opened: ExitStack, frame: Frame, result: Any) -> Any:
    """Return what stands for a result under way, whose scope has been entered in a frame, and is left at its end."""
    if isinstance(result, CoroutineType):
        return _left_with(awaited(opened, frame, result), opened)
    if isinstance(result, GeneratorType):
        return _left_with(relay(lambda: opened, result, frame), opened)
    if isinstance(result, AsyncGeneratorType):
        return _left_with(relay_async(lambda: opened, result, frame), opened)
    if result.done():  # maybe of an event loop that is closed, and takes no callback
        _leave_after(result, opened)
    else:
        result.add_done_callback(lambda done: _leave_after(done, opened))
    return result


def _leave_after(done: asyncio.Future[Any] | Future[Any], opened: ExitStack) -> None:
    """Leave a scope with what became of a future."""
    # asked by exception() it would count as retrieved, and asyncio not warn its owner who never does that
    error = CancelledError() if done.cancelled() else getattr(done, "_exception", None)
    opened.__exit__(type(error) if error is not None else None, error, None)


def _left_with(result: T, opened: ExitStack) -> T:
    """Leave a scope with what runs in it, should that never be started."""
    weakref.finalize(result, opened.close).atexit = False
    return result


async def awaited(opened: ExitStack, frame: Frame, coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine in a scope that has been entered in a frame, and leave that."""
    with frame, opened:
        return await coroutine
