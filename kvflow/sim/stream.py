"""Answers of SGLang that come in pieces."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

_DATA = b"data: {"


async def pieces(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Decode server-sent events as they arrive.

    Lines end at line feeds only: an answer may hold U+0085, U+2028 or U+2029, which SGLang does not escape, and at
    which httpx's own ``aiter_lines`` would break it.

    Raises:
        ValueError: what arrives is no JSON.
    """
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(_DATA):
                yield json.loads(line[len(_DATA) - 1 :])
    if rest.startswith(_DATA):
        yield json.loads(rest[len(_DATA) - 1 :])
