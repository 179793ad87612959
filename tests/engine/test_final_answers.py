"""Answers to requests, and which of them end the workflow of a final one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from kvflow.graph import END
from kvflow.hints import Outcome, Status, envelope, step_action
from kvflow.patches import claim, commands_http, intake
from kvflow.patches.front import Admission, Front

PART = {"meta_info": {"finish_reason": None}}


def ended(kind: str, **more: Any) -> dict[str, Any]:
    return {"meta_info": {"finish_reason": {"type": kind}}, **more}


def final(workflow: str, **fields: Any) -> dict[str, Any]:
    return envelope([step_action(workflow_id=workflow, agent="a", final=True, **fields)])


async def ask(front: Front, hints: Any, *answers: Any, samples: int = 1) -> None:
    """One request, or a batch; after its answers SGLang raises an error, as it does where it has none."""
    single = isinstance(hints, dict)
    text = "x" if single else ["x"] * len(hints)
    obj = SimpleNamespace(kv_hints=hints, text=text, parallel_sample_num=samples, is_single=single)

    async def generate() -> AsyncIterator[Any]:
        for answer in answers:
            yield answer
        raise ValueError("refused")

    with suppress(ValueError):
        async for _ in intake._until_answered(generate, front, obj):
            pass
    await asyncio.sleep(0)


def live(front: Front) -> Iterator[str]:
    return (each["workflow_id"] for each in front.plane.view())


@pytest.mark.parametrize(
    ("answers", "over"),
    [
        ([ended("stop")], True),
        ([PART, ended("length")], True),
        ([PART, ended("abort")], False),
        ([PART], False),
        ([], False),
    ],
)
async def test_a_final_request_ends_its_workflow_once_all_of_its_answer_is_there(
    front: Front, answers: list[Any], over: bool
) -> None:
    await ask(front, final("w"), *answers)
    assert ("w" not in live(front)) == over
    assert not any(use["asked"] for each in front.plane.view() for use in each["next_use"].values())


@pytest.mark.parametrize("stream", [False, True])
async def test_of_a_batch_those_end_that_have_been_answered(front: Front, stream: bool) -> None:
    answers: list[Any] = [ended("abort"), ended("stop"), ended("stop")]
    if stream:
        answers = [each | {"index": index} for index, each in enumerate(answers)]
        await ask(front, [final("w0"), final("w1"), final("w2")], *reversed(answers[:2]))
        assert sorted(live(front)) == ["w0", "w2"]
    else:
        await ask(front, [final("w0"), final("w1"), final("w2")], answers)
        assert sorted(live(front)) == ["w0"]


async def test_one_of_several_answers_to_a_prompt_is_enough(front: Front) -> None:
    answers = [ended(kind) for kind in ("abort", "abort", "abort", "stop")]
    await ask(front, [final("w0"), final("w1")], answers, samples=2)
    assert [*live(front)] == ["w0"]


async def test_who_has_had_a_part_of_one_of_several_streamed_answers_has_not_given_up(front: Front) -> None:
    """A use of the context, which is not the next one's, who asks again."""
    turns = {}
    for name, answers in (("heard", [PART | {"index": 3}]), ("given up", [PART | {"index": 0}])):
        await ask(front, [final("other"), envelope([step_action(workflow_id=name, agent="a")])], *answers, samples=2)
        workflow = front.plane._workflows.get(name)
        assert workflow is not None
        turns[name] = workflow.contexts["a"].turns
    assert turns == {"heard": 1, "given up": 0}


async def test_the_last_answer_to_an_earlier_workflow_does_not_end_one_of_the_same_id(front: Front) -> None:
    earlier = front.admit(final("w"))
    await front.hints(envelope([step_action(workflow_id="w", agent=END)]))
    later = front.admit(final("w"))
    front.answered(earlier, complete=True, heard=True)
    assert front.plane.view()[0]["next_use"]["a"]["asked"]
    front.answered(later, complete=True, heard=True)
    assert [*live(front)] == []


@pytest.mark.parametrize(("requests", "samples"), [(1, 1), (1, 3), (2, 1), (2, 3)])
def test_every_sample_brings_what_became_of_the_commands_of_its_request(
    front: Front, monkeypatch: pytest.MonkeyPatch, requests: int, samples: int
) -> None:
    admissions = [Admission(envelope=envelope([]) | {"place": place}) for place in range(requests)]

    def outcomes(_: Front, admission: Admission) -> list[Outcome]:
        assert admission.envelope is not None
        place = str(admission.envelope["place"])
        return [Outcome(action_id=place, action_type="kvflow.pin", status=Status.ACCEPTED)]

    monkeypatch.setattr(commands_http, "outcomes", outcomes)
    answers = [ended("stop") for _ in range(requests * samples)]
    intake._with_outcomes(front, answers, admissions)
    told = [each["meta_info"]["kvflow"]["outcomes"][0]["action_id"] for each in answers]
    assert told == [str(place) for place in range(requests) for _ in range(samples)]


def test_where_not_all_of_a_batch_was_taken_it_is_answered_nevertheless(front: Front) -> None:
    answers = [ended("stop") for _ in range(3)]
    assert intake._with_outcomes(front, answers, [Admission(), Admission()]) is answers


async def test_a_request_whose_hints_cannot_be_passed_on_is_not_in_flight(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(claim, "attach", fail)
    with pytest.raises(RuntimeError, match="no"):
        front.admit(envelope([step_action(workflow_id="w", agent="a")]))
    assert not any(use["asked"] for each in front.plane.view() for use in each["next_use"].values())
