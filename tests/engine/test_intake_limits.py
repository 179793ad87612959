"""What of a request's hints is looked at before SGLang has looked at the request, and what of a chat is counted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from sglang.srt.managers.io_struct import GenerateReqInput

from kvflow.errors import HintDecodeError
from kvflow.hints import envelope, segments_action, step_action
from kvflow.patches import chat_hints, intake, malformed
from kvflow.patches.front import Front
from kvflow.patches.guard import degraded

FOREIGN = {"action_id": "1", "action_type": "other", "action_version": "1"}
MALFORMED = {**FOREIGN, "action_type": "kvflow.step", "payload": {"agent": "a"}}
PROMPTS: list[dict[str, Any]] = [
    {"text": ["x", "y"]},
    {"input_ids": [[1], [2, 3]]},
    {"input_embeds": [[[0.5]], [[0.5], [0.25]]]},
]


async def generate(front: Front, **request: Any) -> Any:
    """A request as SGLang takes it, which looks at its arguments first."""
    obj = GenerateReqInput(**request)

    async def original(manager: Any, obj: Any) -> AsyncIterator[Any]:
        obj.normalize_batch_and_arguments()
        yield {"meta_info": {"finish_reason": {"type": "stop"}}}

    async for _ in intake.request(original, front.tokenizer_manager, obj):
        pass
    return obj


def hints(many: int, *actions: dict[str, Any]) -> list[dict[str, Any]]:
    """Envelopes, each of a workflow of its own."""
    return [envelope([step_action(workflow_id=f"w{number}", agent="a"), *actions]) for number in range(many)]


@pytest.mark.parametrize("prompts", PROMPTS)
async def test_a_batch_brings_an_envelope_for_each_of_its_prompts(front: Front, prompts: dict[str, Any]) -> None:
    await generate(front, **prompts, kv_hints=hints(2))
    assert len(front.plane) == 2


async def test_characters_of_a_batch_are_those_of_each_prompt(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []
    original = front.admit
    monkeypatch.setattr(front, "admit", lambda hint, text: seen.append(text) or original(hint, text))
    await generate(front, text=["x", "y"], kv_hints=hints(2))
    await generate(front, text="z", kv_hints=hints(1)[0])
    await generate(front, text=["x", "y"], kv_hints=hints(1)[0])
    assert seen == ["x", "y", "z", None]


async def test_several_answers_to_one_prompt_have_one_envelope(front: Front) -> None:
    obj = await generate(front, text="x", sampling_params={"n": 3}, kv_hints=hints(1))
    assert (len(front.plane), len(obj.kv_hints)) == (1, 3)


@pytest.mark.parametrize(
    "prompts", [*PROMPTS, {"text": "x"}, {"input_ids": [1, 2, 3]}, {"input_embeds": [[0.5]]}, {"input_ids": 3}]
)
async def test_envelopes_for_prompts_that_are_not_there_are_left_to_sglang(
    front: Front, prompts: dict[str, Any]
) -> None:
    failures = degraded.copy()
    with pytest.raises((ValueError, TypeError)) as refused:
        await generate(front, **prompts, kv_hints=hints(3))
    assert not isinstance(refused.value, HintDecodeError)
    assert len(front.plane) == 0
    assert degraded == failures
    wrong = [envelope([MALFORMED])] * 3
    assert intake.generate_contract(None, {**prompts, "kv_hints": wrong}) is None


async def test_what_a_batch_asks_for_in_all_is_bounded(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {"text": ["x"] * 20, "kv_hints": hints(20, *[FOREIGN] * 51)}
    told = intake.generate_contract(None, many)
    assert told == "kv_hints: actions: are 1040; at most 1024 are allowed in a batch"
    with pytest.raises(HintDecodeError, match="at most 1024"):
        await generate(front, **many)
    monkeypatch.setattr(malformed, "strict", lambda: False)
    assert (await generate(front, **many)).kv_hints is None, "it runs without them"
    assert len(front.plane) == 0
    await generate(front, **many | {"kv_hints": hints(20, *[FOREIGN] * 50)})
    assert len(front.plane) == 20


def test_malformed_hints_of_a_batch_are_told() -> None:
    told = intake.generate_contract(None, {"text": ["x", "y"], "kv_hints": [None, envelope([MALFORMED])]})
    assert told is not None
    assert "actions.0.payload.workflow_id" in told


class Template:
    """A tokenizer whose tokens are bytes and whose chats are their texts, which counts the chats it renders."""

    def __init__(self) -> None:
        self.rendered: list[int] = []

    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> str:
        self.rendered.append(len(messages))
        return "".join(message["content"] for message in messages)

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())


@pytest.fixture
def template() -> Iterator[Template]:
    failures = degraded.copy()
    yield Template()
    assert degraded == failures


MESSAGES = [{"role": "user", "content": name * 10} for name in "abc"]


def carried(template: Template, *actions: dict[str, Any]) -> list[dict[str, Any]]:
    """Payloads of a chat's actions as they go on."""
    text = "".join(message["content"] for message in MESSAGES)
    adapted = SimpleNamespace(text=text, input_ids=None, kv_hints=None)
    serving: Any = SimpleNamespace(tokenizer_manager=SimpleNamespace(tokenizer=template))
    raw_request = SimpleNamespace(_json={"kv_hints": envelope(actions)})
    chat: Any = ChatCompletionRequest(model="m", messages=MESSAGES)  # type: ignore[arg-type]
    chat_hints.chat((adapted, None), serving, chat, raw_request)
    assert adapted.kv_hints is not None
    return [action["payload"] for action in adapted.kv_hints["actions"]]


def step(messages: int, **fields: Any) -> dict[str, Any]:
    return step_action(workflow_id="w", agent="a", fixed_prompt_messages=messages, **fields)


def test_fixed_messages_are_counted_of_the_step_that_a_chat_belongs_to_alone(template: Template) -> None:
    payloads = carried(template, step(1), step(2), step(3, event="end"), FOREIGN | {"payload": {}})
    assert [payload.get("fixed_prompt_tokens") for payload in payloads] == [None, 20, None, None]
    assert template.rendered == [2]


def test_tokens_that_are_given_count_instead(template: Template) -> None:
    payloads = carried(template, step(1), step(2, fixed_prompt_tokens=5))
    assert [payload.get("fixed_prompt_tokens") for payload in payloads] == [None, 5]
    assert template.rendered == []


def test_a_step_of_another_version_is_not_looked_into(template: Template) -> None:
    later = {**step(1), "action_version": "2", "payload": {"fixed_prompt_messages": "x"}}
    payloads = carried(template, step(1), later)
    assert [payload.get("fixed_prompt_tokens") for payload in payloads] == [10, None]
    assert "fixed_prompt_tokens" not in carried(template, later)[0]


def test_texts_are_looked_for_of_the_action_that_counts_alone(
    template: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_hints, "_reuses_nothing", lambda: False)
    looked_for: list[Any] = []

    def find(asked: Any, *_: Any, **__: Any) -> list[tuple[int, int, str]]:
        looked_for.append(asked.ranges[0].message)
        return [(0, 10, "text")]

    monkeypatch.setattr(chat_hints, "find_slots", find)
    asked = [segments_action(ranges=[{"message": place}]) for place in range(3)]
    payloads = carried(template, *asked, {**asked[0], "action_version": "2"})
    assert looked_for == [2]
    assert [payload["ranges"] for payload in payloads[:2]] == [[{"message": 0}], [{"message": 1}]]
    assert payloads[2]["ranges"] == [{"start_tokens": 0, "end_tokens": 10, "name": "text"}]
