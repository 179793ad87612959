"""What a program was seen doing, turned into the events of a trace.

Facts are told in the order in which they happened: steps of agents begin and end, tools do, LLM calls are sent and
answered. When the workflow is over, its program is read off the times:

* What a step does runs in the thread of the step around it, one thing after another.
* LLM calls and steps that overlap within a step, directly or through others, ran side by side, in threads that are
  spawned when the first of them began and joined when the last one ended. Each goes on with a thread of them that is
  free by then: the one whose conversation its first prompt continues, the longest such, and if that is not clear the
  one that ended last. If none is free it begins another thread; that this began later than the first is its delay.
* LLM calls and steps that ran while a tool did are taken for the tool's: its own time is the rest of it. Whatever else
  went by between events is the delay of the next call (see :mod:`pauses`).
* A message has the tokens of the first prompt of the recording that was counted, so that prompts share it.
* A prompt continues the call with which it shares most, of its own thread or of those around it before it was spawned.
* An answer that nobody saw (a stream) is the assistant's message that follows the same messages in a later prompt; if
  there is none, it has no tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvflow.trace.importers.base import since
from kvflow.trace.importers.pauses import paced
from kvflow.trace.importers.threads import interleave
from kvflow.trace.lanes import Threads
from kvflow.trace.messages import MessagePart, Usage
from kvflow.trace.schema import Event, WorkflowEnd, WorkflowStart
from kvflow.trace.spans import AskSpan, Span, StepSpan, ToolSpan

LOOKAHEAD = 64
"""Later prompts in which an unseen answer is looked for."""


class WorkflowRecording:
    """One workflow of a recording. All times are seconds of one clock.

    Args:
        workflow: its name in the trace.
        type: its kind.
        at_s: when it began.
        origin_s: when the recording began; the trace's times count from there.
        tenant: who runs it.
        counts: tokens of messages that other workflows of the recording have shown; those of this one are added.
    """

    def __init__(
        self,
        workflow: str,
        type: str,
        at_s: float,
        *,
        origin_s: float = 0.0,
        tenant: str | None = None,
        counts: dict[str, int] | None = None,
    ) -> None:
        self._workflow = workflow
        self._type = type
        self._tenant = tenant
        self._start_s = self._last_s = at_s
        self._origin_s = origin_s
        self._counts = {} if counts is None else counts
        self._steps: dict[str, StepSpan] = {}
        self._calls: dict[str, AskSpan] = {}
        self._tools: dict[str, ToolSpan] = {}

    def step_started(
        self,
        at_s: float,
        step: str,
        agent: str,
        outer: str | None = None,
        *,
        fixed_tokens: int | None = None,
        fixed_messages: int | None = None,
    ) -> None:
        """An agent begins a step, perhaps within another one."""
        self._saw(at_s)
        made = StepSpan(
            name=step,
            start_s=at_s,
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

    def tool_started(self, at_s: float, tool_call: str, step: str, tool: str, verb: str | None = None) -> None:
        """A step calls a tool."""
        self._saw(at_s)
        made = self._tools[tool_call] = ToolSpan(name=f"t{len(self._tools)}", start_s=at_s, tool=tool, verb=verb)
        self._step(at_s, step).tools.append(made)

    def tool_ended(self, at_s: float, tool_call: str) -> None:
        """A tool has answered."""
        self._end(at_s, self._tools.get(tool_call))

    def asked(self, at_s: float, call: str, step: str, parts: Sequence[MessagePart]) -> None:
        """A step sends a prompt; one without content is no LLM call."""
        self._saw(at_s)
        if not parts:
            return
        asking = self._step(at_s, step)
        made = self._calls[call] = AskSpan(
            name=f"c{len(self._calls)}",
            start_s=at_s,
            agent=asking.agent,
            parts=list(parts),
            fixed_tokens=asking.fixed_tokens,
            fixed_messages=asking.fixed_messages,
        )
        asking.calls.append(made)

    def answered(self, at_s: float, call: str, usage: Usage) -> None:
        """The answer to a prompt is there."""
        ask = self._calls.get(call)
        if ask is not None:
            self._end(at_s, ask)
            ask.usage = usage

    def events(self, ended_s: float | None = None) -> Iterator[Event]:
        """Events of the workflow, with its end if that was seen."""
        self._find_answers()
        threads = Threads(self._workflow, origin_s=self._origin_s, last_s=self._last_s, counts=self._counts)
        threads.run([step for step in self._steps.values() if step.outer is None])
        start_s = since(self._origin_s, self._start_s)
        yield WorkflowStart(workflow=self._workflow, t=start_s, type=self._type, tenant=self._tenant)
        yield from interleave(paced(threads.events, self._start_s, holders_known=False))
        if ended_s is not None:
            yield WorkflowEnd(workflow=self._workflow, t=since(self._origin_s, ended_s))

    def _saw(self, at_s: float) -> None:
        self._last_s = max(self._last_s, at_s)

    def _end(self, at_s: float, span: Span | None) -> None:
        self._saw(at_s)
        if span is not None and span.end_s is None:
            span.end_s = max(at_s, span.start_s)

    def _step(self, at_s: float, step: str) -> StepSpan:
        if step not in self._steps:
            self.step_started(at_s, step, "main")
        return self._steps[step]

    def _find_answers(self) -> None:
        calls = sorted(self._calls.values(), key=lambda ask: ask.start_s)
        for index, ask in enumerate(calls):
            known = len(ask.parts)
            for later in () if ask.usage.answer else calls[index + 1 : index + 1 + LOOKAHEAD]:
                parts = later.parts
                if len(parts) > known and parts[known].role == "assistant" and parts[:known] == ask.parts:
                    ask.usage = ask.usage._replace(answer=parts[known])
                    break
