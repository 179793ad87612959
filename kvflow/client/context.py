"""Who is running: the current step, held in a context variable.

asyncio tasks inherit it, threads get it through :func:`carry`. Forked children do not: those of a pool outlive the
workflow in which the first of its calls was made.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

    from kvflow.client.scopes import Step

P = ParamSpec("P")
R = TypeVar("R")

current_step: ContextVar[Step | None] = ContextVar("kvflow_step", default=None)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: current_step.set(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What runs at this point of the program.

    Attributes:
        agent: the running agent; ``main`` in a workflow, but outside every agent.
        step_id: this run of the agent.
    """

    workflow_id: str
    workflow_type: str
    agent: str
    step_id: str


def active_step() -> Step | None:
    """Return the innermost step that still runs.

    A task may outlive the step that started it: it then belongs to the step around that one, and to none at all once
    the workflow has ended.
    """
    step = current_step.get()
    while step is not None and step.ended:
        step = step.outer
    return step


def current() -> StepContext | None:
    """Return what runs here, or None outside every workflow."""
    step = active_step()
    return step.context if step else None


def carry(fn: Callable[P, R]) -> Callable[P, R]:
    """Bind a function to the current workflow and agent, for threads and executors.

    Every call runs in its own copy of the context, so one carried function may run many times at once::

        executor.submit(kvflow.carry(search), query)

    Raises:
        TypeError: ``fn`` is a coroutine function (tasks inherit the context by themselves) or a generator function.
    """
    if inspect.iscoroutinefunction(fn):
        raise TypeError("carry() takes a plain function: tasks inherit the context by themselves")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError("carry() takes a plain function: carry the one that goes through the generator")
    context = copy_context()

    @functools.wraps(fn)
    def carried(*args: P.args, **kwargs: P.kwargs) -> R:
        return context.copy().run(fn, *args, **kwargs)

    return carried


class Frame:
    """Keeps the current step inside a generator apart from its consumer's; entered whenever the generator runs."""

    __slots__ = ("_inside", "_outside")

    def __init__(self) -> None:
        self._inside = current_step.get()

    def __enter__(self) -> None:
        self._outside = current_step.get()
        current_step.set(self._inside)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = current_step.get()
        if kind is not GeneratorExit:  # of a coroutine that is given up, maybe in somebody else's context
            current_step.set(self._outside)
