"""Which servers are hinted, how that is found out, and what the finding out costs."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

import kvflow
from kvflow.client import outbox, server
from kvflow.client.answer import Answer
from kvflow.client.server import Server
from kvflow.errors import ConfigError

if TYPE_CHECKING:
    from tests.client.conftest import Peer

PROBE = "/kvflow/v1/graphs"


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers have one second to answer, not ten."""
    monkeypatch.setattr(server, "ASK_TIMEOUT_S", 1)


def refresh(peer: Peer) -> None:
    """Let the time pass after which an old no is looked into, and wait for the yes."""
    asked = outbox.outbox().server(peer.url)
    asked._ask_at_s = 0
    while asked.speaks().known is False:
        time.sleep(0.005)


def test_a_server_is_asked_once_and_not_before_the_first_use(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    assert not peer.received
    for _ in range(3):
        with kvflow.workflow():
            ask(client)
    assert kvflow.flush()
    assert len(peer.to("/graphs")) == 1


def test_a_no_is_looked_into_again_in_the_background(plain: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(plain))
    with kvflow.workflow():
        ask(client)
        ask(client)
        assert len(plain.to("/graphs")) == 1
        plain.speaks = True
        refresh(plain)
        ask(client)
    assert [bool(request.actions) for request in plain.llm] == [False, False, True]


def test_looking_again_holds_nobody_up(plain: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(plain))
    with kvflow.workflow():
        ask(client)
        plain.delays_s[PROBE] = 5
        outbox.outbox().server(plain.url)._ask_at_s = 0
        began = time.monotonic()
        ask(client)
        assert time.monotonic() - began < 4


@pytest.mark.parametrize("page", [b"<html>", b'{"code": 404}', b'{"types": 7}', b"[]", b'"types"'])
def test_a_front_end_with_an_answer_for_every_path_is_no_kvflow(
    peer: Peer, sdk: Any, ask: Any, monkeypatch: pytest.MonkeyPatch, page: bytes
) -> None:
    def respond(handler: Any, path: str, body: Any) -> None:
        if path != PROBE:
            original(handler, path, body)
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(page)))
        handler.end_headers()
        handler.wfile.write(page)

    original = peer.respond
    monkeypatch.setattr(peer, "respond", respond)
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow():
        ask(client)
    assert "kv_hints" not in peer.llm[0].body


@pytest.mark.usefixtures("second")
def test_a_silent_status_delays_the_program_once(peer: Peer, sdk: Any, ask: Any) -> None:
    peer.delays_s[PROBE] = 60
    client = kvflow.instrument(sdk(peer))
    began = time.monotonic()
    with kvflow.workflow():
        for _ in range(5):
            ask(client)
    assert 0.9 < time.monotonic() - began < 4  # each time would make 5
    assert not any("kv_hints" in request.body for request in peer.llm)


def test_waiting_for_an_answer_is_bounded_as_a_whole() -> None:
    late = threading.Event()
    answer = Answer(late.wait, 1)
    began = time.monotonic()
    assert [answer.wait() for _ in range(5)] == [False] * 5
    assert 0.9 < time.monotonic() - began < 1.9
    late.set()
    while answer.known is None:
        time.sleep(0.005)
    assert answer.wait() is True


def test_a_question_that_fails_is_a_no(caplog: pytest.LogCaptureFixture) -> None:
    assert Answer(lambda: 1 / 0 > 0, 10).wait() is False
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.usefixtures("second")
async def test_a_silent_status_never_blocks_the_loop(peer: Peer, async_sdk: Any) -> None:
    peer.delays_s[PROBE] = 60
    client = kvflow.instrument(async_sdk(peer))
    gaps: list[float] = []

    async def heartbeat() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    beat = asyncio.create_task(heartbeat())
    began = time.monotonic()
    async with kvflow.workflow():
        asked = [client.chat.completions.create(model="m", messages=[]) for _ in range(10)]
        await asyncio.gather(*asked)
        await client.chat.completions.create(model="m", messages=[])
    took = time.monotonic() - began
    beat.cancel()
    assert 0.9 < took < 1.9  # one after the other would make 2
    assert max(gaps) < 0.8
    assert len(peer.to("/graphs")) == 1


async def test_giving_up_on_a_request_while_the_server_is_asked(peer: Peer, async_sdk: Any) -> None:
    peer.delays_s[PROBE] = 0.1
    client = kvflow.instrument(async_sdk(peer))
    async with kvflow.workflow():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.chat.completions.create(model="m", messages=[]), 0.02)
        await client.chat.completions.create(model="m", messages=[])
    assert [bool(request.actions) for request in peer.llm] == [True]


@pytest.mark.usefixtures("second")
def test_a_black_hole_for_facts_costs_nothing(black_hole: str) -> None:
    kvflow.configure(url=black_hole)
    began = time.monotonic()
    for _ in range(20):
        with kvflow.workflow(graph={"edges": []}), kvflow.step("a"):
            pass
    assert time.monotonic() - began < 0.9
    assert kvflow.flush(5) is True  # given up


def test_a_server_that_is_not_there(sdk: Any, ask: Any, peer: Peer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        url = f"http://127.0.0.1:{closing.getsockname()[1]}"
    kvflow.configure(url=url)
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow():
        ask(client)
    assert kvflow.flush()
    assert peer.llm[0].actions


@pytest.mark.parametrize("off", ["off", "OFF", "0", "False", "no"])
def test_hints_off(off: str, peer: Peer, sdk: Any, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFLOW_HINTS", off)
    monkeypatch.setenv("KVFLOW_URL", peer.url)
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow(graph={"edges": []}), kvflow.step("a"):
        assert kvflow.current()
        assert kvflow.extra_body({"x": 1}) == {"x": 1}
        ask(client)
    assert kvflow.flush()
    assert [request.path for request in peer.received] == ["/v1/chat/completions"]
    assert "kv_hints" not in peer.llm[0].body


def test_hints_always(plain: Peer, sdk: Any, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFLOW_HINTS", "always")
    client = kvflow.instrument(sdk(plain))
    with kvflow.workflow():
        with pytest.raises(Exception, match="Unrecognized"):
            ask(client)
        assert not plain.to("/graphs")
    kvflow.flush()
    began = time.monotonic()
    assert not kvflow.flush(5), "facts wait for a request that takes them along"
    assert time.monotonic() - began < 4
    with kvflow.workflow(), pytest.raises(Exception, match="Unrecognized"):
        ask(client)


def test_configure_changes_the_mode_later(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    kvflow.configure(hints="off")
    with kvflow.workflow():
        ask(client)
        kvflow.configure(hints="always")
        ask(client)
    assert [bool(request.actions) for request in peer.llm] == [False, True]
    assert not peer.to("/graphs")


def test_servers_that_were_trusted_are_asked_once_they_are_not(plain: Peer, sdk: Any, ask: Any) -> None:
    kvflow.configure(hints="always")
    client = kvflow.instrument(sdk(plain))
    kvflow.configure(hints="auto")
    with kvflow.workflow():
        ask(client)
    assert [bool(request.actions) for request in plain.llm] == [False]


@pytest.mark.parametrize("asked_s", [0, 0.2])
def test_a_server_that_wants_a_key_is_asked_again_when_there_is_one(
    peer: Peer, asked_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(handler: Any, path: str, body: Any) -> None:
        if handler.headers.get("Authorization") == "Bearer sk":
            original(handler, path, body)
        else:
            handler.send_error(401)

    original = peer.respond
    monkeypatch.setattr(peer, "respond", respond)
    peer.delays_s[PROBE] = asked_s
    kvflow.configure(url=peer.url)
    with httpx.Client(headers={"Authorization": "Bearer sk"}) as client, kvflow.workflow(graph={"edges": []}):
        kvflow.instrument(client)
        while not (asked_s or outbox.outbox().server(peer.url).speaks().known is False):
            time.sleep(0.005)
        client.post(f"{peer.url}/v1/completions", json={"prompt": "hi"})
    assert peer.llm[0].actions


def test_a_server_that_is_trusted_while_it_is_asked_stays_so(plain: Peer) -> None:
    plain.delays_s[PROBE] = 0.2
    kvflow.configure(url=plain.url)
    asked = outbox.outbox().server(plain.url).speaks()
    kvflow.configure(hints="always")
    assert asked.wait() is False
    assert [server.root for server in outbox.outbox().listeners()] == [plain.url]


def test_a_proxy_that_httpx_cannot_use_is_done_without(
    peer: Peer, sdk: Any, ask: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = sdk(peer)
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9/")
    kvflow.instrument(client)
    with kvflow.workflow():
        ask(client)
    assert kvflow.flush()
    assert peer.llm[0].actions
    assert "cannot be used" in caplog.text


@pytest.mark.parametrize("kind", [openai.OpenAI, openai.AsyncOpenAI, httpx.Client])
def test_a_class_is_no_client(kind: type) -> None:
    with pytest.raises(TypeError, match="a client, not the class"):
        kvflow.instrument(kind)


def test_a_server_that_is_gone_is_asked_ever_more_rarely() -> None:
    now_s, gaps_s = 0.0, []
    gone = Server("http://127.0.0.1:9", clock=lambda: now_s)
    for _ in range(6):
        gone._probe()
        gaps_s.append(gone._ask_at_s - now_s)
    assert gaps_s == [5, 10, 20, 40, 60, 60]


def test_wrong_settings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("KVFLOW_HINTS", "sometimes")
    assert outbox.outbox().settings.hints == "auto"
    assert "sometimes" in caplog.text
    with pytest.raises(ConfigError, match="one of always, auto, off"):
        kvflow.configure(hints="never")  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["http://host:30000x", "localhost:30000", "host", "ftp://host", "http://"])
def test_a_url_that_is_none(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, peer: Peer, sdk: Any, ask: Any
) -> None:
    monkeypatch.setenv("KVFLOW_URL", url)
    monkeypatch.setenv("KVFLOW_HINTS", "always")
    with kvflow.workflow():
        ask(kvflow.instrument(sdk(peer)))
    assert kvflow.flush()
    assert peer.llm[0].actions, "what else is set counts"
    assert [record.getMessage().split(":")[0] for record in caplog.records if record.levelname == "WARNING"] == [
        "KVFLOW_URL is ignored"
    ]
    with pytest.raises(ConfigError, match="url must be the URL of a server, such as"):
        kvflow.configure(url=url)


def test_a_server_that_cannot_be_asked_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as closing:
            url = f"http://127.0.0.1:{closing.getsockname()[1]}"
        asked = server.Server(url)
        assert asked.speaks().wait() is False
        asked.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "did not say whether it speaks kvflow: ConnectError" in warnings[0]


@pytest.fixture
def no_thread() -> Iterator[pytest.MonkeyPatch]:
    """No thread of ours can be started until this is undone."""

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("kvflow"):
            raise RuntimeError("can't start new thread")
        original(thread)

    original = threading.Thread.start
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        yield patched


def test_a_server_that_no_thread_could_ask_is_asked_later(no_thread: pytest.MonkeyPatch, peer: Peer) -> None:
    now_s = 0.0
    asked = server.Server(peer.url, clock=lambda: now_s)
    assert asked.speaks().wait() is False
    no_thread.undo()
    assert asked.speaks().wait() is False
    now_s = server.SLOW_S
    asked.speaks()
    while asked.speaks().known is False:
        time.sleep(0.005)
    asked.close()


def test_facts_that_no_thread_could_send_are_sent_later(no_thread: pytest.MonkeyPatch, peer: Peer) -> None:
    kvflow.configure(url=peer.url, hints="always")
    with kvflow.workflow():
        with kvflow.step("a"):
            pass
        no_thread.undo()
    assert peer.told() == [("a", "end"), ("END", "start")]


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_the_root_of_a_server(end: str) -> None:
    assert outbox.outbox().server("http://host:1/gateway" + end).root == "http://host:1/gateway"


def test_spellings_of_one_server() -> None:
    box = outbox.outbox()
    assert box.server("HTTP://Host/v1") is box.server("http://host")
    assert box.server("HTTPS://host").root == "https://host"


def test_a_server_behind_a_path(peer: Peer, sdk: Any, ask: Any) -> None:
    peer.statuses["/gateway/kvflow/v1/graphs"] = 200
    client = kvflow.instrument(sdk(peer, base_url=f"{peer.url}/gateway/v1"))
    with kvflow.workflow():
        ask(client)
    assert peer.llm[0].path == "/gateway/v1/chat/completions"
    assert peer.llm[0].actions
