"""Successive calls of one context are recognised by what their prompts share."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvflow.control.threads import AGENT, Threads
from kvflow.hints import StepFact

_random = random.Random()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test draws the same texts, whichever others have run."""
    _random.seed(3)


def text(length: int) -> list[int]:
    return _random.choices(range(1000), k=length)


SYSTEM = random.Random("system").choices(range(1000), k=300)


class Client:
    """Sends prompts to a server, one after the other unless told otherwise."""

    def __init__(self, most: int = 100) -> None:
        self.threads = Threads(most)

    def asks(self, prompt: list[int], namespace: str = "", kind: str = "", marks: tuple[str, ...] = ()) -> StepFact:
        found = self.threads.asks(prompt, namespace, kind, marks)
        assert found is not None
        return found

    def ask(self, prompt: list[int], **more: Any) -> str:
        found = self.asks(prompt, **more)
        self.threads.answered(found.workflow_id, found.agent)
        return found.workflow_id


def test_a_growing_context_is_one_workflow() -> None:
    client = Client()
    prompt = SYSTEM + text(90)
    first = client.asks(prompt)
    client.threads.answered(first.workflow_id, first.agent)
    for _ in range(100):
        prompt += text(_random.randrange(1, 150))
        found = client.asks(prompt)
        client.threads.answered(found.workflow_id, found.agent)
        assert found == first
    assert len(client.threads) == 1


def test_interleaved_contexts_with_one_system_prompt_are_workflows_of_one_type() -> None:
    client = Client()
    prompts = [SYSTEM + text(_random.randrange(20, 200)) for _ in range(8)]
    known = [client.asks(prompt) for prompt in prompts]
    for found in known:
        client.threads.answered(found.workflow_id, found.agent)
    assert len({found.workflow_id for found in known}) == 8
    assert len({found.workflow_type for found in known}) == 1
    for _ in range(10):
        for index in _random.sample(range(8), 8):
            prompts[index] += text(_random.randrange(1, 100))
            assert client.ask(prompts[index]) == known[index].workflow_id


def test_tasks_of_a_few_words_are_told_apart() -> None:
    client = Client()
    tasks = [SYSTEM[:256] + text(40) for _ in range(5)]
    known = [client.ask(task) for task in tasks]
    assert len(set(known)) == 5
    assert [client.ask(task + text(200)) for task in tasks] == known


@pytest.mark.parametrize("words", [1, 3, 12, 40])
@pytest.mark.parametrize("programs", [5, 200])
def test_however_short_tasks_are_and_however_many(words: int, programs: int) -> None:
    client = Client(most=1000)
    tasks = [SYSTEM[:256] + [1, 2, 3][: words // 4] + text(words) for _ in range(programs)]
    tasks = [list(task) for task in {tuple(task) for task in tasks}]
    known = [client.asks([*task, 7, 8, 9]).workflow_id for task in tasks]
    assert len(set(known)) == len(tasks)
    for workflow_id in known:
        client.threads.answered(workflow_id, AGENT)
    if words > 1:  # of one word all may be alike but for the template
        assert [client.ask([*task, 7, 5, *text(200), 7, 8, 9]) for task in tasks] == known


def test_one_task_after_another_is_another_workflow() -> None:
    client = Client()
    tasks = [SYSTEM[:256] + text(12) for _ in range(5)]
    assert len({client.ask(task) for task in tasks}) == 5


def test_a_chat_template_may_end_prompts_otherwise_than_it_continues_them() -> None:
    client = Client()
    prompt = SYSTEM + text(60)
    first = client.ask([*prompt, 1, 2, 3])
    assert client.ask([*prompt, 1, 9, *text(100), 1, 2, 3]) == first


@pytest.mark.parametrize(("words", "missing"), [(5, 2), (7, 4), (11, 8), (15, 12), (16, 15), (17, 4), (40, 15)])
@pytest.mark.parametrize("length", [64, 200])
def test_what_the_template_adds_may_stand_anywhere(length: int, words: int, missing: int) -> None:
    asks = list(range(2000, 2000 + words))
    for more in range(64):
        client = Client()
        prompt, known = text(length + more - words), set()
        for _ in range(3):
            known.add(client.ask(prompt + asks, kind="this one"))
            prompt += asks[: words - missing] + text(70)
        assert len(known) == 1, length + more


def test_a_prompt_that_lacks_all_that_the_template_added_goes_on_from_none() -> None:
    client = Client()
    system, asks = text(300), text(16)
    assert client.ask(system + asks) != client.ask(system + text(100) + asks)


def test_nothing_may_be_missing_before_a_template_is_known() -> None:
    client = Client()
    prompt = SYSTEM + text(60)
    assert client.ask([*prompt, *text(20)]) != client.ask([*prompt, *text(100)])


@pytest.mark.parametrize("length", [64, 256, 270, 300])
@pytest.mark.parametrize("words", [16, 17, 40])
def test_strangers_are_told_apart_though_all_that_is_known_of_an_agent_is_its_template(length: int, words: int) -> None:
    system, asks = text(length), list(range(2000, 2000 + words))
    questions = [[1], [1, 2], [1, 2, *text(8)], [1, 2, 3], [1, 2, *text(40)], [1, *text(40)]]
    client = Client()
    known = [client.ask(system + question + asks, kind="this one") for question in questions]
    assert len(set(known)) == len(questions)
    longer = [system + question + asks[:-4] + text(30) + asks for question in questions]
    assert [client.ask(each, kind="this one") for each in longer] == known


@pytest.mark.parametrize("length", [256, 270, 300])
def test_strangers_with_short_questions_are_told_apart_though_nobody_waits(length: int) -> None:
    client = Client()
    system, asks = text(length), [7, 8, 9, 10, 11]
    questions = [[1, 2], [1, 2, 3], [4], [1, 2, 5, 6], [3, 3, 3, 3], [1]]
    known = [client.ask([*system, 6, *question, *asks]) for question in questions]
    assert len(set(known)) == len(questions)
    assert [client.ask([*system, 6, *each, 7, 8, 12, *text(30), *asks]) for each in questions] == known


def test_whoever_asks_what_another_one_began_with_is_somebody_else() -> None:
    client = Client()
    prompt = SYSTEM + text(60)
    first = client.ask(prompt)
    assert client.ask(prompt) == first, "asked again"
    assert client.ask(prompt + text(100)) == first
    assert client.ask(prompt) != first


def test_a_program_that_is_run_again_when_it_is_over_is_the_same_again() -> None:
    client = Client()
    prompt = SYSTEM + text(60)
    first = client.ask(prompt)
    longer = [prompt + text(100) for _ in range(3)]
    assert {client.ask(each) for each in longer} == {first}
    client.threads.ended(first)
    assert {client.ask(each) for each in (prompt, *longer)} == {first}


def test_little_is_kept_of_a_workflow_that_is_over() -> None:
    client = Client()
    prompt = SYSTEM + text(90)
    first = client.ask(prompt)
    for _ in range(60):
        client.ask(prompt := prompt + text(40))
    client.threads.ended(first)
    (thread,) = client.threads._threads.values()
    assert len(thread.ends) == 8
    assert client.ask(prompt + text(40)) == first, "it may come back all the same"


def test_what_is_asked_while_a_context_waits_for_its_answer_is_a_branch() -> None:
    client = Client()
    prompt = SYSTEM + text(100)
    asked = client.asks(prompt)
    branch = client.asks(prompt + text(70))
    assert branch.workflow_id != asked.workflow_id
    assert branch.workflow_type == asked.workflow_type


def test_a_context_whose_end_was_cut_off_goes_on() -> None:
    client = Client()
    prompt = SYSTEM + text(100)
    first = client.ask(prompt)
    client.ask(prompt + text(500))
    assert client.ask(prompt + text(300)) == first


def test_the_result_of_a_tool_call_names_its_context_whatever_became_of_the_rest() -> None:
    client = Client()
    prompt = SYSTEM + text(200)
    first = client.asks(prompt)
    client.threads.answered(first.workflow_id, first.agent)
    client.ask(prompt + text(100), marks=("call 1",))
    summary = client.asks(text(400), marks=("call 1", "call 2"))
    assert summary.workflow_id == first.workflow_id
    client.threads.answered(first.workflow_id, first.agent)
    assert client.asks(text(400), marks=("call 3",)).workflow_id != first.workflow_id


def test_ids_of_tool_calls_that_come_again_in_other_conversations_name_nobody() -> None:
    client = Client()
    prompts = [SYSTEM + text(200) for _ in range(2)]
    known = [client.ask(prompt) for prompt in prompts]
    for turn in range(1, 4):
        for index in range(2):
            prompts[index] += text(100)
            found = client.asks(prompts[index], marks=tuple(f"functions.search:{call}" for call in range(turn)))
            client.threads.answered(found.workflow_id, found.agent)
            assert found.workflow_id == known[index]
    other = client.asks(text(400), kind="another system prompt", marks=("functions.search:0",))
    assert other.workflow_id not in known


def test_examples_that_every_conversation_begins_with_name_nobody() -> None:
    client = Client()
    known = [client.ask(text(90) + SYSTEM, marks=("call_1",)) for _ in range(5)]
    assert len(set(known)) == 5


def test_what_two_conversations_bring_later_names_neither() -> None:
    client = Client()
    prompts = [SYSTEM + text(200) for _ in range(2)]
    known = [client.ask(prompt) for prompt in prompts]
    for prompt in prompts:
        client.ask(prompt + text(100), marks=("functions.search:0",))
    assert client.ask(text(400), marks=("functions.search:0",)) not in known


def test_namespaces_and_agents_are_kept_apart() -> None:
    client = Client()
    prompt = SYSTEM + text(50)
    mine = client.ask(prompt, namespace="mine")
    assert client.ask(prompt + text(80), namespace="yours") != mine
    other = client.ask(prompt, kind="another system prompt")
    assert other.rsplit("/", 1)[0] != client.ask(prompt + text(9), kind="this one").rsplit("/", 1)[0]


def test_a_short_system_prompt_makes_no_question_a_type_of_its_own() -> None:
    """What prompts begin with is the system prompt and the question, here; what names the agent is known otherwise."""
    client = Client()
    types = {client.ask(SYSTEM[:20] + text(100), kind="assistant").rsplit("/", 1)[0] for _ in range(4)}
    assert len(types) == 1
    assert client.ask(SYSTEM[:20] + text(100), kind="critic").rsplit("/", 1)[0] not in types


def test_prompts_of_a_few_words_are_left_alone() -> None:
    assert Threads(10).asks(text(63), "") is None


def test_what_is_remembered_is_bounded() -> None:
    client = Client(most=10)
    prompts = [text(200) for _ in range(50)]
    known = [client.ask(prompt) for prompt in prompts]
    assert len(client.threads) == len(client.threads._by_end) == 10
    assert client.ask(prompts[-1] + text(80)) == known[-1]
    assert client.ask(prompts[0] + text(80)) != known[0]
    for n, prompt in enumerate(prompts):
        client.ask(prompt)
        client.ask(prompt + text(80), marks=(f"call {n}",))
    assert len(client.threads._by_mark) == 10
    long = text(100)
    for _ in range(300):
        long += text(70)
        client.ask(long)
    assert len(client.threads._by_end) <= 2 * 10 + 64


def test_an_answer_to_what_was_forgotten_meanwhile_leaves_its_successor_known() -> None:
    threads = Threads(2)
    prompt = SYSTEM + text(200)
    first = threads.asks(prompt, "")
    for _ in range(2):
        threads.asks(text(300), "")  # its thread is forgotten while it waits
    again = threads.asks(prompt, "")
    assert first is not None
    assert again is not None
    thread = threads._threads[again.workflow_id, again.agent]
    for _ in range(2):
        threads.answered(again.workflow_id, again.agent)
    assert thread.asking == 0
    assert threads.asks(prompt + text(100), "") == again
