"""Bodies of requests to kvflow's routes, read up to a length: parsing takes the event loop that sends all answers."""

from __future__ import annotations

from fastapi import Request

MAX_BODY_BYTES = 1 << 20


async def read(request: Request) -> bytes | None:
    """Read a body; None if it is too long, as its head says or as it turns out."""
    told = request.headers.get("content-length", "0")
    if told.isdecimal() and int(told) > MAX_BODY_BYTES:
        return None
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)
