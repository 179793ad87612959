"""Texts that agents hand to each other: what a request says of those it quotes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import kvflow
from kvflow.hints import decode_envelope, envelope, segments_action

if TYPE_CHECKING:
    from tests.client.conftest import Peer, Received

DOCUMENT = "Le cœur a ses raisons 🂡 que la raison ne connaît point. " * 4
PLAN = "First read the document, then read it again, and only then begin to write about it."


@pytest.fixture
def client(httpx_module: Any) -> Iterator[Any]:
    with httpx_module.Client() as client:
        yield kvflow.instrument(client)


def asked(body: dict[str, Any]) -> dict[str, Any] | None:
    """What a body says of texts to be reused; None if nothing."""
    actions = body.get("kv_hints", {}).get("actions", [])
    payloads = [action["payload"] for action in actions if action["action_type"] == "kvflow.segments"]
    if payloads:
        assert decode_envelope(body["kv_hints"]).segments is not None
        assert len(payloads) == 1
    return payloads[0] if payloads else None


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def chat(peer: Peer, client: Any, *messages: dict[str, Any]) -> Received:
    client.post(f"{peer.url}/v1/chat/completions", json={"model": "m", "messages": messages})
    return peer.llm[-1]


def test_a_message_that_quotes_a_text_says_where(peer: Peer, client: Any) -> None:
    content = f"Summarise this – briefly:\n{DOCUMENT}\nThank you."
    with kvflow.workflow():
        kvflow.segment(DOCUMENT, "document")
        request = chat(peer, client, {"role": "system", "content": "Be kind."}, user(content))
    found = asked(request.body)
    assert found is not None
    (quoted,) = found.pop("ranges")
    assert found == {}
    assert content[quoted.pop("start") : quoted.pop("end")] == DOCUMENT
    assert quoted == {"name": "document", "message": 1}


def test_texts_without_a_name_go_without(peer: Peer, client: Any) -> None:
    with kvflow.workflow():
        kvflow.segment(PLAN)
        request = chat(peer, client, user(PLAN))
    assert asked(request.body) == {"ranges": [{"message": 0, "start": 0, "end": len(PLAN)}]}


def test_every_message_that_quotes_is_named_with_every_text_it_quotes(peer: Peer, client: Any) -> None:
    with kvflow.workflow():
        kvflow.segment(DOCUMENT, "document")
        kvflow.segment(PLAN, "plan")
        request = chat(peer, client, user(f"{PLAN} {DOCUMENT}"), user("no"), user(f"> {PLAN}"))
    found = asked(request.body)
    assert found is not None
    places = {(item["message"], item["name"], item["start"], item["end"]) for item in found["ranges"]}
    assert places == {
        (0, "plan", 0, len(PLAN)),
        (0, "document", len(PLAN) + 1, len(PLAN) + 1 + len(DOCUMENT)),
        (2, "plan", 2, 2 + len(PLAN)),
    }


def test_parts_of_a_message_count_as_the_text_the_server_makes_of_them(peer: Peer, client: Any) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    parts = [{"type": "text", "text": "Look:"}, image, {"type": "text", "text": f"and read {DOCUMENT}"}]
    with kvflow.workflow():
        kvflow.segment(DOCUMENT)
        request = chat(peer, client, user(parts))
    found = asked(request.body)
    assert found is not None
    (quoted,) = found["ranges"]
    assert f"Look: and read {DOCUMENT}"[quoted["start"] : quoted["end"]] == DOCUMENT
    assert quoted["message"] == 0


@pytest.mark.parametrize("content", [None, [], 3, ["text"], [{"type": "image_url"}]])
def test_messages_without_text_are_no_trouble(peer: Peer, client: Any, content: Any) -> None:
    with kvflow.workflow():
        kvflow.segment(PLAN)
        request = chat(peer, client, user(content), user(PLAN))
    found = asked(request.body)
    assert found is not None
    assert [item["message"] for item in found["ranges"]] == [1]


@pytest.mark.parametrize(("path", "key"), [("/generate", "text"), ("/v1/completions", "prompt")])
def test_a_prompt_that_is_one_text_says_where(peer: Peer, client: Any, path: str, key: str) -> None:
    prompt = f"Summarise: {DOCUMENT}!"
    with kvflow.workflow():
        kvflow.segment(DOCUMENT, "document")
        client.post(peer.url + path, json={key: prompt})
    found = asked(peer.llm[0].body)
    assert found is not None
    (quoted,) = found["ranges"]
    assert prompt[quoted.pop("start") : quoted.pop("end")] == DOCUMENT
    assert quoted == {"name": "document"}


def test_the_sdks_requests_say_it_too(peer: Peer, sdk: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow():
        kvflow.segment(PLAN, "plan")
        client.chat.completions.create(model="m", messages=[user(f"A plan: {PLAN}")])
        client.completions.create(model="m", prompt=f"{PLAN} Go.")
    place = {"name": "plan", "start": 8, "end": 8 + len(PLAN)}
    messages, text = (asked(request.body) for request in peer.llm)
    assert messages == {"ranges": [{**place, "message": 0}]}
    assert text == {"ranges": [{"name": "plan", "start": 0, "end": len(PLAN)}]}


async def test_tasks_know_what_their_workflow_has_declared(peer: Peer, async_sdk: Any) -> None:
    client = kvflow.instrument(async_sdk(peer))
    async with kvflow.workflow():
        with kvflow.step("planner"):
            kvflow.segment(PLAN)
        with kvflow.step("writer"):
            await client.completions.create(model="m", prompt=PLAN)
    assert asked(peer.llm[0].body) == {"ranges": [{"start": 0, "end": len(PLAN)}]}


def test_bodies_built_by_hand() -> None:
    with kvflow.workflow():
        kvflow.segment(DOCUMENT, "document")
        chat = kvflow.extra_body({"messages": [user(f"Read {DOCUMENT}")], "temperature": 0})
        text = kvflow.extra_body({"text": DOCUMENT})
        assert asked(kvflow.extra_body()) == {}
        assert asked(kvflow.extra_body({"text": DOCUMENT[:-2]})) == {}
    assert asked(chat) == {"ranges": [{"name": "document", "message": 0, "start": 5, "end": 5 + len(DOCUMENT)}]}
    assert asked(text) == {"ranges": [{"name": "document", "start": 0, "end": len(DOCUMENT)}]}
    assert chat["temperature"] == 0


def test_a_workflow_may_have_all_its_messages_reused(peer: Peer, client: Any) -> None:
    with kvflow.workflow(reuse=True):
        bare = chat(peer, client, user("hi"))
        kvflow.segment(PLAN)
        quoting = chat(peer, client, user(PLAN))
        by_hand = kvflow.extra_body()
    assert asked(bare.body) == asked(by_hand) == {"messages": True}
    assert asked(quoting.body) == {"ranges": [{"message": 0, "start": 0, "end": len(PLAN)}], "messages": True}


def test_a_decorated_workflow_may_too(peer: Peer, client: Any) -> None:
    @kvflow.workflow("review", reuse=True)
    def review() -> None:
        chat(peer, client, user("hi"))

    review()
    assert asked(peer.llm[0].body) == {"messages": True}


def test_where_nothing_was_declared_nothing_is_said(peer: Peer, client: Any) -> None:
    with kvflow.workflow():
        request = chat(peer, client, user(DOCUMENT))
    assert [action["action_type"] for action in request.actions] == ["kvflow.step"]


def test_a_request_that_quotes_nothing_says_that_its_answer_may_be_quoted(peer: Peer, client: Any) -> None:
    with kvflow.workflow():
        kvflow.segment(DOCUMENT)
        request = chat(peer, client, user(DOCUMENT.upper()))
    assert asked(request.body) == {}


def test_a_request_full_of_other_actions_goes_without_what_does_not_fit() -> None:
    others = [{"action_type": "kv.pin", "action_id": str(n), "payload": {}} for n in range(63)]
    with kvflow.workflow(reuse=True):
        body = kvflow.extra_body({"text": "q", "kv_hints": {"actions": others}})
    assert [action["action_type"] for action in body["kv_hints"]["actions"][63:]] == ["kvflow.step"]


def test_a_request_that_says_itself_what_may_be_reused_is_believed() -> None:
    exact = segments_action(mode="off")
    with kvflow.workflow(reuse=True):
        body = kvflow.extra_body({"text": DOCUMENT, "kv_hints": envelope([exact])})
    assert asked(body) == exact["payload"]


def test_texts_belong_to_their_workflow(peer: Peer, client: Any) -> None:
    with kvflow.workflow():
        kvflow.segment(DOCUMENT)
        with kvflow.workflow():
            kvflow.segment(PLAN)
            inner = chat(peer, client, user(DOCUMENT))
        outer = chat(peer, client, user(PLAN))
    assert asked(inner.body) == asked(outer.body) == {}


def test_outside_a_workflow_a_text_is_just_returned(peer: Peer, client: Any) -> None:
    assert kvflow.segment(DOCUMENT, "document") is DOCUMENT
    request = chat(peer, client, user(DOCUMENT))
    assert "kv_hints" not in request.body
    with kvflow.workflow():
        assert asked(chat(peer, client, user(DOCUMENT)).body) is None


def test_a_text_is_returned_unchanged() -> None:
    with kvflow.workflow():
        assert kvflow.segment(DOCUMENT) is DOCUMENT
        assert kvflow.segment("short") == "short"


@pytest.mark.parametrize("what", [None, DOCUMENT.encode(), 7])
def test_only_texts_can_be_declared(what: Any) -> None:
    with pytest.raises(TypeError, match=r"segment\(\) takes a text"):
        kvflow.segment(what)


@pytest.mark.parametrize(("characters", "declared"), [(0, False), (1, False), (63, False), (64, True)])
def test_a_very_short_text_is_not_looked_for(characters: int, declared: bool) -> None:
    text = PLAN[:characters]
    with kvflow.workflow():
        kvflow.segment(text)
        assert (asked(kvflow.extra_body({"text": f"{PLAN} {text}"})) is not None) is declared


@pytest.mark.parametrize("name", ["", "n" * 129])
def test_a_name_the_wire_does_not_allow_is_refused_at_once(name: str) -> None:
    with pytest.raises(ValueError, match=r"^segment\(\): name: String should have at (most|least) \d+ characters?$"):
        kvflow.segment(DOCUMENT, name)
    with kvflow.workflow(), pytest.raises(ValueError, match=r"^segment\(\): name: "):
        kvflow.segment(DOCUMENT, name)


def texts(count: int) -> list[str]:
    return [f"{index:04} {DOCUMENT}" for index in range(count)]


def quoted(*prompts: str) -> list[bool]:
    return [bool(asked(kvflow.extra_body({"text": prompt}))) for prompt in prompts]


def test_the_oldest_of_more_than_256_texts_are_forgotten() -> None:
    declared = texts(300)
    with kvflow.workflow():
        for text in declared[:256]:
            kvflow.segment(text)
        assert quoted(declared[0], declared[255]) == [True, True]
        kvflow.segment(declared[0], "again")  # the latest now
        for text in declared[256:258]:
            kvflow.segment(text)
        assert quoted(*declared[:4], declared[257]) == [True, False, False, True, True]
        for text in declared[258:]:
            kvflow.segment(text)
        assert sum(quoted(*declared)) == 256


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("restless")
def test_texts_are_declared_from_several_threads_at_once() -> None:
    with kvflow.workflow() as run, ThreadPoolExecutor(8) as pool:
        for text in (f"{index} {DOCUMENT}" for index in range(256)):
            kvflow.segment(text)

        def declare(thread: int) -> None:
            for index in range(2000):
                run.declare(f"{thread} {index}", None)

        list(pool.map(declare, range(8)))  # an error would be raised here
        assert len(run.segments) == 256


def test_a_text_may_be_declared_while_a_request_is_looked_into() -> None:
    class Declaring(str):
        """A prompt that another thread is quick to declare a text for."""

        def find(self, *args: Any) -> int:
            kvflow.segment(f"{DOCUMENT} {len(run.segments)}")
            return super().find(*args)

    with kvflow.workflow() as run:
        kvflow.segment(PLAN)
        found = asked(kvflow.extra_body({"text": Declaring(PLAN)}))
    assert found == {"ranges": [{"start": 0, "end": len(PLAN)}]}
    assert len(run.segments) == 3


def test_the_latest_name_of_a_text_counts() -> None:
    with kvflow.workflow():
        kvflow.segment(PLAN, "draft")
        kvflow.segment(PLAN, "plan")
        found = asked(kvflow.extra_body({"text": PLAN}))
    assert found == {"ranges": [{"name": "plan", "start": 0, "end": len(PLAN)}]}


def test_a_request_that_quotes_very_many_texts_names_some_and_is_understood() -> None:
    with kvflow.workflow():
        for index, text in enumerate(texts(200)):
            kvflow.segment(text, f"{index:0128}")
        body = kvflow.extra_body({"messages": [user(text) for text in texts(200)]})
    found = asked(body)
    assert found is not None
    assert [item["message"] for item in found["ranges"]] == list(range(136, 200))


BODIES = [
    b'{"text": %s, "a": 1.10}' % json.dumps(PLAN).encode(),
    b' {"text":%s,"a":1,"a":2} ' % json.dumps(PLAN).encode(),
    b'{"x":"\\ud83d \xc3\xbc","text":%s}\n' % json.dumps(PLAN).encode(),
]


@pytest.mark.parametrize("body", BODIES)
def test_the_rest_of_the_body_stays_byte_by_byte(peer: Peer, client: Any, body: bytes) -> None:
    with kvflow.workflow():
        kvflow.segment(PLAN)
        client.post(f"{peer.url}/generate", content=body, headers={"Content-Type": "application/json"})
    (request,) = peer.llm
    assert asked(request.body) == {"ranges": [{"start": 0, "end": len(PLAN)}]}
    assert request.raw.startswith(body.strip().removesuffix(b"}"))
    assert {key: value for key, value in request.body.items() if key != "kv_hints"} == json.loads(body)


def test_the_sdks_other_fields_stay(peer: Peer, sdk: Any) -> None:
    bare, client = sdk(peer), kvflow.instrument(sdk(peer))
    with kvflow.workflow(reuse=True):
        kvflow.segment(DOCUMENT)
        for one in (bare, client):
            one.chat.completions.create(model="m", messages=[user(DOCUMENT)], extra_body={"regex": "a+"})
    without, hinted = peer.llm
    assert asked(without.body) is None
    assert asked(hinted.body) is not None
    assert {key: value for key, value in hinted.body.items() if key != "kv_hints"} == without.body


def test_hints_of_their_own_are_kept(peer: Peer, client: Any) -> None:
    theirs = {"protocol_version": "1.0", "message_id": "t", "actions": [], "vendor": 1}
    with kvflow.workflow():
        kvflow.segment(PLAN)
        client.post(f"{peer.url}/generate", json={"kv_hints": theirs, "text": PLAN})
    (request,) = peer.llm
    assert request.body["kv_hints"]["vendor"] == 1
    assert asked(request.body) == {"ranges": [{"start": 0, "end": len(PLAN)}]}


def test_a_server_without_kvflow_gets_its_requests_unchanged(plain: Peer, client: Any) -> None:
    with kvflow.workflow(reuse=True):
        kvflow.segment(PLAN)
        assert client.post(f"{plain.url}/generate", json={"text": PLAN}).status_code == 200
    assert plain.llm[0].raw == json.dumps({"text": PLAN}, separators=(",", ":")).encode()


def test_of_more_texts_than_a_request_may_name_the_latest_are_named(peer: Peer, client: Any) -> None:
    texts = [f"{number:03} {PLAN}" for number in range(70)]
    with kvflow.workflow():
        for text in texts:
            kvflow.segment(text)
        request = chat(peer, client, *(user(text) for text in texts))
    found = asked(request.body)
    assert found is not None
    assert {item["message"] for item in found["ranges"]} == set(range(6, 70))


@pytest.mark.parametrize(("own", "expected"), [(None, True), (False, False), (True, True)])
def test_a_workflow_inside_another_reuses_what_that_may_unless_it_says_otherwise(
    peer: Peer, client: Any, own: bool | None, expected: bool
) -> None:
    with kvflow.workflow("outer", reuse=True), kvflow.workflow("inner", reuse=own):
        request = chat(peer, client, user("hi"))
    assert asked(request.body) == ({"messages": True} if expected else None)
