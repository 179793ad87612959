"""How much the HTTP process reads of a body."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI, Request

from kvflow.patches import bodies
from kvflow.patches.bodies import MAX_BODY_BYTES

pytestmark = [pytest.mark.engine, pytest.mark.beside]


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """Of an app that says how many bytes it has read."""
    app = FastAPI()

    async def count(request: Request) -> int | None:
        body = await bodies.read(request)
        return None if body is None else len(body)

    app.add_api_route("/", count, methods=["POST"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server") as client:
        yield client


async def endless(allowed_bytes: int) -> AsyncIterator[bytes]:
    """A body of which no more may be read."""
    for _ in range(0, allowed_bytes, 1024):
        yield b" " * 1024
    raise RuntimeError("more of it is read")


async def test_a_body_whose_head_says_that_it_is_too_long_is_not_read(client: httpx.AsyncClient) -> None:
    told = {"content-length": str(MAX_BODY_BYTES + 1)}
    assert (await client.post("/", content=endless(0), headers=told)).json() is None


async def test_a_body_that_turns_out_to_be_too_long_is_not_read_to_its_end(client: httpx.AsyncClient) -> None:
    assert (await client.post("/", content=endless(MAX_BODY_BYTES + 1024))).json() is None


async def test_one_that_is_as_long_as_may_be_is_read(client: httpx.AsyncClient) -> None:
    assert (await client.post("/", content=b" " * MAX_BODY_BYTES)).json() == MAX_BODY_BYTES
