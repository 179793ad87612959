"""What threads did between their events, told so that a replay that waits for the same takes the recorded time.

A replay waits for answers, for threads, for tools, and for what a call says the client did before it. What else went by
(between an answer and a tool, between two tools) is part of the delay of the call after it, wherever that is recorded:
a delay is what remains until the call once a replay at the recorded speed has done all that comes before.

The time of a tool in which calls were made or threads ran is its own part only, since a replay takes the other part as
long as it then takes. Which part that is:

* If an answer or the end of a thread is right before the end of the tool, it is what follows them.
* Else, if the source does not say which tool it was that ran them, it is what is left when they are taken out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvflow.trace.importers.base import clipped, since
from kvflow.trace.importers.threads import Timed
from kvflow.trace.schema import MAIN_THREAD, Join, LLMCall, Spawn, ToolEnd, ToolStart

_Span = tuple[float | None, float | None]


def paced(
    threads: Mapping[str, Sequence[Timed]], start_s: float | None, *, holders_known: bool
) -> dict[str, list[Timed]]:
    """Fill in delays, and leave of every tool's time its own part.

    Args:
        threads: with the times of their events; calls have no delay yet, tools the whole of their time.
        start_s: of the main thread.
        holders_known: whether a thread that a tool has run is always joined right before the end of that tool.

    Returns:
        The threads that are ever spawned.
    """
    pacer = _Pacer(threads, holders_known)
    pacer.walk(MAIN_THREAD, start_s)
    return pacer.paced


@dataclass(slots=True)
class _Walk:
    """A thread under way.

    Attributes:
        due_s: where a replay at the recorded speed would be; None if that is not known.
        waits: calls and threads it has waited for, with their recorded times.
        tools: those that have started: where the replay was then, their recorded start, and how many waits there were.
        waited: how many of its latest events were waits ...
        waited_s: ... and where a replay is when those are over.
        over_s: its latest end that is recorded.
    """

    due_s: float | None
    waits: list[_Span] = field(default_factory=list)
    tools: dict[str, tuple[float | None, float | None, int]] = field(default_factory=dict)
    waited: int = 0
    waited_s: float | None = None
    over_s: float | None = None


class _Pacer:
    def __init__(self, threads: Mapping[str, Sequence[Timed]], holders_known: bool) -> None:
        self.paced: dict[str, list[Timed]] = {}
        self._threads = threads
        self._holders_known = holders_known
        self._spawned_s: dict[str, float | None] = {}
        self._walks: dict[str, _Walk] = {}

    def walk(self, name: str, due_s: float | None) -> None:
        """Go through a thread, and through those it spawns."""
        walk = self._walks[name] = _Walk(due_s)
        done = self.paced[name] = []
        for timed in self._threads.get(name, ()):
            event = timed.event
            match event:
                case LLMCall():
                    event = event.model_copy(update={"delay_s": since(walk.due_s, timed.at_s)})
                    walk.due_s = timed.end_s
                    self._wait(walk, (timed.at_s, timed.end_s), timed.end_s)
                case ToolStart():
                    walk.tools[event.tool_call] = walk.due_s, timed.at_s, len(walk.waits)
                case ToolEnd():
                    event = self._tool_ends(walk, event, timed.at_s)
                case Spawn():
                    self._spawned_s[event.child] = timed.at_s
                    self.walk(event.child, walk.due_s)
                case Join():
                    self._join(walk, event, timed.at_s)
                case _:
                    pass
            if not isinstance(event, LLMCall | Join):
                walk.waited, walk.waited_s = 0, None
            done.append(replace(timed, event=event))

    def _wait(self, walk: _Walk, span: _Span, due_s: float | None) -> None:
        walk.waits.append(span)
        walk.waited += 1
        walk.waited_s = _latest(walk.waited_s, due_s)
        walk.over_s = _latest(walk.over_s, span[1])

    def _join(self, walk: _Walk, event: Join, at_s: float | None) -> None:
        child = self._walks.get(event.child) or _Walk(None)
        over_s = at_s if child.due_s is None else child.due_s
        self._wait(walk, (self._spawned_s.get(event.child), child.over_s), over_s)
        walk.due_s = _latest(walk.due_s, over_s)

    def _tool_ends(self, walk: _Walk, event: ToolEnd, at_s: float | None) -> ToolEnd:
        began_s, start_s, known = walk.tools.get(event.tool_call, (walk.due_s, None, len(walk.waits)))
        seconds, waits = event.seconds, walk.waits[known:]
        if seconds is not None and walk.waited:
            seconds = _after(walk.waits[-walk.waited :], seconds, start_s, at_s)
            began_s = _latest(began_s, walk.waited_s)
        elif seconds is not None and waits and not self._holders_known:
            seconds = clipped(seconds - _taken_s(waits, start_s, at_s))
        walk.over_s = _latest(walk.over_s, at_s)
        ended_s = at_s if seconds is None or began_s is None else began_s + seconds
        walk.due_s = _latest(walk.due_s, ended_s)
        return event.model_copy(update={"seconds": seconds})


def _after(waits: Sequence[_Span], seconds: float, start_s: float | None, end_s: float | None) -> float | None:
    """What a tool took once the last of what it waited for was over; nothing if that is not known."""
    over_s = None
    for _, one_s in waits:
        over_s = _latest(over_s, one_s)
    if over_s is None or start_s is None or waits[-1][1] is None:
        return 0.0
    taken_s = (over_s if end_s is None else min(over_s, end_s)) - start_s
    return clipped(seconds - max(0.0, taken_s))


def _taken_s(waits: Sequence[_Span], start_s: float | None, end_s: float | None) -> float:
    """How long any of these were under way between two times."""
    if start_s is None or end_s is None:
        return 0.0
    taken_s, until_s = 0.0, start_s
    for one_s, other_s in sorted((one, other) for one, other in waits if one is not None and other is not None):
        taken_s += max(0.0, min(other_s, end_s) - max(one_s, until_s))
        until_s = max(until_s, other_s)
    return taken_s


def _latest(one_s: float | None, other_s: float | None) -> float | None:
    if one_s is None or other_s is None:
        return other_s if one_s is None else one_s
    return max(one_s, other_s)
