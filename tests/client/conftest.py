"""A small HTTP server that plays the peer of the client library, with kvflow and without."""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest

from kvflow.client import degraded, outbox, server

LLM_PATHS = ("/chat/completions", "/completions", "/generate")
KNOWN_KEYS = {"model", "messages", "prompt", "stream", "response_format", "text", "temperature"}


@dataclass(frozen=True, kw_only=True)
class Received:
    """One request, as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    raw: bytes
    at_s: float

    @property
    def actions(self) -> list[dict[str, Any]]:
        envelope = self.body if self.path.endswith("/events") else self.body.get("kv_hints", {})
        return envelope.get("actions", [])

    @property
    def payloads(self) -> list[dict[str, Any]]:
        return [action["payload"] for action in self.actions]


@dataclass
class Peer:
    """A server that records what it gets.

    Attributes:
        speaks: whether it knows kvflow; otherwise /kvflow is 404 and unknown body keys are 400, as api.openai.com does.
        delays_s: how long it thinks, by path; closing the server ends it.
        statuses: status to answer with, by path; a list is used up from the front.
    """

    speaks: bool = True
    received: list[Received] = field(default_factory=list)
    delays_s: dict[str, float] = field(default_factory=dict)
    statuses: dict[str, int | list[int]] = field(default_factory=dict)
    closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                peer.answer(self)

            do_POST = do_PUT = do_GET

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        path = handler.path.split("?")[0]
        body = json.loads(raw) if raw else {}
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.received.append(
            Received(method=handler.command, path=path, headers=headers, body=body, raw=raw, at_s=time.monotonic())
        )
        if path in self.delays_s:
            self.closing.wait(self.delays_s[path])
        try:
            self.respond(handler, path, body)
        except OSError:  # the client has given up
            handler.close_connection = True

    def respond(self, handler: BaseHTTPRequestHandler, path: str, body: dict[str, Any]) -> None:
        status = self.statuses.get(path)
        if isinstance(status, list):
            status = status.pop(0) if status else None
        if status is not None and status != 200:
            send(handler, {"error": {"message": "as told"}}, status=status)
        elif path.endswith(LLM_PATHS):
            unknown = set(body) - KNOWN_KEYS
            if unknown and not self.speaks:
                send(handler, {"error": {"message": f"Unrecognized request argument: {unknown}"}}, status=400)
            elif body.get("stream"):
                send_stream(handler)
            else:
                send(handler, completion(path))
        elif path.endswith("/kvflow/v1/graphs") and (status or self.speaks):
            send(handler, {"types": []})
        else:
            send(handler, {}, status=200 if status or (self.speaks and path.startswith("/kvflow/v1/")) else 404)

    def to(self, end: str) -> list[Received]:
        """Requests whose path ends like this, in the order of arrival."""
        return [request for request in self.received if request.path.endswith(end)]

    @property
    def llm(self) -> list[Received]:
        return [request for request in self.received if request.path.endswith(LLM_PATHS)]

    @property
    def facts(self) -> list[dict[str, Any]]:
        """Every payload, out of band or riding on a request, in the order of arrival."""
        return [payload for request in self.received for payload in request.payloads]

    def told(self) -> list[tuple[str, ...]]:
        """Everything the server heard, in order, in short, once everything is sent."""
        assert outbox.outbox().flush(2.0)
        return [
            (fact["tool"], fact["event"]) if "tool" in fact else (fact["agent"], fact.get("event", "start"))
            for fact in self.facts
        ]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def send(handler: BaseHTTPRequestHandler, body: dict[str, Any], status: int = 200) -> None:
    data = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def send_stream(handler: BaseHTTPRequestHandler) -> None:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    chunks = [
        {**chunk, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "hel"}}]},
        {**chunk, "choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"}]},
    ]
    data = "".join(f"data: {json.dumps(item)}\n\n" for item in chunks).encode() + b"data: [DONE]\n\n"
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def completion(path: str) -> dict[str, Any]:
    if path.endswith("/generate"):
        return {"text": "hello"}
    answer = {"id": "c", "created": 0, "model": "m", "usage": None}
    if path.endswith("/chat/completions"):
        message = {"role": "assistant", "content": '{"word": "hello"}'}
        return answer | {
            "object": "chat.completion",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        }
    choice = {"index": 0, "finish_reason": "stop", "text": "hello", "logprobs": None}
    return answer | {"object": "text_completion", "choices": [choice]}


@pytest.fixture
def make_peer() -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def make(**fields: Any) -> Peer:
        peers.append(Peer(**fields))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


@pytest.fixture
def peer(make_peer: Callable[..., Peer]) -> Peer:
    """A server that speaks kvflow."""
    return make_peer()


@pytest.fixture
def plain(make_peer: Callable[..., Peer]) -> Peer:
    """A server that has never heard of kvflow."""
    return make_peer(speaks=False)


@pytest.fixture(autouse=True)
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of one test is left for the next, and a busy machine does not make a yes a no."""
    for name in list(os.environ):
        if name.startswith("KVFLOW_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(server, "ASK_TIMEOUT_S", 10)
    monkeypatch.setattr(outbox, "_outbox", None)
    monkeypatch.setattr(degraded, "_told", set())
    yield
    if outbox._outbox is not None:
        outbox._outbox.close()


@pytest.fixture
def sdk(request: pytest.FixtureRequest) -> Iterator[Callable[..., openai.OpenAI]]:
    """Makes OpenAI clients, not instrumented, for a peer."""
    made: list[openai.OpenAI] = []

    def make(peer: Peer, **options: Any) -> openai.OpenAI:
        base = {"base_url": f"{peer.url}/v1", "api_key": "sk-test", "max_retries": 0}
        http_client = openai.DefaultHttpxClient(verify=False)  # loading certificates takes longer than most tests
        made.append(openai.OpenAI(**base | options, http_client=http_client))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
async def async_sdk() -> Any:
    """Makes asynchronous OpenAI clients, not instrumented, for a peer."""
    made: list[openai.AsyncOpenAI] = []

    def make(peer: Peer, **options: Any) -> openai.AsyncOpenAI:
        base = {"base_url": f"{peer.url}/v1", "api_key": "sk-test", "max_retries": 0}
        http_client = openai.DefaultAsyncHttpxClient(verify=False)
        made.append(openai.AsyncOpenAI(**base | options, http_client=http_client))
        return made[-1]

    yield make
    for client in made:
        await client.close()


@pytest.fixture(params=["httpx", "httpx2"])
def httpx_module(request: pytest.FixtureRequest) -> Any:
    """httpx, and its continuation where it is installed."""
    try:
        return importlib.import_module(request.param)
    except ImportError:
        pytest.skip(f"{request.param} is not installed")


@pytest.fixture
def lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts wait for a request or a flush, however slow the machine is."""
    monkeypatch.setattr(outbox, "LINGER_S", 60)


@pytest.fixture
def ask() -> Callable[..., str]:
    """Asks for a chat completion the way a program does."""

    def ask(client: openai.OpenAI, **options: Any) -> str:
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], **options)
        return answer.choices[0].message.content or ""

    return ask


@pytest.fixture
def tool_facts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is told of tool calls."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr("kvflow.client.tools.tell", lambda action, **fields: told.append(fields))
    return told
