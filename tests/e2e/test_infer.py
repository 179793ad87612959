"""Clients that say nothing: their workflows are recognised by what their prompts have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import HOST_TIER, Server

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]


@pytest.fixture(scope="module")
def inferring(start: Callable[..., Any]) -> Iterator[Server]:
    with start("--enable-kvflow", "--kvflow-infer", *HOST_TIER, "--max-total-tokens", "2048") as server:
        yield server


def ask(server: Server, text: str) -> str:
    answer: str = server.generate(text, tokens=4)["text"]
    return text + answer


def handed_on(server: Server, prompt: str, *, stream: bool) -> str:
    """What an agent answers; said in full to whoever asked for a stream."""
    if not stream:
        return server.generate(prompt, tokens=120)["text"]
    params = {"temperature": 0, "max_new_tokens": 120, "ignore_eos": True}
    body = {"text": prompt, "sampling_params": params, "stream": True}
    with server.client.stream("POST", "/generate", json=body) as response:
        events = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
    return json.loads(events[-1])["text"]


def test_successive_calls_of_a_context_are_one_workflow(inferring: Server) -> None:
    inferring.fresh()
    system = "You write Python, and nothing else. " * 8
    contexts = [system + f"The task of program {number} is to count to {number}. " * 3 for number in range(3)]
    for turn in range(4):
        for number, context in enumerate(contexts):
            contexts[number] = ask(inferring, context) + f" A tool says {turn}. "
    workflows = inferring.workflows()
    assert len(workflows) == 3
    assert len({workflow["workflow_type"] for workflow in workflows.values()}) == 1
    for workflow in workflows.values():
        assert workflow["next_use"]["agent"]["probability"] > 0.5
    assert inferring.get("status")["degraded"] == {}


def test_chats_are_told_apart_by_their_system_prompts(inferring: Server) -> None:
    inferring.fresh()
    preamble = "Be brief. Be exact. Be polite. " * 6  # equal, and longer than what is told apart at once
    chats = [[{"role": "system", "content": preamble + role}] for role in ("You plan.", "You write code.")]
    for turn in range(3):
        for messages in chats:
            messages.append({"role": "user", "content": f"Step {turn} of the task, if you please."})
            body = {"model": "m", "messages": messages, "max_tokens": 4, "temperature": 0}
            answer = inferring.client.post("/v1/chat/completions", json=body).json()
            messages.append(answer["choices"][0]["message"])
    types = {workflow["workflow_type"] for workflow in inferring.workflows().values()}
    assert len(inferring.workflows()) == len(types) == 2


def test_programs_on_anthropics_endpoint_are_told_apart_as_well(inferring: Server) -> None:
    inferring.fresh()
    chats: dict[str, list[dict[str, Any]]] = {"You plan, briefly and exactly.": [], "You write code, and no more.": []}
    for turn in range(3):
        for system, messages in chats.items():
            messages.append({"role": "user", "content": f"Step {turn} of the task, if you please. " * 3})
            body = {"model": "m", "system": system, "messages": messages, "max_tokens": 4, "temperature": 0}
            answer = inferring.client.post("/v1/messages", json=body).json()
            messages.append({"role": "assistant", "content": answer["content"]})
    workflows = inferring.workflows().values()
    assert len(workflows) == len({workflow["workflow_type"] for workflow in workflows}) == 2
    assert all(workflow["next_use"]["agent"]["probability"] > 0.5 for workflow in workflows)


def test_a_conversation_whose_history_was_summed_up_is_known_by_its_tool_calls(inferring: Server) -> None:
    inferring.fresh()
    system = {"role": "system", "content": "Be brief. Be exact. Be polite. " * 6}

    def ask_with(*messages: dict[str, Any]) -> None:
        body = {"model": "m", "messages": [system, *messages], "max_tokens": 4, "temperature": 0}
        inferring.client.post("/v1/chat/completions", json=body).raise_for_status()

    results = [{"role": "tool", "tool_call_id": f"call-{turn}", "content": f"Result {turn}. " * 9} for turn in range(2)]
    task = {"role": "user", "content": "Look it up, and then look again. " * 4}
    ask_with(task)
    ask_with(task, results[0])
    ask_with({"role": "user", "content": "So far it has been looked up. " * 4}, *results)
    ask_with({"role": "user", "content": "Another task, without any tools. " * 4})
    assert sorted(len(inferring.workflows()[name]["steps_taken"]) for name in inferring.workflows()) == [1, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_agents_that_hand_their_answers_on_are_one_workflow(inferring: Server, stream: bool) -> None:
    inferring.fresh()
    agents = {name: f"You are the {name}, and you do as the {name} does. " * 5 for name in ("planner", "writer")}
    said = ["Write about whales. " * 3, "Write about ships. " * 3]
    for _ in range(4):
        for system in agents.values():
            for number, task in enumerate(said):
                said[number] = handed_on(inferring, system + task, stream=stream)
    workflows = inferring.workflows()
    assert len(workflows) == 2
    for workflow in workflows.values():
        assert len(workflow["steps_taken"]) == 2
        # what other tests have taught of the type's ends makes it less likely than four turns alone do
        assert max(use["probability"] for use in workflow["next_use"].values()) > 0.2
    assert inferring.get("status")["degraded"] == {}


def test_hints_count_where_there_are_any(inferring: Server) -> None:
    inferring.fresh()
    inferring.step("declared", "planner", "A prompt that is long enough to be recognised by itself. " * 4)
    assert list(inferring.workflows()) == ["declared"]


def test_tokens_are_the_same_as_without(inferring: Server, server: Server) -> None:
    contexts = [f"The same answer to question {number}, whoever asks. " * 8 for number in range(3)]
    answers = [[one.generate(text, tokens=8)["text"] for text in contexts] for one in (inferring, server)]
    assert answers[0] == answers[1]


def test_unless_asked_nothing_is_inferred(server: Server) -> None:
    ask(server, "You write Python, and nothing else. " * 8)
    assert server.workflows() == {}
