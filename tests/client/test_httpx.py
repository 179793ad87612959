"""Hints for programs that use httpx or httpx2 themselves, and for those that build bodies by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import kvflow
from kvflow.hints import decode_envelope

if TYPE_CHECKING:
    from tests.client.conftest import Peer


@pytest.fixture
def client(httpx_module: Any) -> Iterator[Any]:
    with httpx_module.Client() as client:
        yield kvflow.instrument(client)


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/completions", "/gateway/generate"])
def test_llm_endpoints_are_hinted(peer: Peer, client: Any, path: str) -> None:
    peer.statuses["/gateway/kvflow/v1/graphs"] = 200
    with kvflow.workflow(), kvflow.step("a"):
        answer = client.post(peer.url + path, json={"text": "hi"})
    assert answer.status_code == 200
    (request,) = peer.llm
    (fact,) = decode_envelope(request.body["kv_hints"]).facts
    assert fact.fact.agent == "a"
    assert request.body["text"] == "hi"
    assert int(request.headers["content-length"]) == len(request.raw)


async def test_async_clients(peer: Peer, httpx_module: Any) -> None:
    async with httpx_module.AsyncClient(base_url=peer.url) as client:
        kvflow.instrument(kvflow.instrument(client))
        async with kvflow.workflow():
            await client.post("/generate", json={"text": "hi"})
    assert len(peer.llm[0].actions) == 1


async def test_hooks_for_clients_one_builds(peer: Peer, httpx_module: Any) -> None:
    hooks: Any = {"request": [kvflow.httpx_hook()]}
    async_hooks: Any = {"request": [kvflow.httpx_hook(is_async=True)]}
    with kvflow.workflow():
        with httpx_module.Client(event_hooks=hooks) as client:
            client.post(f"{peer.url}/generate", json={})
        async with httpx_module.AsyncClient(event_hooks=async_hooks) as client:
            await client.post(f"{peer.url}/generate", json={"text": "hi"})
    assert [len(request.actions) for request in peer.llm] == [1, 1]


async def test_the_plain_hook_serves_an_async_client_too(peer: Peer, httpx_module: Any) -> None:
    hooks: Any = {"request": [kvflow.httpx_hook()]}
    async with httpx_module.AsyncClient(event_hooks=hooks) as client:
        await client.post(f"{peer.url}/generate", json={})
        with kvflow.workflow():
            await client.post(f"{peer.url}/generate", json={"text": "hi"})
    assert ["kv_hints" in request.body for request in peer.llm] == [False, True]


BODIES = [
    b"{}",
    b" { } ",
    b'{"text": "hi"}\n',
    b'{"text":"\\ud83d \xc3\xbc","f":1.10,"a":1,"a":2}',
    b'{"text":"\\"kv_hints\\""}',
]


@pytest.mark.parametrize("body", BODIES)
def test_the_rest_of_the_body_stays_byte_by_byte(peer: Peer, client: Any, body: bytes) -> None:
    with kvflow.workflow():
        client.post(f"{peer.url}/generate", content=body, headers={"Content-Type": "application/json"})
    (request,) = peer.llm
    assert len(request.actions) == 1
    assert request.raw.startswith(body.strip().removesuffix(b"}").rstrip())


def test_hints_of_their_own_are_kept(peer: Peer, client: Any) -> None:
    theirs = {"protocol_version": "1.0", "message_id": "t", "actions": [], "vendor": 1}
    with kvflow.workflow():
        client.post(f"{peer.url}/generate", json={"kv_hints": theirs, "text": "hi"})
        client.post(f"{peer.url}/generate", json=kvflow.extra_body({"text": "kv_hints"}))
    first, second = peer.llm
    assert (first.body["kv_hints"]["vendor"], first.body["kv_hints"]["message_id"]) == (1, "t")
    assert [len(request.actions) for request in peer.llm] == [1, 1]
    assert second.body["text"] == "kv_hints"


@pytest.mark.parametrize(
    "request_options",
    [
        {"json": ["a", "list"]},
        {"content": b"{not json", "headers": {"Content-Type": "application/json"}},
        {"content": iter([b'{"text": "hi"}']), "headers": {"Content-Type": "application/json"}},
        {"data": {"text": "hi"}},
        {"content": b"{}", "headers": {"Content-Type": "application/json", "Content-Encoding": "br"}},
    ],
    ids=["list", "broken", "streamed", "form", "compressed"],
)
def test_other_bodies_pass_as_they_are(
    peer: Peer, httpx_module: Any, request_options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[bytes] = []

    def answer(request: Any) -> Any:
        sent.append(request.read())
        return httpx_module.Response(200)

    options = dict(request_options)
    if hasattr(options.get("content"), "__next__"):
        options["content"] = iter([b'{"text": "hi"}'])
    kvflow.configure(hints="always")
    with httpx_module.Client(transport=httpx_module.MockTransport(answer)) as bare:
        bare.post(f"{peer.url}/generate", **options)
    if hasattr(options.get("content"), "__next__"):
        options["content"] = iter([b'{"text": "hi"}'])
    with httpx_module.Client(transport=httpx_module.MockTransport(answer)) as client, kvflow.workflow():
        kvflow.instrument(client).post(f"{peer.url}/generate", **options)
    assert sent[0] == sent[1]
    assert not caplog.records


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/generate"), ("POST", "/v1/embeddings"), ("POST", "/v1/responses"), ("PUT", "/generate")],
)
def test_other_requests_are_left_alone(peer: Peer, client: Any, method: str, path: str) -> None:
    with kvflow.workflow():
        client.request(method, peer.url + path, json={"text": "hi"})
    assert not peer.received[-1].actions


def test_a_server_without_kvflow_gets_its_requests_unchanged(plain: Peer, client: Any) -> None:
    with kvflow.workflow():
        assert client.post(f"{plain.url}/generate", json={"text": "hi"}).status_code == 200
    assert plain.llm[0].raw == json.dumps({"text": "hi"}, separators=(",", ":")).encode()


def test_a_redirect_is_hinted_once(httpx_module: Any) -> None:
    bodies: list[dict[str, Any]] = []

    def answer(request: Any) -> Any:
        bodies.append(json.loads(request.read()))
        if request.url.path == "/generate":
            return httpx_module.Response(307, headers={"Location": "/v2/generate"})
        return httpx_module.Response(200)

    kvflow.configure(hints="always")
    transport = httpx_module.MockTransport(answer)
    with httpx_module.Client(transport=transport, follow_redirects=True) as client, kvflow.workflow():
        kvflow.instrument(client).post("http://kvflow.invalid/generate", json={"text": "hi"})
    assert [len(body["kv_hints"]["actions"]) for body in bodies] == [1, 1]


def test_the_timeout_of_a_request_stays(httpx_module: Any) -> None:
    timeouts: list[Any] = []

    def answer(request: Any) -> Any:
        timeouts.append(request.extensions["timeout"])
        return httpx_module.Response(200)

    kvflow.configure(hints="always")
    with httpx_module.Client(transport=httpx_module.MockTransport(answer)) as client, kvflow.workflow():
        kvflow.instrument(client).post("http://kvflow.invalid/generate", json={}, timeout=7)
    assert timeouts[0]["read"] == 7


def test_the_clients_own_hooks_stay(peer: Peer, httpx_module: Any) -> None:
    calls: list[str] = []
    hooks: Any = {
        "request": [lambda request: calls.append("request")],
        "response": [lambda r: calls.append("response")],
    }
    with httpx_module.Client(event_hooks=hooks) as client, kvflow.workflow():
        kvflow.instrument(client).post(f"{peer.url}/generate", json={})
        kvflow.uninstrument(client).post(f"{peer.url}/generate", json={})
    assert calls == ["request", "response"] * 2
    assert [len(request.actions) for request in peer.llm] == [1, 0]


def test_the_authorization_goes_along_to_its_own_server(peer: Peer, client: Any) -> None:
    with kvflow.workflow():
        client.post(f"{peer.url}/generate", json={}, headers={"Authorization": "Bearer me"})
    assert kvflow.flush()
    assert {request.headers["authorization"] for request in peer.received} == {"Bearer me"}
    assert peer.to("/events")


def test_extra_body() -> None:
    assert kvflow.extra_body() == {}
    extra = {"temperature": 0}
    assert kvflow.extra_body(extra) == extra
    assert kvflow.extra_body(extra) is not extra
    with kvflow.workflow("review", id="w") as run:
        body = kvflow.extra_body(extra)
    assert body["temperature"] == 0
    (fact,) = decode_envelope(body["kv_hints"]).facts
    assert (fact.fact.workflow_id, fact.fact.agent) == (run.id, "main")
    assert extra == {"temperature": 0}


def test_a_hook_that_was_there_before_stays(httpx_module: Any) -> None:
    own = kvflow.httpx_hook()
    with httpx_module.Client(event_hooks={"request": [own]}) as client:
        kvflow.uninstrument(kvflow.instrument(client))
        assert client.event_hooks["request"] == [own]
