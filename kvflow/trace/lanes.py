"""Steps, LLM calls and tools with their times, put together as threads of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvflow.trace.importers.base import Names, since
from kvflow.trace.importers.conversation import Conversation, Part
from kvflow.trace.importers.threads import Timed
from kvflow.trace.schema import MAIN_THREAD, Join, LLMCall, Spawn, ThreadEvent, ToolEnd, ToolStart
from kvflow.trace.spans import AskSpan, StepSpan, ToolSpan, Work

_TOOL_START, _TOOL_END, _WORK = range(3)
"""What comes first of things at the same time."""


@dataclass(slots=True, kw_only=True)
class _Lane:
    """A thread, as it is filled.

    Attributes:
        known: conversations that its next prompt may continue, by agent.
        busy_until_s: when what it holds has ended.
    """

    thread: str
    known: dict[str, Conversation]
    busy_until_s: float = float("-inf")
    events: list[Timed] = field(default_factory=list)


class Threads:
    """The threads of one workflow.

    Args:
        counts: tokens of messages by their names, those of the first prompt that was counted; messages that are new are
            added. Prompts share a message only if it has the same tokens in both.

    Attributes:
        events: of each thread, in its order.
    """

    def __init__(self, workflow: str, *, origin_s: float, last_s: float, counts: dict[str, int]) -> None:
        self.events: dict[str, list[Timed]] = {}
        self._workflow = workflow
        self._origin_s = origin_s
        self._last_s = last_s
        self._counts = counts
        self._names = Names()
        self._main = self._lane(MAIN_THREAD, {})

    def run(self, steps: Sequence[StepSpan]) -> None:
        """Fill the main thread with the outermost steps, and others with what runs beside it."""
        agent = steps[0].agent if steps else ""
        self._do(self._main, agent, [step for step in steps if step.is_busy], ())

    def _lane(self, thread: str, known: dict[str, Conversation]) -> _Lane:
        lane = _Lane(thread=self._names.unique(thread), known=known)
        self.events[lane.thread] = lane.events
        return lane

    def _do(self, lane: _Lane, agent: str, things: Sequence[Work], tools: Sequence[ToolSpan]) -> None:
        due: list[tuple[float, int, int, list[Work] | ToolSpan]] = []
        for group in self._side_by_side(things):
            due.append((group[0].start_s, _WORK, len(due), group))
        for tool in tools:
            due.append((tool.start_s, _TOOL_START, len(due), tool))
            due.append((self._last_s if tool.end_s is None else tool.end_s, _TOOL_END, len(due), tool))
        for at_s, what, _, thing in sorted(due, key=lambda each: each[:3]):
            if isinstance(thing, ToolSpan):
                self._tool(lane, agent, thing, starts=what == _TOOL_START)
            elif len(thing) > 1:
                self._spawn(lane, thing, at_s)
            else:
                self._work(lane, thing[0])

    def _side_by_side(self, things: Sequence[Work]) -> list[list[Work]]:
        """Group what overlaps, directly or through others."""
        groups: list[list[Work]] = []
        busy_until_s = float("-inf")
        for thing in sorted(things, key=lambda each: each.start_s):
            if groups and thing.start_s < busy_until_s:
                groups[-1].append(thing)
            else:
                groups.append([thing])
            busy_until_s = max(busy_until_s, self._end_s(thing))
        return groups

    def _end_s(self, thing: Work) -> float:
        if thing.end_s is not None:
            return thing.end_s
        return thing.start_s if isinstance(thing, AskSpan) else self._last_s

    def _work(self, lane: _Lane, thing: Work) -> None:
        if isinstance(thing, AskSpan):
            self._ask(lane, thing)
        else:
            self._do(lane, thing.agent, [*thing.calls, *(step for step in thing.steps if step.is_busy)], thing.tools)

    def _spawn(self, lane: _Lane, things: Sequence[Work], at_s: float) -> None:
        children: list[_Lane] = []
        for thing in things:
            child = self._free(children, thing, lane)
            if child is None:
                child = self._lane(thing.agent, dict(lane.known))
                children.append(child)
                spawn = Spawn(workflow=self._workflow, thread=lane.thread, t=self._t(at_s), child=child.thread)
                self._add(lane, at_s, spawn)
            self._work(child, thing)
            child.busy_until_s = max(child.busy_until_s, self._end_s(thing))
        end_s = max(child.busy_until_s for child in children)
        for child in children:
            join = Join(workflow=self._workflow, thread=lane.thread, t=self._t(end_s), child=child.thread)
            self._add(lane, end_s, join)

    def _free(self, lanes: Sequence[_Lane], thing: Work, outer: _Lane) -> _Lane | None:
        """Find the lane that goes on with a thing; None if all are busy.

        It is the one whose conversation the thing's first prompt continues, the longest if there are several, and else,
        or if two are equally long, the one that has ended last.
        """
        free = [lane for lane in lanes if lane.busy_until_s <= thing.start_s]
        ask = _first_ask(thing)
        keys = [part.name for part in ask.parts] if ask else []
        continued = [_continued_tokens(keys, lane, outer) for lane in free]
        most = max(continued, default=0)
        if most and continued.count(most) == 1:
            return free[continued.index(most)]
        return max(free, key=lambda lane: lane.busy_until_s, default=None)

    def _tool(self, lane: _Lane, agent: str, tool: ToolSpan, *, starts: bool) -> None:
        if starts:
            at_s: float = tool.start_s
            event: ThreadEvent = ToolStart(
                workflow=self._workflow,
                thread=lane.thread,
                t=self._t(at_s),
                agent=agent,
                tool_call=tool.name,
                tool=tool.tool,
                verb=tool.verb,
            )
        else:
            at_s = self._last_s if tool.end_s is None else tool.end_s
            event = ToolEnd(
                workflow=self._workflow,
                thread=lane.thread,
                t=self._t(at_s),
                tool_call=tool.name,
                seconds=since(tool.start_s, tool.end_s),
            )
        self._add(lane, at_s, event)

    def _ask(self, lane: _Lane, ask: AskSpan) -> None:
        conversation = self._continued(lane, ask)
        prompt = conversation.ask(ask.name, ask.usage.prompt_tokens)
        if ask.usage.prompt_tokens:
            for part in conversation.messages():
                self._counts.setdefault(part.name, part.tokens or 1)
        fixed_tokens = ask.fixed_tokens
        if fixed_tokens is None and ask.fixed_messages:
            fixed_tokens = conversation.head_tokens(ask.fixed_messages + (ask.parts[0].role == "tools"))
        output, tokens = f"{self._workflow}/{ask.name}", ask.usage.output_tokens or 0
        if (answer := ask.usage.answer) is not None:
            tokens = answer.tokens if ask.usage.output_tokens is None else tokens
            output = conversation.answer(Part(key=answer.name, name=answer.name, estimate=answer.tokens, tokens=tokens))
        event = LLMCall(
            workflow=self._workflow,
            thread=lane.thread,
            t=self._t(ask.start_s),
            agent=ask.agent,
            call=ask.name,
            prompt=prompt,
            output=output,
            output_tokens=tokens,
            fixed_tokens=None if fixed_tokens is None else min(fixed_tokens, prompt.tokens),
            llm_s=since(ask.start_s, ask.end_s),
        )
        self._add(lane, ask.start_s, event, ask.end_s)
        lane.known[ask.agent] = conversation

    def _continued(self, lane: _Lane, ask: AskSpan) -> Conversation:
        keys = [part.name for part in ask.parts]
        best, shared = None, 0
        own = lane.known.get(ask.agent)
        for known in ([own] if own else []) + list(lane.known.values()):
            tokens = known.shared_tokens(keys)
            if tokens > shared:
                best, shared = known, tokens
        conversation = best.copy() if best else Conversation(f"{self._workflow}/{ask.agent}")
        conversation.replace(
            [
                Part(key=part.name, name=part.name, estimate=part.tokens, tokens=self._counts.get(part.name))
                for part in ask.parts
            ]
        )
        return conversation

    def _add(self, lane: _Lane, at_s: float, event: ThreadEvent, end_s: float | None = None) -> None:
        lane.events.append(Timed(at_s, event, end_s))

    def _t(self, at_s: float) -> float | None:
        return since(self._origin_s, at_s)


def _first_ask(thing: Work) -> AskSpan | None:
    if isinstance(thing, AskSpan):
        return thing
    asks = [*thing.calls, *(ask for step in thing.steps if (ask := _first_ask(step)))]
    return min(asks, key=lambda ask: ask.start_s, default=None)


def _continued_tokens(keys: Sequence[str], lane: _Lane, outer: _Lane) -> int:
    """Tokens of the longest last context of an agent of a lane that a prompt of these messages begins with; 0 for none.

    What the lane has from outside is left out, and so is a context that is shared in part: all calls of an agent have
    the beginning of one in common.
    """
    own = (known for agent, known in lane.known.items() if known is not outer.known.get(agent))
    return max((known.context_tokens for known in own if known.shared_tokens(keys) == known.context_tokens), default=0)
