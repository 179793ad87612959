"""A demonstration whose server fails says so."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kvflow.demo.arms import Arm, ArmServer
from kvflow.demo.corpus import source_files, trace_documents
from kvflow.demo.run import DemoSettings, _play
from kvflow.errors import ConfigError, ServerUnavailableError

SETTINGS = DemoSettings(rounds=1, workflows=2, at_once=2, stagger_s=0.0, prompt_chars=16)
STOCK = Arm(name="stock", policy="lru", kvflow=False)


def test_there_is_a_document_for_every_workflow() -> None:
    assert [len(source_files(count, 100)) for count in (1, 10, 2000)] == [1, 10, 2000]


@pytest.mark.parametrize(
    ("row", "told"),
    [("[]", "line 2 is no JSON object"), ('{"messages": ["text"]}', "'str' object has no attribute 'get'")],
)
def test_a_row_that_is_no_session_is_told(tmp_path: Path, row: str, told: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"messages": []}}\n{row}\n')
    with pytest.raises(ConfigError, match=f"--trace {path}: .*{told}"):
        trace_documents(path, 2, 100)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server without kvflow that is emptied, and fails when it is asked anything."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    path = head.split()[1]
    status = 404 if path.startswith("/kvflow") else 500 if path.startswith("/v1/chat") else 200
    body = json.dumps({}).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    await writer.drain()
    writer.close()


async def played(tmp_path: Path, *, up: bool) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    if not up:
        server.close()
        await server.wait_closed()
    try:
        await _play(SETTINGS, [ArmServer(STOCK, url, tmp_path / "link")], ["one", "two"], lambda *_: None)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("up", "problem"), [(True, "the server answered 500"), (False, "stock: http://.* does not answer any more")]
)
def test_a_server_that_fails_is_told_of(
    up: bool, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFLOW_HINTS", "off")
    with pytest.raises(ServerUnavailableError, match=problem):
        asyncio.run(played(tmp_path, up=up))
