"""Threads of a workflow, merged into one order of events."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvflow.trace.schema import MAIN_THREAD, Join, Spawn, ThreadEvent


@dataclass(frozen=True, slots=True)
class Timed:
    """An event, and when it happened as far as that is known, in seconds since any start.

    Attributes:
        end_s: of a call, when its answer was there.
    """

    at_s: float | None
    event: ThreadEvent
    end_s: float | None = None


def interleave(threads: Mapping[str, Sequence[Timed]]) -> Iterator[ThreadEvent]:
    """Merge threads by time.

    Every thread keeps its own order, none runs before it is spawned, and a join comes after the last event of the
    thread it waits for, whatever the times say. A thread that is never spawned is left out.
    """
    queue: list[tuple[float, int, str]] = [(0.0, 0, MAIN_THREAD)]
    position = dict.fromkeys(threads, 0)
    waiting: dict[str, list[tuple[float, str]]] = {}
    finished: set[str] = set()
    order = 0
    while queue:
        now_s, _, thread = heapq.heappop(queue)
        events = threads.get(thread, ())
        if position.get(thread, 0) == len(events):
            finished.add(thread)
            woken = waiting.pop(thread, [])
        else:
            timed = events[position[thread]]
            if isinstance(timed.event, Join) and timed.event.child not in finished:
                waiting.setdefault(timed.event.child, []).append((now_s, thread))
                continue
            yield timed.event
            position[thread] += 1
            woken = [(now_s, thread)]
            if isinstance(timed.event, Spawn):
                woken.append((now_s, timed.event.child))
        for since_s, each in woken:
            order += 1
            heapq.heappush(queue, (max(since_s, now_s, _next_at_s(threads, position, each)), order, each))


def _next_at_s(threads: Mapping[str, Sequence[Timed]], position: Mapping[str, int], thread: str) -> float:
    events = threads.get(thread, ())
    index = position.get(thread, 0)
    return (events[index].at_s or 0.0) if index < len(events) else 0.0
