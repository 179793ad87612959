"""Hints on the OpenAI SDK's requests; the same file runs against SDK 2.x and 3.x."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import openai
import pytest
from pydantic import BaseModel

import kvflow
from kvflow.hints import StepFact, decode_envelope

if TYPE_CHECKING:
    from tests.client.conftest import Peer

MESSAGES: Any = [{"role": "user", "content": "hi"}]


class Word(BaseModel):
    word: str


def test_a_request_says_who_asks(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))

    @kvflow.agent("planner", fixed_prompt_messages=2, fixed_prompt_tokens=50, tools=["search"], final=True)
    def plan() -> Any:
        ask(client)
        return kvflow.current()

    with kvflow.workflow("outer") as outer, kvflow.workflow("review", tenant="acme") as run:
        now = plan()
    (request,) = peer.llm
    (decoded,) = decode_envelope(request.body["kv_hints"]).facts
    assert decoded.fact == StepFact(
        workflow_id=run.id,
        workflow_type="review",
        agent="planner",
        step_id=now.step_id,
        parent_workflow_id=outer.id,
        fixed_prompt_messages=2,
        fixed_prompt_tokens=50,
        tools=["search"],
        final=True,
        tenant="acme",
    )
    assert request.body["messages"] == MESSAGES


def test_outside_every_agent_main_asks(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow():
        ask(client)
    assert [fact["agent"] for fact in peer.llm[0].payloads] == ["main"]


def test_outside_a_workflow_nothing_is_sent(peer: Peer, sdk: Any, ask: Any) -> None:
    ask(kvflow.instrument(sdk(peer)))
    assert [request.path for request in peer.received] == ["/v1/chat/completions"]
    assert "kv_hints" not in peer.llm[0].body


def test_requests_of_one_step_share_its_id(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow():
        with kvflow.step("a"):
            ask(client)
            ask(client)
        with kvflow.step("a"):
            ask(client)
    ids = [request.payloads[-1]["step_id"] for request in peer.llm]
    assert ids[0] == ids[1] != ids[2]


CALLS: dict[str, Callable[[openai.OpenAI], object]] = {
    "create": lambda c: c.chat.completions.create(model="m", messages=MESSAGES).choices[0].message.content,
    "parse": lambda c: (
        c.chat.completions.parse(model="m", messages=MESSAGES, response_format=Word).choices[0].message.parsed
    ),
    "create stream": lambda c: [
        chunk.choices[0].delta.content for chunk in c.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    ],
    "completions": lambda c: c.completions.create(model="m", prompt="hi").choices[0].text,
    "raw": lambda c: (
        c.chat.completions.with_raw_response.create(model="m", messages=MESSAGES).http_response.status_code
    ),
    "client raw": lambda c: c.with_raw_response.completions.create(model="m", prompt="hi").http_response.status_code,
    "with_options": lambda c: c.with_options(timeout=5).chat.completions.create(model="m", messages=MESSAGES).model,
    "copy": lambda c: c.copy(max_retries=1).with_options(timeout=5).completions.create(model="m", prompt="hi").model,
}


def stream_helper(client: openai.OpenAI) -> object:
    with client.chat.completions.stream(model="m", messages=MESSAGES) as stream:
        return stream.get_final_completion().choices[0].message.content


def streaming_response(client: openai.OpenAI) -> object:
    with client.chat.completions.with_streaming_response.create(model="m", messages=MESSAGES) as response:
        return response.read()


CALLS |= {"stream": stream_helper, "streaming response": streaming_response}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_way_to_ask_is_hinted_and_answers_the_same(peer: Peer, sdk: Any, call: Callable[..., object]) -> None:
    expected = call(sdk(peer))
    client = sdk(peer)
    _ = client.chat.completions, client.completions  # resources made before instrumenting
    kvflow.instrument(client)
    with kvflow.workflow(), kvflow.step("a"):
        assert call(client) == expected
    bare, hinted = peer.llm
    assert [fact["agent"] for fact in hinted.payloads] == ["a"]
    assert {key: value for key, value in hinted.body.items() if key != "kv_hints"} == bare.body


ASYNC_CALLS: dict[str, Any] = {}


def async_call(function: Any) -> Any:
    ASYNC_CALLS[function.__name__] = function
    return function


@async_call
async def create(client: openai.AsyncOpenAI) -> object:
    return (await client.chat.completions.create(model="m", messages=MESSAGES)).choices[0].message.content


@async_call
async def parse(client: openai.AsyncOpenAI) -> object:
    answer = await client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Word)
    return answer.choices[0].message.parsed


@async_call
async def create_stream(client: openai.AsyncOpenAI) -> object:
    stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    return [chunk.choices[0].delta.content async for chunk in stream]


@async_call
async def stream(client: openai.AsyncOpenAI) -> object:
    async with client.chat.completions.stream(model="m", messages=MESSAGES) as stream:
        return (await stream.get_final_completion()).choices[0].message.content


@async_call
async def completions(client: openai.AsyncOpenAI) -> object:
    return (await client.with_options(timeout=5).completions.create(model="m", prompt="hi")).choices[0].text


@async_call
async def raw(client: openai.AsyncOpenAI) -> object:
    return (
        await client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
    ).http_response.is_success


@async_call
async def streaming(client: openai.AsyncOpenAI) -> object:
    async with client.chat.completions.with_streaming_response.create(model="m", messages=MESSAGES) as response:
        return await response.read()


@pytest.mark.parametrize("call", ASYNC_CALLS.values(), ids=ASYNC_CALLS)
async def test_every_async_way_to_ask(peer: Peer, async_sdk: Any, call: Any) -> None:
    expected = await call(async_sdk(peer))
    client = kvflow.instrument(async_sdk(peer))
    async with kvflow.workflow(), kvflow.step("a"):
        assert await call(client) == expected
    bare, hinted = peer.llm
    assert [fact["agent"] for fact in hinted.payloads] == ["a"]
    assert {key: value for key, value in hinted.body.items() if key != "kv_hints"} == bare.body


async def test_gathered_agents_are_told_apart(peer: Peer, async_sdk: Any) -> None:
    client = kvflow.instrument(async_sdk(peer))

    @kvflow.agent
    async def worker(i: int) -> str:
        await client.chat.completions.create(model=str(i), messages=MESSAGES)
        now = kvflow.current()
        assert now
        return now.step_id

    async with kvflow.workflow():
        ids = await asyncio.gather(*map(worker, range(10)))
    own = {request.body["model"]: request.payloads[-1]["step_id"] for request in peer.llm}
    assert own == {str(i): ids[i] for i in range(10)}
    assert len(peer.to("/graphs")) == 1


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_server_without_kvflow_gets_the_same_as_ever(plain: Peer, sdk: Any, call: Callable[..., object]) -> None:
    client = kvflow.instrument(sdk(plain))

    @kvflow.tool
    def search() -> None: ...

    with kvflow.workflow("review"), kvflow.step("a"):
        call(client)
        search()
        call(client)
    kvflow.flush()
    assert len(plain.llm) == 2
    assert not any("kv_hints" in request.body for request in plain.llm)
    assert [request.path for request in plain.received if request not in plain.llm] == ["/kvflow/v1/graphs"]


async def test_a_server_without_kvflow_async(plain: Peer, async_sdk: Any) -> None:
    client = kvflow.instrument(async_sdk(plain))
    async with kvflow.workflow():
        assert await create(client)
        assert await create_stream(client)
    assert not any("kv_hints" in request.body for request in plain.llm)


def test_the_users_own_body_fields_stay(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    theirs = {
        "protocol_version": "1.0",
        "message_id": "theirs",
        "actions": [{"action_id": "x", "action_type": "kv.pin", "action_version": "1", "payload": {}}],
    }
    extra = {"regex": "a+", "kv_hints": theirs}
    with kvflow.workflow():
        ask(client, extra_body=extra)
    body = peer.llm[0].body
    assert body["regex"] == "a+"
    assert body["kv_hints"]["message_id"] == "theirs"
    assert [action["action_type"] for action in body["kv_hints"]["actions"]] == ["kv.pin", "kvflow.step"]
    assert len(extra["kv_hints"]["actions"]) == 1  # type: ignore[arg-type]


def test_extra_body_on_an_instrumented_client_hints_once(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow():
        ask(client, extra_body=kvflow.extra_body())
    assert [fact["agent"] for fact in peer.llm[0].payloads] == ["main"]


@pytest.mark.parametrize("theirs", ["nonsense", {"actions": 3}, {"actions": [1]}, {"actions": [{}] * 64}])
def test_hints_that_cannot_be_added_to_go_as_they_are(peer: Peer, sdk: Any, ask: Any, theirs: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow():
        ask(client, extra_body={"kv_hints": theirs})
    assert peer.llm[0].body["kv_hints"] == theirs


def test_a_step_that_makes_no_valid_hint_goes_without(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow() as run:
        run.type = "\ud800"
        assert ask(client)
    assert "kv_hints" not in peer.llm[0].body


def test_every_envelope_fits_the_servers_limits(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow():
        ask(client)
        with kvflow.step("big", tools=["t" * 128] * 255):
            for _ in range(40):
                with kvflow.step("s" * 128), kvflow.workflow("t" * 128, id="ü" * 256, tenant="x" * 128):
                    pass
            ask(client)
    assert kvflow.flush()
    for request in peer.llm + peer.to("/events"):
        decode_envelope(request.body if request.path.endswith("/events") else request.body["kv_hints"])
    assert sum(fact["agent"] == "END" for fact in peer.facts) == 41
    assert len(peer.llm[1].actions) > 1


def test_where_there_is_no_room_theirs_go_as_they_are(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    pin = {"action_id": "x", "action_type": "kv.pin", "action_version": "1", "payload": {"x": "x" * 40_000}}
    theirs = {"protocol_version": "1.0", "message_id": "m", "actions": [pin]}
    with kvflow.workflow(), kvflow.step("big", tools=["t" * 128] * 255):
        ask(client, extra_body={"kv_hints": theirs})
    assert peer.llm[0].body["kv_hints"] == theirs


def test_a_retry_is_hinted_again(peer: Peer, sdk: Any, ask: Any) -> None:
    peer.statuses["/v1/chat/completions"] = [500]
    client = kvflow.instrument(sdk(peer, max_retries=1))
    with kvflow.workflow():
        assert ask(client)
    first, second = peer.llm
    assert first.payloads == second.payloads
    assert first.body["kv_hints"]["message_id"] != second.body["kv_hints"]["message_id"]


def test_errors_of_the_server_pass_unchanged(peer: Peer, sdk: Any, ask: Any) -> None:
    peer.statuses["/v1/chat/completions"] = 422
    client = kvflow.instrument(sdk(peer))
    with pytest.raises(openai.UnprocessableEntityError), kvflow.workflow():
        ask(client)


def test_other_endpoints_are_left_alone(peer: Peer, sdk: Any) -> None:
    peer.statuses["/v1/embeddings"] = 400
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow(), pytest.raises(openai.BadRequestError):
        client.embeddings.create(model="m", input="hi")
    assert not peer.to("/embeddings")[0].actions


def test_instrumenting_twice_is_once_and_can_be_undone(peer: Peer, sdk: Any, ask: Any) -> None:
    client = sdk(peer)
    before = dict(vars(client))
    assert kvflow.instrument(kvflow.instrument(client)) is client
    with kvflow.workflow():
        ask(client)
        kvflow.uninstrument(kvflow.uninstrument(client))
        ask(client)
    assert len(peer.llm[0].actions) == 1
    assert "kv_hints" not in peer.llm[1].body
    assert {name: value for name, value in vars(client).items() if name in before} == before
    assert not {"copy", "_prepare_options"} & set(vars(client))


def test_only_the_instrumented_client_is_touched(peer: Peer, sdk: Any, ask: Any) -> None:
    kvflow.instrument(sdk(peer))
    with kvflow.workflow():
        ask(sdk(peer))
    assert "kv_hints" not in peer.llm[0].body


@pytest.mark.parametrize("azure", [openai.AzureOpenAI, openai.AsyncAzureOpenAI])
async def test_azure_clients(peer: Peer, azure: Any) -> None:
    client = azure(azure_endpoint=peer.url, api_key="key", api_version="2024-06-01", max_retries=0)
    peer.statuses["/openai/kvflow/v1/graphs"] = 200
    kvflow.instrument(client)
    with kvflow.workflow():
        answer = client.chat.completions.create(model="m", messages=MESSAGES)
        answer = await answer if isinstance(client, openai.AsyncAzureOpenAI) else answer
        assert answer.choices
    (request,) = peer.llm
    assert request.path == "/openai/deployments/m/chat/completions"
    assert len(request.actions) == 1
    closed = client.close()
    if closed is not None:
        await closed


def test_the_key_goes_to_its_own_server_only(peer: Peer, make_peer: Any, sdk: Any, ask: Any) -> None:
    other = make_peer()
    mine, theirs = kvflow.instrument(sdk(peer, api_key="sk-1")), kvflow.instrument(sdk(other, api_key="sk-2"))
    kvflow.configure(url=make_peer().url)
    with kvflow.workflow():
        ask(mine)
        ask(theirs)
    assert kvflow.flush()
    assert {request.headers.get("authorization") for request in peer.received} == {"Bearer sk-1"}
    assert {request.headers.get("authorization") for request in other.received} == {"Bearer sk-2"}
    assert peer.to("/events")


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(TypeError, match="extra_body"):
        kvflow.instrument(object())
