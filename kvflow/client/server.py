"""One server, as the client sees it: does it speak kvflow, which graphs does it know, and posting facts to it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote

from kvflow.client.answer import Answer
from kvflow.client.degraded import degraded
from kvflow.hints import envelope

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 0.5
SEND_TIMEOUT_S = 5.0
SILENT_S = 60.0
"""How long a server that does not speak kvflow is left alone."""
SLOW_S = 5.0
"""How long until a server that has not answered in time is asked again; twice as long every time, up to `SILENT_S`."""
BROKEN_S = 30.0
"""How long a server is left alone after a request to it failed."""
REDECLARE_S = 60.0
"""How long a declared graph is taken to be known: a server may start anew, or forget it for others."""
MOST_DECLARING = 8
"""Graphs that are declared at a time, each by a thread: a server that is slow does not have them pile up."""
MAX_GRAPHS = 256
"""Declared graphs that are remembered, the latest last; a type may have several."""
KEEPALIVE_S = 2.0
"""Shorter than uvicorn's 5 s, so that we never write to a connection the server is closing."""

_OUR_FAULT = frozenset({400, 413, 422})
_NOT_THERE = frozenset({401, 403, 404, 405})
"""Behind these there is no kvflow, or none for us; other statuses may be better in a moment."""
_BUSY = frozenset({408, 425, 429, *range(500, 600)}) - {501}
"""By these nothing is said: the server starts, or has too much to do, or a gateway has no way to it."""
_NOT_TAKEN = _OUR_FAULT | {404, 405, 414}
"""Of a graph: something on the way does not like its name, say, and facts may well arrive."""
_PROBE = "/kvflow/v1/graphs"
"""A route that the server's HTTP process answers by itself, however busy its schedulers are."""
_LOCKED = frozenset({401, 403})


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDeclaration:
    """The agent step graph of a workflow type, as JSON text."""

    workflow_type: str
    body: str


@lru_cache(maxsize=1024)
def root_of(url: str) -> str:
    """What the spellings of a server's base URL have in common: neither ``/v1`` nor a slash at its end."""
    import httpx  # late, because it is slow

    return str(httpx.URL(url)).rstrip("/").removesuffix("/v1")


def _lists_graphs(response: Any) -> bool:
    """Whether an answer is that of the route; some front ends answer any path with 200 and a page or a document."""
    with suppress(ValueError):
        document = response.json()
        return isinstance(document, dict) and isinstance(document.get("types"), list)
    return False


class Server:
    """A server and what is known about it. All methods may be called from any thread; none raises.

    Args:
        root: its URL without ``/v1`` and without a trailing slash.
        clock: monotonic seconds.
    """

    def __init__(self, root: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.root = root
        self.authorization: str | None = None
        self._clock = clock
        self._lock = threading.RLock()  # reentrant: a finalizer may run while we hold it, and end a step
        self._answer: Answer | None = None
        self._ask_at_s = self._send_at_s = -math.inf
        self._trusted = False
        self._locked_out = False
        self._unanswered = 0
        self._graphs: dict[GraphDeclaration, tuple[Answer, float]] = {}
        self._declaring = 0

        # Imported late, because it is slow, but not in a background thread: a fork would leave it half imported.
        import httpx

        client = partial(
            httpx.Client,
            base_url=root,
            timeout=httpx.Timeout(SEND_TIMEOUT_S, connect=ASK_TIMEOUT_S),
            limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S),
            verify=root.startswith("https"),  # plain http: do not spend 30 ms on loading certificates
        )
        try:
            self._http = client()
        except Exception:  # of what others have set: a proxy of a kind that httpx does not know, or lacks a package for
            degraded("the proxies or certificates that are set cannot be used; servers are asked without them")
            self._http = client(trust_env=False)

    def speaks(self) -> Answer:
        """Tell whether the server speaks kvflow.

        Only the very first question has to be waited for. Later ones are answered at once from what was last known,
        and an old no is looked into in the background.
        """
        with self._lock:
            if self._answer is not None and self._clock() < self._ask_at_s:
                return self._answer
            self._ask_at_s = math.inf
            asked = Answer(self._probe, ASK_TIMEOUT_S)
            if asked.known is not None:  # there was no thread to ask in; one that asks has to wait for our lock
                self._ask_at_s = self._clock() + SLOW_S
            if self._answer is None:
                self._answer = asked
            return self._answer

    def authorize(self, authorization: str) -> None:
        """Send this header from now on; a server that wants one, and was asked without, is asked once more."""
        with self._lock:
            self.authorization = authorization
            if self._locked_out and not self._trusted:
                self._answer, self._ask_at_s = None, -math.inf
            self._locked_out = False

    def trust(self) -> None:
        """Take it for granted that the server speaks kvflow: hints reach it with requests, if nothing else does."""
        self._trusted = True
        self._settle(True)

    def forget(self) -> None:
        """Take nothing for granted: the server is asked when it is needed next."""
        with self._lock:
            self._trusted = False
            self._answer, self._ask_at_s = None, -math.inf
            self._graphs.clear()

    @property
    def takes_facts(self) -> bool:
        """Whether facts may be posted now; for a while after that has failed they may not."""
        return self._clock() >= self._send_at_s

    def declare(self, graph: GraphDeclaration, *, begins: bool = False) -> Answer:
        """Declare a graph unless that was done lately; yes means that the server took it.

        Nobody waits for a graph that was declared before: the answer to the first time stands.

        Args:
            graph: of a workflow.
            begins: whether a run of it begins, and not only asks something. Of runs of one type whose graphs differ,
                the server takes the last graph for all that begin then.
        """
        with self._lock:
            answer, at_s = self._graphs.get(graph, (None, -math.inf))
            if not self.takes_facts:
                return answer or Answer.settled(False)
            if self._declaring >= MOST_DECLARING:
                if begins and answer is not None and not self._is_last(graph):
                    self._declare_again(graph)  # by its next request
                return answer or Answer.settled(False)
            if answer is None or self._clock() >= at_s + REDECLARE_S or (begins and not self._is_last(graph)):
                self._declaring += 1
                asked = Answer(partial(self._declared, graph), ASK_TIMEOUT_S)
                if asked.known is not None:  # there was no thread to ask in
                    self._declaring -= 1
                answer = answer or asked
                self._graphs.pop(graph, None)
                self._graphs[graph] = (answer, self._clock())
                if len(self._graphs) > MAX_GRAPHS:
                    del self._graphs[next(iter(self._graphs))]
            return answer

    def send(self, actions: Sequence[dict[str, Any]]) -> bool:
        """Post facts; returns False if they should be posted again later, when the server takes some."""
        return self._request("POST", "/kvflow/v1/events", json=envelope(actions)) or self.takes_facts

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _is_last(self, graph: GraphDeclaration) -> bool:
        """Tell whether a declared graph is the one its type has at the server."""
        return graph == next(known for known in reversed(self._graphs) if known.workflow_type == graph.workflow_type)

    def _probe(self) -> bool:
        headers = self._headers
        try:
            response = self._http.get(_PROBE, headers=headers, timeout=ASK_TIMEOUT_S)
        except Exception as error:
            return self._unsaid(repr(error), known=False)
        if response.status_code in _BUSY:
            return self._unsaid(f"status {response.status_code}", known=True)
        self._unanswered = 0
        if response.status_code in _LOCKED:
            self._locked_out = not headers
            if headers != self._headers:  # there is another key by now
                return self._probe()
            degraded("%s does not tell whether it speaks kvflow without its API key", self.root, trace=False)
        speaks = response.status_code == 200 and _lists_graphs(response)
        return self._found_out(speaks, again_in_s=math.inf if speaks else SILENT_S)

    def _unsaid(self, problem: str, *, known: bool) -> bool:
        """Ask again later; what was known before may stand meanwhile, if the server is there."""
        degraded("%s did not say whether it speaks kvflow: %s", self.root, problem, trace=False)
        again_in_s = min(SLOW_S * 2 ** min(self._unanswered, 8), SILENT_S)
        self._unanswered += 1
        spoke = self._answer is not None and self._answer.known is True
        return self._found_out(known and spoke, again_in_s=again_in_s)

    def _found_out(self, speaks: bool, *, again_in_s: float) -> bool:
        with self._lock:
            if not self._trusted:  # as it may be by now
                self._settle(speaks, again_in_s=again_in_s)
        return speaks

    def _declared(self, graph: GraphDeclaration) -> bool:
        try:
            return self._put_graph(graph)
        finally:
            with self._lock:
                self._declaring -= 1

    def _put_graph(self, graph: GraphDeclaration) -> bool:
        answer = self.speaks()
        if not answer.wait():
            if answer.known is not False:
                self._declare_again(graph)
            return False
        taken = self._request(
            "PUT",
            f"/kvflow/v1/graphs/{quote(graph.workflow_type, safe='')}",
            refused=_NOT_TAKEN,
            content=graph.body.encode(),
            headers={"Content-Type": "application/json"},
        )
        if taken:
            self._note_taken(graph)
        elif not self.takes_facts:
            self._declare_again(graph)  # as soon as the server takes something again
        return taken

    def _note_taken(self, graph: GraphDeclaration) -> None:
        """Replace an older no."""
        with self._lock:
            answer, at_s = self._graphs.get(graph, (None, 0.0))
            if answer is not None and answer.known is False:
                self._graphs[graph] = (Answer.settled(True), at_s)

    def _declare_again(self, graph: GraphDeclaration) -> None:
        """Have a graph declared by whoever asks next, who does not wait for it."""
        with self._lock:
            if graph in self._graphs:
                self._graphs[graph] = (self._graphs[graph][0], -math.inf)

    def _request(
        self,
        method: str,
        path: str,
        *,
        refused: Collection[int] = _OUR_FAULT,
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> bool:
        import httpx  # late, because it is slow

        gone = False
        try:
            response = self._http.request(method, path, headers={**self._headers, **(headers or {})}, **body)
        except Exception as error:
            problem = repr(error)
            slow = isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout)
            gone = not slow  # who comes after it may be another server
        else:
            if response.is_success:
                return True
            problem = f"status {response.status_code}: {response.text[:200]}"
            if response.status_code in refused:
                degraded("%s%s refuses what kvflow sent: %s", self.root, path, problem, trace=False)
                return False
            gone = response.status_code in _NOT_THERE
        degraded("%s does not take facts for now: %s", self.root, problem, trace=False)
        if gone and not self._trusted:
            self._settle(False, again_in_s=BROKEN_S)
        else:
            self._wait()
        return False

    def _wait(self) -> None:
        """Post nothing for a while, and then ask anew whether this is still a server that speaks kvflow."""
        with self._lock:
            self._send_at_s = self._clock() + BROKEN_S
            if not self._trusted:
                self._ask_at_s = min(self._ask_at_s, self._send_at_s)

    def _settle(self, speaks: bool, *, again_in_s: float = math.inf) -> None:
        with self._lock:
            if self._answer is None or self._answer.known is not speaks:
                logger.info("%s %s kvflow", self.root, "speaks" if speaks else "does not speak")
            self._answer = Answer.settled(speaks)
            self._ask_at_s = self._clock() + again_in_s
            if not speaks:
                self._graphs.clear()  # it may be another server when it comes back

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": self.authorization} if self.authorization else {}
