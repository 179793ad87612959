"""Facts on their way to the servers: a queue for each server, and a thread that empties it.

Recording a fact costs the program an append. The thread lingers a moment before it posts what has gathered, for two
reasons: facts come in bunches, and the workflow's next LLM request usually follows within milliseconds and takes them
along (:meth:`Outbox.take`), so that the server knows them before it plans that request.

A workflow's facts reach a server in the order in which they were recorded, save that a request may overtake the batch
that is being posted in that moment. A fact that rides on a request shares its fate, which is why it rides with its own
workflow only: what that workflow does next makes good for it, and nobody's end is lost with somebody else's request.
What nothing makes good for, feedback, is posted.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kvflow.client.degraded import degraded
from kvflow.client.server import Server, root_of
from kvflow.client.settings import ClientSettings, HintMode, from_environment
from kvflow.hints.models import FEEDBACK_TYPE, MAX_ACTIONS, MAX_ENVELOPE_BYTES

MAX_PENDING = 1024
LINGER_S = 0.2
"""How long facts wait for a request to take them along: longer than quick tools take, because a post costs both sides
milliseconds and a fact that rides a fraction of one; shorter than the pauses for which it matters who waits."""
EXIT_FLUSH_S = 0.5
_POLL_S = 1.0
"""How often servers that take no facts for now are looked at again."""
_ALONE = frozenset({FEEDBACK_TYPE})
"""Facts that do not ride: nothing that the workflow does next would make good for them."""
_ENVELOPE_BYTES = 256
"""Room for what an envelope holds besides its actions."""

Action = dict[str, Any]


class Outbox:
    """The servers of this process, and the facts they have not been told yet. Safe to use from any thread.

    Attributes:
        settings: replaced as a whole by :func:`configure`.
        dropped_facts: facts lost because a queue was full.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.dropped_facts = 0
        self._servers: dict[str, Server] = {}
        self._pending: dict[Server, deque[Action]] = {}
        self._changed = threading.Condition()
        self._posting: set[Server] = set()
        self._flushing = 0
        self._closed = False
        self._threads: dict[Server, threading.Thread] = {}
        self.settings = settings
        self.use(settings)

    def use(self, settings: ClientSettings) -> None:
        """Go by these settings from now on."""
        before, self.settings = self.settings, settings
        if settings.url:
            self.server(settings.url, api_key=settings.api_key)
        if "always" not in {before.hints, settings.hints} or before.hints == settings.hints:
            return
        for server in list(self._servers.values()):
            if self._trusting:
                server.trust()
            else:
                server.forget()

    def server(self, url: str, *, api_key: str | None = None, authorization: str | None = None) -> Server:
        """Return the server behind a base URL; from the first call on it hears every fact.

        Args:
            url: with or without ``/v1``.
            api_key: goes to this server as bearer token, from now on.
            authorization: of a client; the same, as a whole header, unless a key has been set for this server.
        """
        root = root_of(url)
        server = self._servers.get(root) or self._add(root)
        if api_key:
            authorization = f"Bearer {api_key}"
        elif self.settings.api_key and self.settings.url and root == root_of(self.settings.url):
            authorization = f"Bearer {self.settings.api_key}"  # clients make one up where it is not theirs that counts
        if authorization and authorization != server.authorization:
            server.authorize(authorization)
        return server

    def listeners(self) -> list[Server]:
        """List the servers that speak kvflow, or may do so for all we know. Never waits."""
        if not self._servers or self.settings.hints == "off":
            return []
        return [server for server in list(self._servers.values()) if server.speaks().known is not False]

    def put(self, action: Action, listeners: Sequence[Server]) -> None:
        """Queue a fact for some servers; the oldest one makes room when a queue is full."""
        full: list[Server] = []
        with self._changed:
            for server in listeners:
                queue = self._pending[server]
                if len(queue) == queue.maxlen:
                    full.append(server)
                queue.append(action)
                if len(queue) in (1, MAX_ACTIONS):
                    self._changed.notify_all()
            self.dropped_facts += len(full)
            for server in listeners:
                self._start_thread(server)
        for server in full:
            degraded("facts are lost: %s takes them more slowly than they come", server.root, trace=False)

    def take(self, server: Server, *, most: int, room_bytes: int, workflow_id: str | None = None) -> list[Action]:
        """Take the oldest facts a server has not been told yet, to be sent to it at once.

        Args:
            server: where they go.
            most: how many there may be.
            room_bytes: how long they may be as JSON.
            workflow_id: take the facts of this workflow only.
        """
        with self._changed:
            queue, taken = self._pending[server], []
            for action in list(queue):
                riding = workflow_id == action["payload"]["workflow_id"] and action["action_type"] not in _ALONE
                if workflow_id is None or riding:
                    room_bytes -= len(json.dumps(action)) + 2
                    if room_bytes < 0 or len(taken) == most:
                        break
                    taken.append(action)
            for action in taken:
                queue.remove(action)
            return taken

    def flush(self, timeout_s: float) -> bool:
        """Wait until every fact is sent or given up; tells whether that happened in time.

        Servers that take no facts for now are not waited for.
        """
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: not (self._posting or self._sendable), timeout_s)
                return not (self._posting or any(self._pending.values()))
            finally:
                self._flushing -= 1

    def close(self) -> None:
        """Stop the threads and close the connections; unsent facts are lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads.values():
            thread.join()
        for server in self._servers.values():
            server.close()

    def reborn(self) -> Outbox:
        """Make the outbox of a forked child: the same servers, none of the threads, locks, connections and facts."""
        child = Outbox(self.settings)
        for root, server in self._servers.items():
            child.server(root, authorization=server.authorization)
        return child

    @property
    def _sendable(self) -> list[Server]:
        """Servers for which there are facts that can be posted now."""
        return [server for server, queue in self._pending.items() if queue and server.takes_facts]

    @property
    def _trusting(self) -> bool:
        """Whether servers are taken to speak kvflow, unasked."""
        return self.settings.hints == "always"

    def _add(self, root: str) -> Server:
        with self._changed:
            server = self._servers.get(root)
            if server is None:
                server = Server(root)
                if self._trusting:
                    server.trust()
                self._pending[server] = deque(maxlen=MAX_PENDING)
                self._servers[root] = server
            return server

    def _start_thread(self, server: Server) -> None:
        if server not in self._threads and not self._closed:
            thread = threading.Thread(target=self._run, args=(server,), name="kvflow-outbox", daemon=True)
            thread.start()
            self._threads[server] = thread  # only now: there may be no room for one more, and the next fact tries again
            if len(self._threads) == 1:
                _flush_when_a_child_leaves()

    def _run(self, server: Server) -> None:
        """Post what there is for a server. Each has a thread: one that is slow to answer holds up no other."""
        queue = self._pending[server]

        def enough() -> bool:
            return self._closed or self._flushing > 0 or (len(queue) >= MAX_ACTIONS and server.takes_facts)

        while not self._closed:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or queue)
                self._changed.wait_for(enough, LINGER_S)
                if queue and not server.takes_facts:
                    self._changed.wait_for(lambda: self._closed or server.takes_facts, _POLL_S)
                ready = bool(queue) and server.takes_facts
            if ready:
                with suppress(Exception):  # a program's own logging may raise some, and there is no other thread
                    self._post_batch(server)

    def _post_batch(self, server: Server) -> None:
        answer = server.speaks()
        speaks = answer.wait()
        with self._changed:
            if answer.known is None:  # it may still say yes
                self._changed.wait(_POLL_S)
                return
            self._posting.add(server)
            batch = self.take(server, most=MAX_ACTIONS, room_bytes=MAX_ENVELOPE_BYTES - _ENVELOPE_BYTES)
        try:
            if not speaks or not batch or server.send(batch):
                batch = []
        finally:
            with self._changed:
                self._posting.discard(server)
                self._put_back(server, batch)
                self._changed.notify_all()

    def _put_back(self, server: Server, batch: list[Action]) -> None:
        """Facts that could not be posted come before those that have come since, as far as there is room."""
        queue = self._pending[server]
        left = batch[max(0, len(batch) + len(queue) - MAX_PENDING) :]
        self.dropped_facts += len(batch) - len(left)
        queue.extendleft(reversed(left))


_outbox: Outbox | None = None
_parents: Outbox | None = None
_making = threading.RLock()


def outbox() -> Outbox:
    """Return this process' outbox; the first call reads the environment, or in a forked child asks the parent's."""
    global _outbox
    if _outbox is None:
        with _making:
            if _outbox is None:
                _outbox = _parents.reborn() if _parents else Outbox(from_environment())
    return _outbox


def configure(*, url: str | None = None, api_key: str | None = None, hints: HintMode | None = None) -> None:
    """Set what ``KVFLOW_URL``, ``KVFLOW_API_KEY`` and ``KVFLOW_HINTS`` set; what is not given stays as it is.

    Args:
        url: root of a server that hears every fact, besides those of the instrumented clients.
        api_key: sent to ``url`` as bearer token, and nowhere else.
        hints: ``auto`` hints servers known to speak kvflow, ``always`` hints every server, ``off`` none.

    Raises:
        ConfigError: ``hints`` is none of the three, or ``url`` no URL of a server.
    """
    given = {"url": url, "api_key": api_key, "hints": hints}
    box = outbox()
    box.use(replace(box.settings, **{name: value for name, value in given.items() if value is not None}))


def flush(timeout_s: float = 2.0) -> bool:
    """Wait until the servers have been told everything so far; tells whether that happened in time."""
    return outbox().flush(timeout_s)


def _forget() -> None:
    """Leave the parent's outbox behind, in a forked child."""
    global _outbox, _parents, _making
    _outbox, _parents, _making = None, _outbox or _parents, threading.RLock()


def _flush_at_exit() -> None:
    if _outbox is not None:
        _outbox.flush(EXIT_FLUSH_S)


def _flush_when_a_child_leaves() -> None:
    """Have a child of multiprocessing flush: it leaves by ``os._exit``, without running what atexit has.

    It can be told only now: a child that imports the program's main module does so before it knows that it is one.
    """
    if "multiprocessing.util" in sys.modules:  # as in every such child; importing it takes as long as much of kvflow
        from multiprocessing import parent_process, util

        if parent_process() is not None:
            util.Finalize(None, _flush_at_exit, exitpriority=100)


atexit.register(_flush_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
