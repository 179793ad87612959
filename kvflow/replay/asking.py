"""Asking a server of a replay for something, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from kvflow.errors import ServerUnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a server says of itself; None where it does not.

    Attributes:
        page_tokens: its page size.
        device_tokens: what its device tier holds.
        stores: whether it has a storage tier.
    """

    page_tokens: int | None = None
    device_tokens: int | None = None
    stores: bool = False


async def asked(client: httpx.AsyncClient, method: str, path: str, **more: Any) -> httpx.Response:
    """Ask, and give back whatever is answered.

    Raises:
        ServerUnavailableError: nothing is, or a key is wanted.
    """
    try:
        response = await client.request(method, path, **more)
    except httpx.HTTPError as error:
        raise ServerUnavailableError(f"{client.base_url} does not answer: {error!r}") from None
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise ServerUnavailableError(f"{client.base_url} wants an API key: give --api-key, or set KVFLOW_API_KEY")
    return response


def read(response: httpx.Response, *names: str) -> dict[str, Any]:
    """Read an object that has members of these names.

    Raises:
        ServerUnavailableError: an error was answered, or something else.
    """
    if response.is_error:
        raise ServerUnavailableError(f"{response.url} answers {response.status_code}: {response.text[:200]}")
    try:
        found = response.json()
    except ValueError:  # some front ends answer any path with 200 and a page
        found = None
    if not isinstance(found, dict) or not found.keys() >= set(names):
        raise ServerUnavailableError(
            f"{response.url} answers something else than SGLang does ({response.text[:100]!r}): "
            "is that the address (--url) of the server itself?"
        )
    return found


async def about(client: httpx.AsyncClient) -> About:
    """Ask a server what it is; one without ``/server_info`` says nothing.

    Raises:
        ServerUnavailableError: it does not answer, or is no SGLang server.
    """
    response = await asked(client, "GET", "/server_info")
    if response.is_error:
        return About()
    found = read(response)
    return About(
        page_tokens=_count(found.get("page_size")),
        device_tokens=_count(found.get("max_total_num_tokens")),
        stores=bool(found.get("hicache_storage_backend")),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None
