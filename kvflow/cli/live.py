"""Asking a running server."""

from __future__ import annotations

from typing import Annotated, Any

import httpx
import typer

from kvflow.errors import ConfigError, ServerUnavailableError

DEFAULT_URL = "http://127.0.0.1:30000"
TIMEOUT_S = 10.0

Url = Annotated[str, typer.Option(envvar="KVFLOW_URL", help="Root of the SGLang server.")]
ApiKey = Annotated[str | None, typer.Option(envvar="KVFLOW_API_KEY", help="Its API key, if it wants one.")]


def connect(url: str, api_key: str | None) -> httpx.Client:
    """A client for the routes of one server.

    Raises:
        ServerUnavailableError: the address is none.
    """
    from kvflow.replay.arms import server_url

    try:
        root = server_url(url)
    except ConfigError as error:
        raise ServerUnavailableError(str(error)) from None
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.Client(base_url=f"{root}/kvflow/v1", headers=headers, timeout=TIMEOUT_S)


def get(client: httpx.Client, path: str, **query: Any) -> dict[str, Any]:
    """Read one route.

    Raises:
        ServerUnavailableError: it does not answer, is not kvflow's, or refuses; the message says what to do.
    """
    from kvflow.replay.asking import read

    where = f"{client.base_url}".removesuffix("kvflow/v1/")
    try:
        response = client.get(path, params={name: value for name, value in query.items() if value is not None})
    except httpx.HTTPError as error:
        raise ServerUnavailableError(f"{where} does not answer ({error}): is the server up, is --url right?") from None
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise ServerUnavailableError(f"{where} wants an API key: give --api-key, or set KVFLOW_API_KEY")
    if response.status_code == httpx.codes.NOT_FOUND:
        raise ServerUnavailableError(f"{where} knows no /kvflow/v1/{path}: was it started with --enable-kvflow?")
    return read(response)
