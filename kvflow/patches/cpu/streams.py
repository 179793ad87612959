"""Copy streams for a device module that has none.

This module offers what ``torch.cuda`` offers to SGLang's hierarchical cache (`Stream`, `Event`, `stream`,
`current_stream`), and stands in for ``torch.cpu`` there, whose streams and events do nothing. A `Stream` is a worker
thread with an ordered queue; inside ``with stream(s)`` copies and event records are queued on it. Everything else on
the CPU engine computes at once, on the thread that asks, so foreign streams and events count as done, and waiting
outside a copy stream blocks the caller: that is the load-back stall, and it is counted.
"""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from kvflow.patches.cpu.link import Direction, Link, LinkSettings, LinkStatistics
from kvflow.patches.cpu.marks import Mark

links: dict[Direction, Link] = {direction: Link() for direction in Direction}
"""The two directions of this process; hold and release them in tests to delay acknowledgements."""

EXIT_GRACE_S = 1.0

_current = threading.local()
_streams: weakref.WeakSet[Stream] = weakref.WeakSet()


def configure(settings: LinkSettings) -> None:
    """Set the speed of both directions; counters and queued work stay."""
    for link in links.values():
        link.settings = settings


def link_statistics() -> LinkStatistics:
    """Snapshot what both directions did so far in this process; safe from any thread."""
    return LinkStatistics(**{direction.value: link.statistics() for direction, link in links.items()})


class Stream:
    """An ordered queue of copies and marks with a worker thread; arguments of other device modules are ignored.

    A failed copy is kept and raised to whoever asks for a mark behind it; later copies are skipped.
    """

    def __init__(self, *_args: object, **_options: object) -> None:
        self.link = Link()
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._worker: threading.Thread | None = None
        self._opens_submission = False
        self._ending = False
        _streams.add(self)

    def assign(self, direction: Direction) -> None:
        """Put the stream on one direction of the process's link; before that it is unthrottled and uncounted."""
        self.link = links[direction]

    def begin_submission(self) -> None:
        """Make the next copy pay the latency of the link."""
        self._opens_submission = True

    def copy(self, copy: Callable[[], int]) -> None:
        """Queue a copy; it returns how many bytes it moved."""
        opens, self._opens_submission = self._opens_submission, False
        occupy = partial(self.link.occupy, copy, submitted_s=self.link.clock(), opens_submission=opens)
        self._enqueue(partial(self._unless_failed, occupy))

    def mark(self) -> Mark:
        """Queue a mark."""
        mark = Mark(self.link)
        self._enqueue(lambda: mark.reach(self._failure))
        return mark

    def wait_event(self, event: Any) -> None:
        """Let work queued from here on start only when `event` is done; foreign events are."""
        mark = event.point if isinstance(event, Event) else None
        if mark is not None and not mark.is_reached():
            self._enqueue(partial(self._unless_failed, partial(self._wait_for, mark)))

    def wait_stream(self, stream: Any) -> None:
        """Let work queued from here on start only after everything queued on `stream`; foreign streams are done."""
        if isinstance(stream, Stream):
            self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event behind everything queued so far."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Block until all queued work is done."""
        self.mark().wait()

    def end(self) -> None:
        """Drop queued work and let the worker end after the copy it is at; for interpreter exit only."""
        if self._worker is None:
            return
        self._ending = True
        self.link.release()
        self._enqueue(lambda: None)
        self._worker.join(EXIT_GRACE_S)

    def _wait_for(self, mark: Mark) -> None:
        mark.wait()
        self.link.not_before_now()

    def _unless_failed(self, operation: Callable[[], object]) -> None:
        if self._failure is None:
            operation()

    def _enqueue(self, operation: Callable[[], None]) -> None:
        self._queue.put(operation)
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="kvflow-copy-stream", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        # One thread moves bytes, as one copy engine does; it must not compete with the model for all cores.
        torch.set_num_threads(1)
        while not self._ending:
            operation = self._queue.get()
            self.link.pass_gate()
            try:
                operation()
            except BaseException as failure:  # raised on the scheduler thread, at the next mark
                self._failure = failure


@atexit.register
def _end_streams() -> None:
    """End workers before the interpreter does: one inside a tensor operation then would crash the process."""
    for stream in list(_streams):
        stream.end()


class Event:
    """A point in the work of a stream; never recorded means done, as on CUDA."""

    def __init__(self, *_args: object, **_options: object) -> None:
        self.point: Mark | None = None

    def record(self, stream: Any = None) -> None:
        """Record on `stream`, by default the current one; foreign streams have done all their work."""
        stream = current_stream() if stream is None else stream
        if isinstance(stream, Stream):
            self.point = stream.mark()
        else:
            self.point = Mark()
            self.point.reach()

    def query(self) -> bool:
        """Tell whether the point was reached; raises EngineError if the work before it failed."""
        return self.point is None or self.point.is_reached()

    def synchronize(self) -> None:
        """Block until the point is reached, and count the time as a stall of the link it waits for."""
        if self.point is not None:
            waited_s = self.point.wait()
            if self.point.link is not None:
                self.point.link.stalled_s += waited_s

    def wait(self, stream: Any = None) -> None:
        """Make `stream` wait; outside copy streams that is the caller."""
        stream = current_stream() if stream is None else stream
        if isinstance(stream, Stream):
            stream.wait_event(self)
        else:
            self.synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds between two reached points."""
        if self.point is None or end_event.point is None or not (self.query() and end_event.query()):
            raise RuntimeError("both events must be recorded and done before elapsed_time()")
        return (end_event.point.reached_s - self.point.reached_s) * 1e3


class CallingThread:
    """The stream outside all copy streams: work is done at once by the thread that asks for it."""

    def copy(self, copy: Callable[[], int]) -> None:
        """Copy now."""
        copy()

    def wait_event(self, event: Any) -> None:
        """Block until `event` is done."""
        event.synchronize()

    def wait_stream(self, stream: Any) -> None:
        """Block until `stream` is done."""
        if isinstance(stream, Stream):
            stream.record_event().synchronize()

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event that is done."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Return at once: nothing is ever pending."""


_calling_thread = CallingThread()


def current_stream(device: object = None) -> Stream | CallingThread:
    """Give the copy stream this thread is queueing on, or the calling thread itself."""
    return getattr(_current, "stream", None) or _calling_thread


@contextmanager
def stream(target: Any) -> Iterator[None]:
    """Queue copies and records of this thread on `target`; a foreign stream or None changes nothing."""
    previous = getattr(_current, "stream", None)
    if isinstance(target, Stream):
        _current.stream = target
        target.begin_submission()
    try:
        yield
    finally:
        _current.stream = previous
