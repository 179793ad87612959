"""Which clients can carry hints."""

from __future__ import annotations

import inspect
from typing import TypeVar

from kvflow.client.httpx_client import instrument_httpx, is_httpx, uninstrument_httpx
from kvflow.client.openai_sdk import instrument_openai, is_openai, uninstrument_openai

C = TypeVar("C")


def instrument(client: C) -> C:
    """Hint the LLM requests a client makes inside a workflow; returns the client.

    Takes a client of the OpenAI SDK (``OpenAI``, ``AsyncOpenAI``, the Azure variants; 2.x or 3.x) or an httpx or httpx2
    client. Clients derived by ``with_options`` are hinted too. A server that does not speak kvflow gets its requests
    unchanged, and so does every server when something goes wrong. Instrumenting twice is the same as once.

    Raises:
        TypeError: it is none of these, or the class of one.
    """
    if inspect.isclass(client):
        raise TypeError(f"instrument() takes a client, not the class {client.__name__}: instrument what it makes")
    if is_openai(client):
        instrument_openai(client)
    elif is_httpx(client):
        instrument_httpx(client)
    else:
        raise TypeError(f"instrument() takes an OpenAI or httpx client, not {type(client).__name__}; see extra_body()")
    return client


def uninstrument(client: C) -> C:
    """Undo :func:`instrument` for this client; returns the client. Facts still go to the servers known so far."""
    if is_openai(client):
        uninstrument_openai(client)
    elif is_httpx(client):
        uninstrument_httpx(client)
    return client
