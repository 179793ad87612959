"""Contexts of one workflow are told by the answers that they hand on."""

from __future__ import annotations

import random

import pytest

from kvflow.control.quotes import Quotes
from kvflow.control.threads import AGENT, Threads
from kvflow.hints import StepFact
from kvflow.reuse.fingerprints import marks_of

_random = random.Random()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test draws the same texts, whichever others have run."""
    _random.seed(5)


def text(length: int) -> list[int]:
    return _random.choices(range(100_000), k=length)


SYSTEM = {name: random.Random(name).choices(range(100_000), k=300) for name in "abc"}


class Server:
    """Knows of its clients what their prompts say."""

    def __init__(self, most: int = 100) -> None:
        self.quotes = Quotes(marks_of)
        self.threads = Threads(most, quotes=self.quotes)

    def asks(self, prompt: list[int], namespace: str = "") -> StepFact:
        step = self.threads.asks(prompt, namespace)
        assert step is not None
        return step

    def answers(self, step: StepFact, answer: list[int]) -> None:
        self.threads.answered(step.workflow_id, step.agent)
        self.threads.said(step.workflow_id, step.agent, answer)

    def ask(self, prompt: list[int], answer: list[int], namespace: str = "") -> StepFact:
        step = self.asks(prompt, namespace)
        self.answers(step, answer)
        return step


@pytest.mark.parametrize("length", [20, 32, 400])
def test_agents_of_a_chain_are_one_workflow_however_often_it_is_run(length: int) -> None:
    server = Server()
    said, steps = text(length), []
    for _ in range(5):
        for name in "abc":
            answer = text(length)
            steps.append(server.ask(SYSTEM[name] + said, answer))
            said = answer
    assert len({step.workflow_id for step in steps}) == 1
    assert [step.agent for step in steps[:3]] == [step.agent for step in steps[3:6]]
    assert steps[0].agent == AGENT
    assert len({step.agent for step in steps}) == 3


def test_chains_side_by_side_are_kept_apart() -> None:
    server = Server()
    said = [text(40) for _ in range(8)]
    known = [set() for _ in said]
    for _ in range(3):
        for name in "abc":
            for index in _random.sample(range(8), 8):
                answer = text(40)
                known[index].add(server.ask(SYSTEM[name] + said[index], answer).workflow_id)
                said[index] = answer
    assert all(len(each) == 1 for each in known)
    assert len(set().union(*known)) == 8


def test_contexts_that_grow_stay_apart_in_the_program() -> None:
    server = Server()
    boss = SYSTEM["a"] + text(50)
    order = text(80)
    first = server.ask(boss, order)
    worker = SYSTEM["b"] + order[:40]
    hired = server.ask(worker, answer := text(50))
    assert (hired.workflow_id, hired.parent_workflow_id) == (first.workflow_id, None)
    assert server.ask(worker + answer + text(30), text(50)) == hired
    second = server.ask(SYSTEM["b"] + order[40:], text(50))
    assert second.parent_workflow_id == first.workflow_id
    assert second.workflow_id not in (first.workflow_id, "")
    assert server.ask(boss + order + text(100), text(30)) == first


def test_workers_of_one_kind_at_the_same_time_are_sub_workflows() -> None:
    server = Server()
    plan = text(120)
    planner = server.ask(SYSTEM["a"] + text(50), plan)
    jobs = [server.asks(SYSTEM["b"] + plan[start : start + 40]) for start in (0, 40, 80)]
    assert jobs[0].workflow_id == planner.workflow_id
    assert [job.parent_workflow_id for job in jobs[1:]] == [planner.workflow_id] * 2
    results = [text(40) for _ in jobs]
    for job, result in zip(jobs, results, strict=True):
        server.answers(job, result)
    merger = server.ask(SYSTEM["c"] + [word for result in results for word in result], text(20))
    assert merger.workflow_id == planner.workflow_id


def test_what_several_workflows_say_names_none_of_them() -> None:
    server = Server()
    phrase = text(40)
    one, two = (server.ask(SYSTEM["a"] + text(50), phrase + text(40)) for _ in range(2))
    other = server.ask(SYSTEM["b"] + phrase + text(40), text(40))
    assert other.workflow_id not in (one.workflow_id, two.workflow_id)


def test_repeating_ones_own_prompt_says_nothing() -> None:
    server = Server()
    first = server.ask(SYSTEM["a"] + text(50), SYSTEM["a"][100:160])
    second = server.ask(SYSTEM["a"] + text(50), text(40))
    assert second.workflow_id != first.workflow_id


def test_who_cites_the_same_passage_is_not_of_the_same_program() -> None:
    server = Server()
    passage, later = text(300), text(300)
    first = server.ask(SYSTEM["a"] + passage + text(40), text(30) + passage[100:140])
    asked = [server.asks(SYSTEM["a"] + passage + text(40)) for _ in range(2)]
    assert len({step.workflow_id for step in (first, *asked)}) == 3
    assert all(step.parent_workflow_id is None for step in asked)
    growing = SYSTEM["b"] + text(50)
    server.ask(growing, text(30))
    growing += text(30) + later  # what a tool has found
    server.ask(growing, later[50:90])
    assert server.asks(SYSTEM["c"] + later + text(40)).agent == AGENT


def test_what_one_who_ends_has_said_is_still_said_by_the_others() -> None:
    server = Server()
    phrase = text(40)
    one, two, three = (server.ask(SYSTEM["a"] + text(50), phrase) for _ in range(3))
    server.threads.ended(one.workflow_id)
    assert server.ask(SYSTEM["b"] + phrase, text(20)).workflow_id not in (one, two.workflow_id, three.workflow_id)
    server.threads.ended(two.workflow_id)
    assert server.ask(SYSTEM["c"] + phrase, text(20)).workflow_id == three.workflow_id


def test_what_all_prompts_of_an_agent_say_is_no_quote() -> None:
    server = Server()
    for _ in range(2):
        server.ask(SYSTEM["b"] + text(50), text(40))
    first = server.ask(SYSTEM["a"] + text(50), SYSTEM["b"][100:160])
    assert server.ask(SYSTEM["b"] + text(50), text(40)).workflow_id != first.workflow_id


def test_a_few_words_in_common_are_no_quote() -> None:
    server = Server()
    said = text(40)
    first = server.ask(SYSTEM["a"] + text(50), said)
    assert server.ask(SYSTEM["b"] + text(30) + said[:8] + text(30), text(40)).workflow_id != first.workflow_id


def test_nobody_quotes_what_another_namespace_has_said() -> None:
    server = Server()
    said = text(40)
    first = server.ask(SYSTEM["a"] + text(50), said, namespace="mine")
    assert server.ask(SYSTEM["b"] + said, text(40), namespace="yours").workflow_id != first.workflow_id


def test_workflows_that_are_over_are_not_gone_on_with_and_others_may_say_the_same() -> None:
    server = Server()
    task, said = text(50), text(40)
    first = server.ask(SYSTEM["a"] + task, said)
    server.threads.ended(first.workflow_id)
    assert len(server.quotes) == 0
    again = server.ask(SYSTEM["a"] + text(50), said)
    following = server.ask(SYSTEM["b"] + said, text(40))
    assert first.workflow_id != again.workflow_id == following.workflow_id


def test_what_is_remembered_is_bounded() -> None:
    quotes = Quotes(marks_of, most=100)
    server = Server(most=10)
    for number in range(300):
        quotes.said(marks_of(text(200), 6), (), "", f"workflow {number % 30}")
        quotes.quoted(marks_of(text(200), 6), "", f"agent {number}")
        server.ask(text(100), text(40))
    assert len(quotes) <= 100
    assert sum(map(len, quotes._said.values())) <= 100
    assert len(quotes._common) <= 256
    assert len(server.quotes) <= 10 * 40
    assert len(server.threads._agents) == len(server.threads) == 10
