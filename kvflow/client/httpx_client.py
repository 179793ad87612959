"""Hints for everybody else who speaks to a server through httpx, or its continuation httpx2.

An httpx event hook adds them to requests whose body is a JSON object and whose path is that of an LLM endpoint. It runs
when the request is complete, so a request with the new body is built, and takes the place of the old one inside the
object that httpx is about to send. Hints are put at the end of the body; the rest of it stays as it is, byte by byte,
and long prompts are not decoded, unless texts in them can be reused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kvflow.client import recorder
from kvflow.client.degraded import degraded
from kvflow.client.hinting import KEY, asking_step, hints_for, may_hint, may_hint_async
from kvflow.client.outbox import outbox
from kvflow.client.scopes import Step
from kvflow.client.segments import wants_reuse
from kvflow.client.server import Server

PATHS = ("/chat/completions", "/completions", "/generate")
_KEY_BYTES = json.dumps(KEY).encode()


class _Done:
    """What an ``AsyncClient`` may wait for, if it is given the hook of the other kind."""

    def __await__(self) -> Iterator[None]:
        return iter(())


class _RequestHook:
    """A hook that hints requests.

    Args:
        installed: whether :func:`instrument_httpx` has put it in, and beside it what hears of answers.
    """

    def __init__(self, *, installed: bool = False) -> None:
        self.installed = installed

    def _record(self, request: Any) -> None:
        if not recorder.recording() or request.method != "POST" or not request.url.path.endswith(PATHS):
            return
        try:
            content = request.content
        except RuntimeError:  # a streamed body
            return
        recorder.asked(content, resends=self.installed)


class HttpxHook(_RequestHook):
    """A request hook for ``httpx.Client``. In an ``AsyncClient`` it works too, and holds up the event loop."""

    def __call__(self, request: Any) -> _Done:
        """Hint a request that is about to be sent."""
        self._record(request)
        try:
            asked = _asked(request)
            if asked and may_hint(*asked):
                _attach(request, *asked)
        except Exception:
            degraded("a request goes without hints")
        return _Done()


class AsyncHttpxHook(_RequestHook):
    """A request hook for ``httpx.AsyncClient``."""

    async def __call__(self, request: Any) -> None:
        """Hint a request that is about to be sent."""
        self._record(request)
        try:
            asked = _asked(request)
            if asked and await may_hint_async(*asked):
                _attach(request, *asked)
        except Exception:
            degraded("a request goes without hints")


class AnswerHook:
    """A response hook for ``httpx.Client`` that records answers; it reads JSON, and leaves streams to the program."""

    def __call__(self, response: Any) -> None:
        """Note an answer."""
        if _is_answer(response):
            response.read()
            recorder.answered(response.json)
        elif response.is_success:
            recorder.answered(None)


class AsyncAnswerHook:
    """The same for ``httpx.AsyncClient``."""

    async def __call__(self, response: Any) -> None:
        """Note an answer."""
        if _is_answer(response):
            await response.aread()
            recorder.answered(response.json)
        elif response.is_success:
            recorder.answered(None)


def httpx_hook(*, is_async: bool = False) -> HttpxHook | AsyncHttpxHook:
    """Make an event hook that hints requests, for a client you build yourself::

        httpx.Client(event_hooks={"request": [kvflow.httpx_hook()]})
        httpx.AsyncClient(event_hooks={"request": [kvflow.httpx_hook(is_async=True)]})

    Args:
        is_async: whether the hook is for an ``AsyncClient``.
    """
    return AsyncHttpxHook() if is_async else HttpxHook()


def is_httpx(client: object) -> bool:
    """Tell whether an object is an httpx client, by what it can do."""
    return hasattr(client, "event_hooks") and hasattr(client, "build_request")


def instrument_httpx(client: Any) -> None:
    """Hint the requests of one client."""
    hooks = client.event_hooks
    if not any(isinstance(hook, _RequestHook) for hook in hooks["request"]):
        hook = (AsyncHttpxHook if hasattr(client, "aclose") else HttpxHook)(installed=True)
        answers = [AsyncAnswerHook() if hasattr(client, "aclose") else AnswerHook()] if recorder.recording() else []
        client.event_hooks = {"request": [*hooks["request"], hook], "response": [*hooks["response"], *answers]}


def uninstrument_httpx(client: Any) -> None:
    """Take :func:`instrument_httpx` back."""
    hooks = client.event_hooks
    kept = [hook for hook in hooks["request"] if not (isinstance(hook, _RequestHook) and hook.installed)]
    answers = [hook for hook in hooks["response"] if not isinstance(hook, AnswerHook | AsyncAnswerHook)]
    client.event_hooks = {"request": kept, "response": answers}


def _is_answer(response: Any) -> bool:
    return (
        recorder.recording()
        and response.is_success
        and response.request.url.path.endswith(PATHS)
        and "json" in response.headers.get("content-type", "")
    )


def _asked(request: Any) -> tuple[Step, Server] | None:
    """Return who asks which server, if the request is one to be hinted."""
    path = request.url.path
    if request.method != "POST" or not path.endswith(PATHS):
        return None
    headers = request.headers
    if "json" not in headers.get("content-type", "") or "content-encoding" in headers:
        return None
    step = asking_step()
    if step is None:
        return None
    prefix = path[: -len(next(end for end in PATHS if path.endswith(end)))]
    root = f"{request.url.scheme}://{request.url.netloc.decode()}{prefix}"
    return step, outbox().server(root, authorization=headers.get("authorization"))


def _attach(request: Any, step: Step, server: Server) -> None:
    try:
        original = request.content
    except RuntimeError:  # a streamed body: it cannot be looked at before it is sent
        return
    content = _with_hints(original.strip(), step, server)
    if content is None:
        return
    headers = request.headers.copy()
    headers["Content-Length"] = str(len(content))
    rebuilt = type(request)(
        request.method, request.url, headers=headers, content=content, extensions=request.extensions
    )
    vars(request).update(vars(rebuilt))


def _with_hints(content: bytes, step: Step, server: Server) -> bytes | None:
    if not (content.startswith(b"{") and content.endswith(b"}")):
        return None
    body = theirs = None
    if _KEY_BYTES in content:
        body = json.loads(content)
        theirs = body.pop(KEY, None)
        content = json.dumps(body).encode()
    elif wants_reuse(step):
        body = json.loads(content)
    hints = hints_for(step, server, theirs, body)
    if hints is None:
        return None
    fields = content.removesuffix(b"}").rstrip()
    comma = b"" if fields == b"{" else b","
    return b"%s%s%s:%s}" % (fields, comma, _KEY_BYTES, json.dumps(hints).encode())
