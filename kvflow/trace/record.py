"""What a program was seen doing, turned into the events of a trace.

Facts are told in the order in which they happened: steps of agents begin and end, tools do, LLM calls are sent and
answered. When the workflow is over its program is read off the times:

* What a step does runs in the thread of the step around it, one thing after another.
* LLM calls and steps that overlap within a step ran side by side: each is a thread of its own, spawned when the first
  of them began and joined when the last one ended. If one began later than the first, that is its delay.
* A prompt continues the call of its own thread, or of one around it before it was spawned, with which it shares most.
* An answer that nobody saw (streams) is the assistant's message that follows the same messages in a later prompt; if
  there is none, it has no tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvflow.trace.importers.base import Names
from kvflow.trace.importers.conversation import Conversation, Part
from kvflow.trace.importers.threads import Timed, interleave
from kvflow.trace.messages import MessagePart, Usage
from kvflow.trace.schema import (
    MAIN_THREAD,
    Event,
    Join,
    LLMCall,
    Spawn,
    ToolEnd,
    ToolStart,
    WorkflowEnd,
    WorkflowStart,
)

LOOKAHEAD = 64
"""Later prompts in which an unseen answer is looked for."""


@dataclass(slots=True, kw_only=True)
class _Span:
    """Something with a beginning and an end, in seconds of the recording's clock."""

    start_s: float
    end_s: float | None = None


@dataclass(slots=True, kw_only=True)
class _Step(_Span):
    name: str
    agent: str
    outer: str | None
    fixed_tokens: int | None
    fixed_messages: int | None
    calls: list[_Ask] = field(default_factory=list)
    tools: list[_Tool] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Ask(_Span):
    name: str
    step: _Step
    parts: list[MessagePart]
    usage: Usage = Usage(None, None, None)


@dataclass(slots=True, kw_only=True)
class _Tool(_Span):
    name: str
    step: _Step
    tool: str


class WorkflowRecording:
    """One workflow of a recording.

    Args:
        workflow: its name in the trace.
        type: its kind.
        at_s: when it began.
        origin_s: when the recording began; the trace's times count from there.
        tenant: who runs it.
    """

    def __init__(
        self, workflow: str, type: str, at_s: float, *, origin_s: float = 0.0, tenant: str | None = None
    ) -> None:
        self._workflow = workflow
        self._type = type
        self._tenant = tenant
        self._start_s = at_s
        self._origin_s = origin_s
        self._last_s = at_s
        self._steps: dict[str, _Step] = {}
        self._calls: dict[str, _Ask] = {}
        self._tools: dict[str, _Tool] = {}

    def step_started(
        self,
        at_s: float,
        step: str,
        agent: str,
        outer: str | None,
        *,
        fixed_tokens: int | None = None,
        fixed_messages: int | None = None,
    ) -> None:
        """An agent begins a step, perhaps within another one."""
        self._saw(at_s)
        made = _Step(
            start_s=at_s,
            name=step,
            agent=agent,
            outer=outer if outer in self._steps else None,
            fixed_tokens=fixed_tokens,
            fixed_messages=fixed_messages,
        )
        self._steps[step] = made
        if made.outer is not None:
            self._steps[made.outer].steps.append(made)

    def step_ended(self, at_s: float, step: str) -> None:
        """A step ends."""
        self._end(at_s, self._steps.get(step))

    def tool_started(self, at_s: float, tool_call: str, step: str, tool: str) -> None:
        """A step calls a tool."""
        self._saw(at_s)
        made = _Tool(start_s=at_s, name=f"t{len(self._tools)}", step=self._step(at_s, step), tool=tool)
        self._tools[tool_call] = made
        made.step.tools.append(made)

    def tool_ended(self, at_s: float, tool_call: str) -> None:
        """A tool has answered."""
        self._end(at_s, self._tools.get(tool_call))

    def asked(self, at_s: float, call: str, step: str, parts: Sequence[MessagePart]) -> None:
        """A step sends a prompt. Those without any content are not LLM calls."""
        self._saw(at_s)
        if parts:
            made = _Ask(start_s=at_s, name=f"c{len(self._calls)}", step=self._step(at_s, step), parts=list(parts))
            self._calls[call] = made
            made.step.calls.append(made)

    def answered(self, at_s: float, call: str, usage: Usage) -> None:
        """The answer to a prompt is there."""
        ask = self._calls.get(call)
        self._end(at_s, ask)
        if ask:
            ask.usage = usage

    def events(self, ended_s: float | None = None) -> Iterator[Event]:
        """Events of the workflow, with its end if that was seen."""
        self._find_answers()
        program = _Program(self._workflow, self._origin_s, self._last_s)
        program.run(MAIN_THREAD, [step for step in self._steps.values() if step.outer is None], {}, self._start_s)
        yield WorkflowStart(
            workflow=self._workflow, t=self._start_s - self._origin_s, type=self._type, tenant=self._tenant
        )
        yield from interleave(program.threads)
        if ended_s is not None:
            yield WorkflowEnd(workflow=self._workflow, t=max(0.0, ended_s - self._origin_s))

    def _saw(self, at_s: float) -> None:
        self._last_s = max(self._last_s, at_s)

    def _end(self, at_s: float, span: _Span | None) -> None:
        self._saw(at_s)
        if span is not None and span.end_s is None:
            span.end_s = max(at_s, span.start_s)

    def _step(self, at_s: float, step: str) -> _Step:
        if step not in self._steps:
            self.step_started(at_s, step, "main", None)
        return self._steps[step]

    def _find_answers(self) -> None:
        calls = sorted(self._calls.values(), key=lambda ask: ask.start_s)
        for index, ask in enumerate(calls):
            if ask.usage.answer is not None:
                continue
            known = len(ask.parts)
            for later in calls[index + 1 : index + 1 + LOOKAHEAD]:
                parts = later.parts
                if len(parts) > known and parts[known].role == "assistant" and parts[:known] == ask.parts:
                    ask.usage = ask.usage._replace(answer=parts[known])
                    break


class _Program:
    """The threads of one workflow, as they are put together."""

    def __init__(self, workflow: str, origin_s: float, last_s: float) -> None:
        self.threads: dict[str, list[Timed]] = {}
        self._workflow = workflow
        self._origin_s = origin_s
        self._last_s = last_s
        self._names = Names()
        self._names.unique(MAIN_THREAD)

    def run(
        self, thread: str, things: Sequence[_Ask | _Step], known: Mapping[str, Conversation], begun_s: float
    ) -> None:
        """Fill a thread with calls and steps."""
        _Lane(self, thread, dict(known), begun_s).do(things, ())

    def add(self, thread: str, at_s: float, event: LLMCall | ToolStart | ToolEnd | Spawn | Join) -> None:
        """Append an event to a thread."""
        self.threads.setdefault(thread, []).append(Timed(at_s - self._origin_s, event))

    def spawn(self, thing: _Ask | _Step, known: Mapping[str, Conversation], begun_s: float) -> str:
        """Make a thread for one of several things that overlap; returns its name."""
        agent = thing.agent if isinstance(thing, _Step) else thing.step.agent
        child = self._names.unique(agent)
        self.threads[child] = []
        self.run(child, [thing], known, begun_s)
        return child
