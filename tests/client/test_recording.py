"""The client records a program: facts in a file, which is a trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import kvflow
from kvflow.client import outbox
from kvflow.trace import BadRow, Event, open_trace
from tests.unit.trace.test_record import calls, shape


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "facts.jsonl"
    monkeypatch.setenv("KVFLOW_RECORD", str(path))
    settings = outbox.outbox().settings
    kvflow.configure(hints="off")
    yield path
    outbox.outbox().use(settings)


def respond(request: httpx.Request) -> httpx.Response:
    body = json.loads(request.content)
    if body.get("stream"):
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, text="data: [DONE]\n\n")
    message = {"role": "assistant", "content": f"answer {len(body['messages'])}"}
    counts = {"prompt_tokens": 100 * len(body["messages"]), "completion_tokens": 11, "total_tokens": 0}
    return httpx.Response(
        200,
        json={
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": counts,
        },
    )


def system_and(*said: str) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(said)
    return [{"role": "system", "content": "you are terse" * 9}] + [
        {"role": role, "content": text} for role, text in zip(roles, said, strict=False)
    ]


def read(path: Path) -> list[Event]:
    bad: list[BadRow] = []
    events = list(open_trace(path, bad.append)[1])
    assert bad == []
    return events


def test_the_client_records_what_a_program_does(facts: Path) -> None:
    @kvflow.tool
    def search() -> str:
        return "found"

    @kvflow.agent("researcher", fixed_prompt_messages=1)
    def research(client: Any) -> None:
        client.post("http://llm.test/v1/chat/completions", json={"messages": system_and("go")})
        search()
        messages = system_and("go", "answer 2", "found")
        client.post("http://llm.test/v1/chat/completions", json={"messages": messages})
        client.post("http://llm.test/other", json={"messages": messages})

    with httpx.Client(transport=httpx.MockTransport(respond)) as client, kvflow.workflow("demo", tenant="me"):
        research(kvflow.instrument(client))
    events = read(facts)
    assert shape(events) == "llm_call tool_start tool_end llm_call"
    first, second = calls(events)
    assert (first.agent, first.prompt.tokens, first.output_tokens) == ("researcher", 200, 11)
    assert (second.prompt.tokens, second.prompt.base, second.prompt.keep_tokens) == (400, first.call, 211)
    assert first.fixed_tokens == first.prompt.add[0].tokens
    assert first.llm_s is not None
    assert "terse" not in facts.read_text()


async def test_the_openai_client_is_recorded_and_what_runs_side_by_side_is_too(facts: Path) -> None:
    async def slowly(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.02)
        return respond(request)

    http = httpx.AsyncClient(transport=httpx.MockTransport(slowly))
    client = kvflow.instrument(openai.AsyncOpenAI(api_key="x", base_url="http://llm.test/v1", http_client=http))

    @kvflow.agent
    async def worker(number: int) -> None:
        await client.chat.completions.create(model="m", messages=system_and(str(number)))  # type: ignore[arg-type]

    async with kvflow.workflow("demo"):
        await worker(0)
        await asyncio.sleep(0.2)
        await asyncio.gather(*(worker(number) for number in range(3)))
        async with kvflow.step("streamer"):
            stream = await client.chat.completions.create(model="m", messages=system_and("s"), stream=True)  # type: ignore[call-overload]
            assert [chunk async for chunk in stream] == []
    await http.aclose()
    kvflow.uninstrument(client)
    assert "_process_response" not in vars(client)
    events = read(facts)
    expected = "llm_call spawn spawn spawn llm_call@worker llm_call@worker#2 llm_call@worker#3 join join join llm_call"
    assert shape(events) == expected
    assert [call.output_tokens for call in calls(events)] == [11, 11, 11, 11, 0]
    assert all(0.2 <= (call.delay_s or 0.0) < 1.0 for call in calls(events)[1:4]), "what was before it"


def test_errors_while_recording_do_not_reach_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: Path
) -> None:
    monkeypatch.setenv("KVFLOW_RECORD", str(tmp_path))  # a folder
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=["odd"]))
    with httpx.Client(transport=transport) as client, kvflow.workflow("demo"):
        kvflow.instrument(client)
        url = "http://llm.test/v1/completions"
        assert client.post(url, json={"prompt": "x"}).json() == ["odd"]
        monkeypatch.setenv("KVFLOW_RECORD", str(facts))
        for content in (b"{broken", b"[]", b""):
            headers = {"content-type": "application/json"}
            assert client.post(url, content=content, headers=headers).is_success


def test_nothing_is_written_unless_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVFLOW_RECORD", raising=False)
    with httpx.Client(transport=httpx.MockTransport(respond)) as client:
        kvflow.instrument(client)
        assert client.event_hooks["response"] == []
        kvflow.uninstrument(client)


@pytest.mark.parametrize("installed", [True, False])
def test_equal_requests_are_calls_of_their_own_unless_they_are_sent_again(facts: Path, installed: bool) -> None:
    hooks: Any = {} if installed else {"request": [kvflow.httpx_hook()]}
    with httpx.Client(transport=httpx.MockTransport(respond), event_hooks=hooks) as client, kvflow.workflow():
        if installed:
            kvflow.instrument(client)
        for _ in range(3):
            client.post("http://host/v1/chat/completions", json={"messages": system_and("the same")})
    kinds = [json.loads(line)["fact"] for line in facts.read_text().splitlines()]
    assert kinds.count("llm_start") == 3
    assert kinds.count("llm_end") == (3 if installed else 0)
