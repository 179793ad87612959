"""Hints for the OpenAI SDK's clients, sync and async, 2.x and 3.x.

The one touching point is ``_prepare_options`` of the client object, the SDK's own "hook for mutating the given
options": in both versions called once per attempt, with a copy of the options that only this attempt uses. It is looked
up on the client for every request, so resources made before instrumenting, streams, ``parse`` and the
``with_raw_response`` family all pass through it. ``post`` would not do: resources keep a reference to it from when they
were made. The HTTP client below would not do either: several SDK clients may share it, and it sees bytes, which are
signed already in some set-ups.

``copy``, alias ``with_options``, is wrapped too, because it makes a new client that knows nothing of this one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from kvflow.client import recorder
from kvflow.client.degraded import degraded
from kvflow.client.hinting import KEY, asking_step, hints_for, may_hint, may_hint_async
from kvflow.client.outbox import outbox
from kvflow.client.scopes import Step
from kvflow.client.server import Server

PATHS = ("/chat/completions", "/completions")
_WRAPPED = ("_prepare_options", "copy", "with_options")
_ANSWERED = "_process_response"
"""Called with every response; wrapped only while a recording is made."""
_MARK = "_kvflow_instrumented"


def is_openai(client: object) -> bool:
    """Tell whether an object is a client of the OpenAI SDK, by what it can do."""
    return hasattr(client, "base_url") and all(hasattr(client, name) for name in _WRAPPED)


def instrument_openai(client: Any) -> None:
    """Hint the requests of one client and of those derived from it."""
    if _MARK in vars(client):
        return
    _server_of(client)
    before = {name: value for name, value in vars(client).items() if name in (*_WRAPPED, _ANSWERED)}
    prepare = _prepare_async if inspect.iscoroutinefunction(client._prepare_options) else _prepare
    client._prepare_options = functools.partial(prepare, client, client._prepare_options)
    client.copy = client.with_options = _deriving(client.copy)
    if recorder.recording() and hasattr(client, _ANSWERED):
        setattr(client, _ANSWERED, functools.partial(_answered, getattr(client, _ANSWERED)))
    setattr(client, _MARK, before)


def uninstrument_openai(client: Any) -> None:
    """Take :func:`instrument_openai` back; derived clients stay as they are."""
    before = vars(client).pop(_MARK, None)
    if before is not None:
        for name in (*_WRAPPED, _ANSWERED):
            vars(client).pop(name, None)
        vars(client).update(before)


def _prepare(client: Any, original: Any, options: Any) -> Any:
    options = original(options)
    _record(options)
    try:
        asked = _asked(client, options)
        if asked and may_hint(*asked):
            _attach(options, *asked)
    except Exception:
        degraded("a request goes without hints")
    return options


async def _prepare_async(client: Any, original: Any, options: Any) -> Any:
    options = await original(options)
    _record(options)
    try:
        asked = _asked(client, options)
        if asked and await may_hint_async(*asked):
            _attach(options, *asked)
    except Exception:
        degraded("a request goes without hints")
    return options


def _record(options: Any) -> None:
    if options.method.lower() == "post" and options.url in PATHS and isinstance(options.json_data, Mapping):
        recorder.asked(options.json_data)


def _answered(original: Any, *args: Any, **kwargs: Any) -> Any:
    response: Any = kwargs.get("response")
    recorder.answered(response.json if response is not None and response.is_closed else None)
    return original(*args, **kwargs)


def _deriving(copy: Any) -> Any:
    @functools.wraps(copy)
    def derive(*args: Any, **kwargs: Any) -> Any:
        derived = copy(*args, **kwargs)
        instrument_openai(derived)
        return derived

    return derive


def _asked(client: Any, options: Any) -> tuple[Step, Server] | None:
    """Return who asks which server, if the request is one to be hinted."""
    step = asking_step()
    if step is None or options.method.lower() != "post" or options.url not in PATHS:
        return None
    return (step, _server_of(client)) if isinstance(options.json_data, Mapping) else None


def _attach(options: Any, step: Step, server: Server) -> None:
    extra = options.extra_json or {}
    hints = hints_for(step, server, extra.get(KEY) or options.json_data.get(KEY), options.json_data)
    if hints:
        options.extra_json = {**extra, KEY: hints}


def _server_of(client: Any) -> Server:
    key = getattr(client, "api_key", None)
    return outbox().server(
        str(client.base_url), authorization=f"Bearer {key}" if isinstance(key, str) and key else None
    )
