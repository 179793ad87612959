"""The spans of a program that servers are told about: a workflow and an agent's step (and :mod:`tools`).

Each is a context manager, sync and async alike, for one use. Entering and leaving never wait for a server.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

from kvflow.client import recorder
from kvflow.client.context import StepContext, active_step, current_step
from kvflow.client.degraded import degraded
from kvflow.client.facts import announce, tell
from kvflow.client.server import GraphDeclaration
from kvflow.client.wrapping import wrap
from kvflow.hints import step_action

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

MAIN = "main"
"""The agent of what runs in a workflow, but outside every agent."""
_MAX_SEGMENTS = 256
_SURROGATE = re.compile("[\ud800-\udfff]")
"""What paths and environment variables have in place of bytes that are no text; JSON has no place for it."""
_declaring = threading.RLock()
"""Reentrant: a finalizer may run while it is held, and declare a text."""
_process = object()
"""Stands for this process; a forked child has another one."""
START, END = "START", "END"
"""The nodes of an agent step graph that are no agents (as in :mod:`kvflow.graph`, which is slow to import)."""


def known_as(what: str, value: str | int | UUID | None, most: int) -> str | None:
    """Return what servers know a workflow or tenant by: a digest, where its name is too long, or no Unicode text.

    Args:
        what: kind of name, for the log.
        value: the name.
        most: how many characters it may have.

    Raises:
        TypeError: it is no name.
    """
    if isinstance(value, int | UUID):
        value = str(value)
    if not isinstance(value, str | None):
        raise TypeError(f"a {what} must be a text, a number or a UUID, not {value!r}")
    if value is None or (len(value) <= most and not _SURROGATE.search(value)):
        return value
    digest = hashlib.sha256(value.encode(errors="surrogatepass")).hexdigest()
    problem = f"longer than {most} characters" if len(value) > most else "no Unicode text"
    degraded(f"a {what} is {problem}; servers know it as %s: %.60r", digest, value, trace=False)
    return digest


class Scope(ABC, Generic[T]):
    """A span with a beginning and an end; subclasses say what happens then, and what ``with ... as`` gives.

    A process that is forked inside it leaves it without a word: it ends where it began.
    """

    __slots__ = ("_entered_in",)

    def __init__(self) -> None:
        self._entered_in: object | None = None

    @abstractmethod
    def _begin(self) -> T: ...

    @abstractmethod
    def _end(self, *, failed: bool) -> None: ...

    def __enter__(self) -> T:
        if self._entered_in is not None:
            raise RuntimeError(f"a {type(self).__name__} can be entered only once; make another one")
        self._entered_in = _process
        return self._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered_in is _process:
            self._end(failed=kind is not None and not issubclass(kind, GeneratorExit))

    async def __aenter__(self) -> T:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """What is the same for every run of an agent; fields as in :class:`kvflow.hints.StepFact`."""

    agent: str
    fixed_prompt_messages: int | None = None
    fixed_prompt_tokens: int | None = None
    tools: tuple[str, ...] = ()
    final: bool = False

    def __post_init__(self) -> None:
        if self.agent in (START, END):
            raise ValueError(f"{self.agent!r} is reserved and cannot be an agent; call the agent something else")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowOptions:
    """What a workflow is started with; ``end``: whether leaving its block ends it."""

    type: str
    id: str | None = None
    graph: GraphDeclaration | None = None
    tenant: str | None = None
    reuse: bool | None = None
    end: bool = True


class Step(Scope[StepContext]):
    """One run of an agent; made by :func:`kvflow.step` and by the agent decorator."""

    __slots__ = ("_ended", "_implicit", "context", "options", "outer", "workflow")

    context: StepContext
    outer: Step | None
    workflow: Workflow

    def __init__(self, options: StepOptions) -> None:
        super().__init__()
        self.options = options
        self._implicit: Workflow | None = None
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the step, or its whole workflow, is over."""
        return self._ended or self.workflow.ended

    def action(self) -> dict[str, Any]:
        """Build the ``kvflow.step`` action for a request of this step."""
        options = self.options
        return step_action(
            **self._facts(),
            fixed_prompt_messages=options.fixed_prompt_messages,
            fixed_prompt_tokens=options.fixed_prompt_tokens,
            tools=list(options.tools),
        )

    def join(self, workflow: Workflow, outer: Step | None) -> None:
        """Make this the current step."""
        self.workflow, self.outer = workflow, outer
        self.context = StepContext(
            workflow_id=workflow.id, workflow_type=workflow.type, agent=self.options.agent, step_id=uuid4().hex
        )
        current_step.set(self)
        recorder.step_started(self)

    def leave(self) -> None:
        """Make the step around this one current again, unless something else is current by now."""
        if not self._ended:
            recorder.step_ended(self)
        self._ended = True
        while self.outer is not None and self.outer.ended:  # tasks may start each other for as long as the program runs
            self.outer = self.outer.outer
        if current_step.get() is self:
            current_step.set(self.outer)

    def _begin(self) -> StepContext:
        outer = active_step()
        if outer is None:
            self._implicit = Workflow(WorkflowOptions(type=self.options.agent))
            outer = self._implicit.start()
        self.join(outer.workflow, outer)
        return self.context

    def _end(self, *, failed: bool) -> None:
        if not self.ended:
            facts = self._facts()
            if failed and self.options.final:
                facts["final"] = False  # its program may try again
            tell(step_action, **facts, event="end")
        self.leave()
        if self._implicit:
            self._implicit.finish()

    def _facts(self) -> dict[str, Any]:
        return {
            "workflow_id": self.workflow.id,
            "workflow_type": self.workflow.type,
            "agent": self.options.agent,
            "step_id": self.context.step_id,
            "parent_workflow_id": self.workflow.parent_id,
            "final": self.options.final or None,
            "tenant": self.workflow.tenant,
        }


class Workflow(Scope["Workflow"]):
    """One run of a workflow; made by :func:`kvflow.workflow`. Also decorates functions.

    Attributes:
        id: what servers know this run by.
        type: the kind of workflow.
        parent_id: the workflow this one runs in.
        tenant: whose it is: as it says, or that of the workflow it runs in.
        reuse: whether whole messages may be reused: as it says, or the workflow it runs in.
        ended: whether the run is over; what still goes on in it then is none of the servers' business.
        segments: texts that its agents hand to each other, with their names, the latest last.
    """

    __slots__ = ("_main", "ended", "id", "options", "parent_id", "reuse", "segments", "tenant", "type")

    def __init__(self, options: WorkflowOptions) -> None:
        super().__init__()
        if not (options.end or options.id):
            degraded("workflow(end=False) without an id cannot be gone on with: it ends with its block", trace=False)
        self.options = options
        self.type = options.type
        self.id = options.id or uuid4().hex
        self.parent_id: str | None = None
        self.tenant = options.tenant
        self.reuse = bool(options.reuse)
        self.ended = False
        self.segments: dict[str, str | None] = {}
        self._main = Step(StepOptions(agent=MAIN))

    def __call__(self, fn: F) -> F:
        """Run every call of a function in a workflow of its own.

        Raises:
            TypeError: all calls would be one workflow, and the first to return would end it.
        """
        if self.options.id is not None:
            raise TypeError("an id names one run: leave it out of the decorator, or write with workflow(..., id=...)")
        return wrap(fn, lambda *args, **kwargs: Workflow(self.options))

    def start(self) -> Step:
        """Begin the run; returns the step of what runs outside every agent."""
        outer = active_step()
        if outer:
            self.parent_id = outer.workflow.id
            self.tenant = self.tenant or outer.workflow.tenant
            if self.options.reuse is None:
                self.reuse = outer.workflow.reuse
        self._main.join(self, outer)
        if self.options.graph:
            announce(self.options.graph)
        return self._main

    def declare(self, text: str, name: str | None) -> None:
        """Note a text that stands in several prompts; the oldest are forgotten."""
        with _declaring:
            self.segments.pop(text, None)
            self.segments[text] = name
            while len(self.segments) > _MAX_SEGMENTS:
                del self.segments[next(iter(self.segments))]

    def finish(self) -> None:
        """End the run, or this part of it."""
        self.ended = True
        self._main.leave()
        if not self.options.end and self.options.id:
            return
        tell(
            step_action,
            workflow_id=self.id,
            workflow_type=self.type,
            agent=END,
            parent_workflow_id=self.parent_id,
            final=True,
            tenant=self.tenant,
        )
        recorder.workflow_ended(self)

    def _begin(self) -> Workflow:
        self.start()
        return self

    def _end(self, *, failed: bool) -> None:
        self.finish()


def _forget() -> None:
    """Leave behind a lock that another thread of the parent may hold, and the parent's scopes, in a forked child."""
    global _declaring, _process
    _declaring, _process = threading.RLock(), object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
