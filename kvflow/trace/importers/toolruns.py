"""Tool calls of a session, in the order in which they ran, with the sub-agents they spawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from kvflow.trace.importers.base import clipped
from kvflow.trace.importers.sessionrow import Session, ToolCall
from kvflow.trace.importers.threads import Timed
from kvflow.trace.schema import Join, Spawn, ToolEnd, ToolStart

_END, _START, _END_AT_ONCE = range(3)
"""What comes first of things at the same time: a tool that takes no time ends after it has started."""


class ToolRuns:
    """The tool calls of one session."""

    def __init__(self, workflow: str, session: Session) -> None:
        self._workflow = workflow
        self._of_call: dict[int, list[tuple[str, ToolCall]]] = defaultdict(list)
        spawned = {log.spawned_by: name for name, log in session.threads.items() if log.spawned_by}
        self._child: dict[str, str] = {}
        asking = {call.th for call in session.llm_calls}
        for number, tool_call in enumerate(session.tool_calls):
            name = f"t{number}"
            self._of_call[tool_call.call].append((name, tool_call))
            child = spawned.pop(tool_call.id, None) if tool_call.id else None
            if child and child in asking and child != session.llm_calls[tool_call.call].th:
                self._child[name] = child

    @property
    def children(self) -> set[str]:
        """Threads that a tool call spawns."""
        return set(self._child.values())

    def after(self, call: int, agent: str, thread: str) -> Iterator[Timed]:
        """Starts and ends of the tools that an LLM call asked for, by time."""
        tools = self._of_call.get(call, ())
        timed = all(tool_call.t_start is not None and tool_call.t_end is not None for _, tool_call in tools)
        order: list[tuple[float, int, int]] = []
        for number, (_, tool_call) in enumerate(tools):
            start_s = (tool_call.t_start or 0.0) if timed else 0.0
            end_s = (tool_call.t_end or 0.0) if timed else 0.0
            order.append((start_s, _START, number))
            order.append((end_s, _END, number) if end_s > start_s else (start_s, _END_AT_ONCE, number))
        for _, what, number in sorted(order):
            emit = self._start if what == _START else self._end
            yield from emit(*tools[number], agent, thread)

    def _start(self, name: str, tool_call: ToolCall, agent: str, thread: str) -> Iterator[Timed]:
        at_s = tool_call.t_start
        yield Timed(
            at_s,
            ToolStart(
                workflow=self._workflow,
                thread=thread,
                t=clipped(at_s),
                agent=agent,
                tool_call=name,
                tool=tool_call.name or "tool",
                verb=tool_call.verb or None,
            ),
        )
        if child := self._child.get(name):
            yield Timed(at_s, Spawn(workflow=self._workflow, thread=thread, t=clipped(at_s), child=child))

    def _end(self, name: str, tool_call: ToolCall, agent: str, thread: str) -> Iterator[Timed]:
        at_s = tool_call.t_end
        if child := self._child.get(name):
            yield Timed(at_s, Join(workflow=self._workflow, thread=thread, t=clipped(at_s), child=child))
        yield Timed(
            at_s,
            ToolEnd(
                workflow=self._workflow,
                thread=thread,
                t=clipped(at_s),
                tool_call=name,
                seconds=tool_call.took_s,
                error=bool(tool_call.error),
            ),
        )
