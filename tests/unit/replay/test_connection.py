"""What a replay's client makes of a server that answers in pieces, slowly, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from kvflow.replay.arms import Arm
from kvflow.replay.connection import Answer, Connection
from kvflow.replay.record import CallRecord
from kvflow.sim.stream import pieces

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
META = {"cached_tokens": 0, "finish_reason": {"type": "length"}}
Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def client(reply: Reply) -> AsyncIterator[httpx.AsyncClient]:
    """Of a server that answers every request in its own way."""

    serving: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.append(task)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
        with contextlib.suppress(ConnectionError):
            await reply(writer)
            await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, httpx.AsyncClient(base_url=url, trust_env=False) as made:
        yield made
        await asyncio.gather(*serving)


async def ask(
    made: httpx.AsyncClient, computed: Callable[[], None] = lambda: None, **more: Any
) -> tuple[Connection, CallRecord, Answer | None]:
    connection = Connection(made, Arm(name="a"), free=True, began_s=time.perf_counter(), **more)
    seen = CallRecord(workflow="w", thread="main", agent="a", call="c", asked_s=0.0)
    answer = await connection.ask([1, 2], array("q", [7, 8]), [], seen, computed)
    return connection, seen, answer


def piece(text: str, ids: list[int]) -> bytes:
    body = json.dumps({"text": text, "output_ids": ids, "meta_info": META}, ensure_ascii=False)
    return f"data: {body}\n\n".encode()


def test_answers_may_hold_what_others_take_for_the_end_of_a_line() -> None:
    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for byte in piece("a\x85b\u2028", [7]) + piece("a\x85b\u2028\u2029", [7, 8]) + b"data: [DONE]\n\n":
            writer.write(bytes([byte]))
            await writer.drain()

    async def play() -> None:
        async with client(reply) as made:
            _, seen, answer = await ask(made)
        assert (seen.error, answer and list(answer.tokens)) == ("", [7, 8])

    asyncio.run(play())


def test_answers_may_come_in_parts() -> None:
    """As with SGLang's --incremental-streaming-output: each piece brings what is new, and the number of all so far."""

    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for text, ids, whole in (("a", [7], 1), ("b", [7, 8], 3), ("c", [9], 4)):
            meta = META | {"completion_tokens": whole}
            writer.write(f"data: {json.dumps({'text': text, 'output_ids': ids, 'meta_info': meta})}\n\n".encode())

    async def play() -> None:
        async with client(reply) as made:
            _, seen, answer = await ask(made)
        assert (seen.error, seen.output_tokens, answer and list(answer.tokens)) == ("", 4, [7, 7, 8, 9])

    asyncio.run(play())


def test_a_call_that_the_server_gives_up_has_failed_and_computed_nothing() -> None:
    meta = {"id": "x", "finish_reason": {"type": "abort", "message": "the queue is full"}}
    computed: list[None] = []

    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + f"data: {json.dumps({'text': '', 'meta_info': meta})}\n\ndata: [DONE]\n\n".encode())

    async def play() -> None:
        async with client(reply) as made:
            _, seen, answer = await ask(made, computed=lambda: computed.append(None))
        assert (seen.error, seen.first_s, answer and list(answer.tokens)) == ("the queue is full", None, [])
        assert not computed

    asyncio.run(play())


def test_a_last_line_need_not_end() -> None:
    async def read() -> list[dict[str, Any]]:
        response = httpx.Response(200, content=piece("a", [1]) + piece("b", [2]).rstrip())
        return [found async for found in pieces(response)]

    assert [found["text"] for found in asyncio.run(read())] == ["a", "b"]


def test_a_call_is_given_up_when_all_of_it_takes_too_long() -> None:
    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for count in range(100):
            writer.write(piece("a", [7] * count))
            await writer.drain()
            await asyncio.sleep(0.1)

    async def play() -> None:
        async with client(reply) as made:
            connection, seen, answer = await ask(made, timeout_s=0.5)
        assert (seen.error, answer, connection.lost) == ("not answered in 0.5 s", None, "")
        assert seen.first_s is not None
        assert 0.4 < seen.ended_s < 5.0

    asyncio.run(play())


def test_a_server_that_hangs_up_has_been_lost() -> None:
    async def reply(writer: asyncio.StreamWriter) -> None:
        pass

    async def play() -> None:
        async with client(reply) as made:
            connection, seen, _ = await ask(made)
            assert connection.lost == seen.error
            assert "RemoteProtocolError" in seen.error
            closing = Connection(made, Arm(name="a", sessions=True), free=True, began_s=0.0)
            await closing.over("w")
            assert closing.lost

    asyncio.run(play())


def test_it_is_known_that_facts_were_refused() -> None:
    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwhat")

    async def play() -> None:
        async with client(reply) as made:
            connection = Connection(made, Arm(name="a", hints=True), free=True, began_s=time.perf_counter())
            async with connection.telling():
                connection.say("w", {"action_id": "1"})
            assert connection.refused == "status 400: what"

    asyncio.run(play())


def test_facts_that_are_on_their_way_arrive() -> None:
    answered = []

    async def reply(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        answered.append(True)

    async def play() -> None:
        async with client(reply) as made:
            connection = Connection(made, Arm(name="a", hints=True), free=True, began_s=time.perf_counter())
            async with connection.telling():
                connection.say("w", {"action_id": "1"})
                await asyncio.sleep(0.2)
            assert answered

    asyncio.run(play())
