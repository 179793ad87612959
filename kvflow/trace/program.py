"""Workflows as programs: the events of one workflow, by thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kvflow.trace.schema import (
    MAIN_THREAD,
    Event,
    Join,
    LLMCall,
    Spawn,
    ThreadEvent,
    ToolEnd,
    ToolStart,
    WorkflowEnd,
    WorkflowStart,
)


@dataclass(slots=True, kw_only=True)
class Program:
    """One workflow of a trace, ready to be replayed.

    Attributes:
        start: how it starts.
        threads: events by thread; the main thread is always there, the others are spawned.
        ended: the trace has seen it end.
    """

    start: WorkflowStart
    threads: dict[str, list[ThreadEvent]] = field(default_factory=lambda: {MAIN_THREAD: []})
    ended: bool = False

    @property
    def calls(self) -> list[LLMCall]:
        """All LLM calls, thread by thread."""
        return [event for events in self.threads.values() for event in events if isinstance(event, LLMCall)]


class _Open:
    """A workflow while it is read: what its further events may refer to."""

    def __init__(self, start: WorkflowStart) -> None:
        self.program = Program(start=start)
        self._context_tokens: dict[str, int] = {}
        self._tools: dict[tuple[str, str], str] = {}
        self._tool_names: Counter[str] = Counter()
        self._spawned = {MAIN_THREAD}
        self._joined = {MAIN_THREAD}

    def take(self, event: ThreadEvent) -> str:
        """Add an event; says what is wrong with it, and leaves it out, if something is."""
        problem = self._check(event)
        if not problem:
            if isinstance(event, ToolStart | ToolEnd):
                event = self._named_apart(event)
            self.program.threads.setdefault(event.thread, []).append(event)
        return problem

    def _named_apart(self, event: ToolStart | ToolEnd) -> ToolStart | ToolEnd:
        """Some clients number tool calls anew in every turn; here a name stands for one call."""
        key = (event.thread, event.tool_call)
        if isinstance(event, ToolStart):
            count = self._tool_names[event.tool_call]
            self._tool_names[event.tool_call] += 1
            self._tools[key] = f"{event.tool_call}~{count}" if count else event.tool_call
            name = self._tools[key]
        else:
            name = self._tools.pop(key)
        return event if name == event.tool_call else event.model_copy(update={"tool_call": name})

    def _check(self, event: ThreadEvent) -> str:
        if event.thread not in self._spawned:
            return f"thread {event.thread!r} has not been spawned"
        if event.thread in self._joined and event.thread != MAIN_THREAD:
            return f"thread {event.thread!r} has been joined"
        if isinstance(event, LLMCall):
            return self._check_call(event)
        if isinstance(event, ToolStart | ToolEnd):
            return self._check_tool(event)
        if isinstance(event, Spawn | Join):
            return self._check_child(event)
        return "" if event.call in self._context_tokens else f"call {event.call!r} is not known"

    def _check_tool(self, event: ToolStart | ToolEnd) -> str:
        if isinstance(event, ToolEnd) and (event.thread, event.tool_call) not in self._tools:
            return f"tool call {event.tool_call!r} has not started in this thread"
        return ""

    def _check_child(self, event: Spawn | Join) -> str:
        if isinstance(event, Join):
            if event.child not in self._spawned or event.child in self._joined or event.child == event.thread:
                return f"thread {event.child!r} is not there to be joined"
            self._joined.add(event.child)
        else:
            if event.child in self._spawned:
                return f"thread {event.child!r} exists already"
            self._spawned.add(event.child)
            self.program.threads.setdefault(event.child, [])
        return ""

    def _check_call(self, call: LLMCall) -> str:
        if call.call in self._context_tokens:
            return f"call {call.call!r} exists already"
        if call.prompt.tokens == 0:
            return f"call {call.call!r} has an empty prompt"
        if call.prompt.base is not None:
            known = self._context_tokens.get(call.prompt.base)
            if known is None:
                return f"call {call.call!r} is based on {call.prompt.base!r}, which is not known"
            if call.prompt.keep_tokens > known:
                return f"call {call.call!r} keeps {call.prompt.keep_tokens} tokens of {known}"
        elif call.prompt.keep_tokens:
            return f"call {call.call!r} keeps tokens of nothing"
        self._context_tokens[call.call] = call.prompt.tokens + call.output_tokens
        return ""


@dataclass(frozen=True, slots=True)
class BadEvent:
    """An event that does not fit what came before it; it is left out."""

    workflow: str
    problem: str

    def __str__(self) -> str:
        return f"workflow {self.workflow}: {self.problem}"


def programs(events: Iterable[Event], bad: list[BadEvent] | None = None) -> Iterator[Program]:
    """Gather events into workflows, in the order in which these end; those that never end come last.

    Args:
        events: as :func:`read_trace` gives them.
        bad: collects what was left out.

    Cost: memory for the workflows that live at the same time in the trace.
    """
    live: dict[str, _Open] = {}
    for event in events:
        problem = ""
        known = live.get(event.workflow)
        if isinstance(event, WorkflowStart):
            if known is None:
                live[event.workflow] = _Open(event)
            else:
                problem = "has started already"
        elif known is None:
            problem = f"{event.event} before its start"
        elif isinstance(event, WorkflowEnd):
            known.program.ended = True
            yield live.pop(event.workflow).program
        else:
            problem = known.take(event)
        if problem and bad is not None:
            bad.append(BadEvent(event.workflow, problem))
    for left in live.values():
        yield left.program
