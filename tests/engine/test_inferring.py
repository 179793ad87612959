"""What a chat without hints says of its context: by what it begins with whose it is, by tool calls where it belongs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

from kvflow.patches import inferring

SYSTEM = {"role": "system", "content": "You write code."}
DEVELOPER = {"role": "developer", "content": "In Python."}
TASK = [{"role": "user", "content": "Count to three."}, {"role": "assistant", "content": "1 2 3"}]


def result(call: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": "3"}


def marks(*messages: dict[str, Any]) -> tuple[str, list[str]]:
    """Name of the agent, and ids of tool calls."""
    adapted = SimpleNamespace()
    inferring.mark(adapted, ChatCompletionRequest(model="m", messages=list(messages)))
    return adapted._kvflow_marks


@pytest.mark.parametrize("role", ["system", "developer"])
def test_what_the_system_says_later_makes_it_no_other_agent(role: str) -> None:
    later = {"role": role, "content": "It is late."}
    agent, _ = marks(SYSTEM, DEVELOPER, *TASK)
    assert agent == marks(SYSTEM, DEVELOPER, *TASK, later)[0] == marks(SYSTEM, DEVELOPER, *TASK, later, *TASK, later)[0]


def test_all_that_it_says_first_tells_agents_apart() -> None:
    chats = [[SYSTEM], [SYSTEM, DEVELOPER], [DEVELOPER], [DEVELOPER, SYSTEM]]
    assert len({marks(*chat, *TASK)[0] for chat in chats}) == len(chats)


def test_a_chat_that_begins_with_a_question_names_no_agent() -> None:
    assert marks(*TASK) == marks(*TASK, SYSTEM) == ("", [])


def test_results_of_tool_calls_are_named_wherever_they_stand() -> None:
    [call], [other] = (marks(SYSTEM, *TASK, result(name), DEVELOPER, *TASK)[1] for name in ("call-1", "call-2"))
    assert [call] == marks(SYSTEM, result("call-1"))[1]
    assert call != other


def test_names_of_tool_calls_are_remembered_at_no_length_of_their_clients() -> None:
    [call] = marks(SYSTEM, *TASK, result("x" * 100_000))[1]
    assert len(call) == 32


@pytest.mark.parametrize("name", ["image_data", "video_data", "audio_data", "session_params"])
def test_of_what_is_not_all_text_or_a_part_of_a_session_nothing_is_inferred(name: str) -> None:
    asked = {"text": "What is in this picture?", "input_ids": None}
    assert inferring._is_prompt(SimpleNamespace(**asked | {name: None}))
    assert not inferring._is_prompt(SimpleNamespace(**asked | {name: {"id": "x"}}))


def test_what_no_model_takes_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inferring, "_LONGEST", 8)
    for name, fits, too_long in (("text", "x" * 8, "x" * 9), ("input_ids", [1] * 8, [1] * 9)):
        prompts = [SimpleNamespace(**({"text": None, "input_ids": None} | {name: each})) for each in (fits, too_long)]
        assert [inferring._is_prompt(each) for each in prompts] == [True, False]
        assert [inferring._prompt(each) is None for each in prompts] == [False, True]
