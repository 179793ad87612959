"""Recordings: a program's facts become threads."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvflow.trace import Event, Join, LLMCall, Piece, Prompt, Spawn, ToolEnd, ToolStart, WorkflowEnd, programs
from kvflow.trace.importers.pauses import paced
from kvflow.trace.importers.threads import Timed
from kvflow.trace.messages import MessagePart, Usage, prompt_parts, usage
from kvflow.trace.record import WorkflowRecording


def part(name: str, tokens: int = 10, role: str = "user") -> MessagePart:
    return MessagePart(role, name, tokens)


def answer(name: str, tokens: int = 5) -> MessagePart:
    return MessagePart("assistant", name, tokens)


SYSTEM = part("system", 50, "system")


class Told(WorkflowRecording):
    """A recording that is told whole calls."""

    def call(self, step: str, start_s: float, end_s: float, *parts: MessagePart, said: str = "") -> None:
        name = f"{step}@{start_s}"
        self.asked(start_s, name, step, parts)
        self.answered(end_s, name, Usage(None, None, answer(said or name)))

    def done(self) -> list[Event]:
        found = list(self.events(100.0))
        bad: list[Any] = []
        assert len(list(programs(found, bad))) == 1
        assert bad == []
        return found


def calls(events: list[Event]) -> list[LLMCall]:
    return [event for event in events if isinstance(event, LLMCall)]


def shape(events: list[Event]) -> str:
    return " ".join(
        event.event + ("" if event.thread == "main" else f"@{event.thread}")
        for event in events
        if hasattr(event, "thread")
    )


def test_steps_one_after_another_are_one_thread_and_continue_their_own_calls() -> None:
    told = Told("w", "demo", 10.0, origin_s=10.0, tenant="me")
    told.step_started(10.0, "m", "main")
    told.step_started(10.5, "p", "planner", "m", fixed_messages=1)
    told.call("p", 11.0, 13.0, SYSTEM, part("task"), said="plan")
    told.tool_started(13.0, "x", "p", "search", "web")
    told.tool_ended(14.5, "x")
    told.call("p", 15.0, 16.0, SYSTEM, part("task"), answer("plan"), part("result"))
    told.step_ended(16.0, "p")
    events = told.done()
    assert shape(events) == "llm_call tool_start tool_end llm_call"
    first, second = calls(events)
    assert (first.agent, first.t, first.delay_s, first.llm_s) == ("planner", 1.0, 1.0, 2.0)
    assert (second.delay_s, second.prompt.base, second.prompt.keep_tokens) == (0.5, first.call, 65)
    assert (first.fixed_tokens, second.fixed_tokens) == (50, 50)
    assert next(event for event in events if isinstance(event, ToolEnd)).seconds == 1.5
    assert next((event.tool, event.verb) for event in events if isinstance(event, ToolStart)) == ("search", "web")
    assert events[-1] == WorkflowEnd(workflow="w", t=90.0)


def test_steps_that_overlap_are_threads_and_what_follows_them_joins_them() -> None:
    told = Told("w", "demo", 0.0)
    told.step_started(0.0, "m", "main")
    told.step_started(0.0, "p", "planner", "m")
    told.call("p", 0.0, 1.0, part("task"), said="plan")
    told.step_ended(1.0, "p")
    for number in range(3):
        told.step_started(1.0 + number / 10, f"w{number}", "worker", "m")
    for number in range(3):
        told.call(f"w{number}", 1.5, 3.0, part("task"), answer("plan"), part(str(number)))
        told.step_ended(3.0 + number, f"w{number}")
    told.step_started(6.0, "j", "judge", "m")
    told.call("j", 6.0, 7.0, part("all"))
    events = told.done()
    assert shape(events) == (
        "llm_call spawn spawn spawn llm_call@worker llm_call@worker#2 llm_call@worker#3 join join join llm_call"
    )
    planner, *workers, judge = calls(events)
    assert {(call.prompt.base, call.prompt.keep_tokens) for call in workers} == {(planner.call, 15)}
    assert [call.delay_s for call in workers] == [0.5, 0.5, 0.5]
    assert judge.prompt.base is None
    assert judge.delay_s == 3.0, "since the last answer of a worker, all that is waited for"


def test_what_went_by_before_and_between_tools_is_the_delay_of_the_next_call() -> None:
    told = Told("w", "demo", 0.0)
    told.step_started(0.0, "m", "main")
    told.call("m", 0.0, 10.0, part("task"))
    for name, start_s, end_s in (("x", 40.0, 41.0), ("y", 50.0, 55.0), ("z", 52.0, 60.0)):
        told.tool_started(start_s, name, "m", "search")
        told.tool_ended(end_s, name)
    told.call("m", 60.1, 61.0, part("task"), part("result"))
    events = told.done()
    assert [end.seconds for end in events if isinstance(end, ToolEnd)] == [1.0, 5.0, 8.0]
    assert [call.delay_s for call in calls(events)] == [0.0, 41.1], "of 50.1 s, 1 and 8 are those of tools"


def test_a_tool_has_its_whole_time_though_a_thread_that_ended_before_it_is_joined_in_it() -> None:
    spawn, join = Spawn(workflow="w", child="s"), Join(workflow="w", child="s")

    def call(name: str, thread: str = "main") -> LLMCall:
        prompt = Prompt(add=(Piece(name, 4),))
        return LLMCall(workflow="w", thread=thread, agent="a", call=name, prompt=prompt, output=name, output_tokens=1)

    start = ToolStart(workflow="w", agent="a", tool_call="x", tool="x")
    end = ToolEnd(workflow="w", tool_call="x", seconds=5.0)
    main = [Timed(0.0, spawn), Timed(0.0, call("c1"), 10.0), Timed(10.0, start), Timed(15.0, join), Timed(15.0, end)]
    threads = {"main": [*main, Timed(16.0, call("c2"), 17.0)], "s": [Timed(0.0, call("c3", "s"), 2.0)]}
    found = [timed.event for timed in paced(threads, 0.0, holders_known=True)["main"]]
    assert [event.seconds for event in found if isinstance(event, ToolEnd)] == [5.0]
    assert [event.delay_s for event in found if isinstance(event, LLMCall)] == [0.0, 1.0]


def test_a_tool_is_told_without_the_calls_that_ran_in_it() -> None:
    told = Told("w", "demo", 0.0)
    told.step_started(0.0, "m", "main")
    told.call("m", 0.0, 10.0, part("task"))
    told.tool_started(11.0, "x", "m", "research")
    told.step_started(12.0, "r", "researcher", "m")
    told.call("r", 12.0, 62.0, part("topic"))
    told.call("r", 63.0, 126.0, part("topic"), part("more"))
    told.step_ended(127.0, "r")
    told.tool_ended(131.0, "x")
    told.call("m", 131.5, 140.0, part("task"), part("found"))
    events = told.done()
    assert shape(events) == "llm_call tool_start llm_call llm_call tool_end llm_call"
    assert [call.delay_s for call in calls(events)] == [0.0, 2.0, 1.0, 0.5]
    assert [end.seconds for end in events if isinstance(end, ToolEnd)] == [5.0], "after the last of its answers"


def test_tools_side_by_side_are_told_without_what_ran_in_any_of_them() -> None:
    told = Told("w", "demo", 0.0)
    told.step_started(0.0, "m", "main")
    told.call("m", 0.0, 10.0, part("task"))
    for number in range(3):
        told.tool_started(10.0, f"x{number}", "m", "research")
        told.step_started(10.0, f"r{number}", "researcher", "m")
    for number in range(3):
        told.call(f"r{number}", 11.0 + number, 60.0 + 10 * number, part("topic"))
        told.step_ended(60.0 + 10 * number, f"r{number}")
        told.tool_ended(61.0 + 10 * number, f"x{number}")
    told.call("m", 90.0, 99.0, part("task"), part("found"))
    events = told.done()
    assert all((end.seconds or 0.0) <= 2.0 for end in events if isinstance(end, ToolEnd))
    assert calls(events)[-1].delay_s == 10.0, "since the last of the answers"


def test_calls_of_one_step_that_overlap_are_threads_too_and_do_not_see_each_other() -> None:
    told = Told("w", "demo", 0.0)
    told.step_started(0.0, "m", "main")
    for number in range(2):
        told.asked(0.1 * number, f"c{number}", "m", [SYSTEM, part(str(number))])
    for number in range(2):
        told.answered(2.0, f"c{number}", Usage(100, 20, answer("both")))
    told.call("m", 3.0, 4.0, SYSTEM, part("0"), answer("both"), part("more"))
    events = told.done()
    assert shape(events) == "spawn spawn llm_call@main#2 llm_call@main#3 join join llm_call"
    one, other, _ = calls(events)
    assert one.prompt.add[0].content.partition(".")[0] == other.prompt.add[0].content.partition(".")[0]
    assert (one.prompt.base, other.prompt.base) == (None, None)
    assert (one.prompt.tokens, one.output_tokens) == (100, 20)


def test_an_answer_nobody_saw_is_found_in_a_later_prompt() -> None:
    told = Told("w", "demo", 0.0)
    told.asked(0.0, "a", "m", [part("task")])
    told.asked(5.0, "b", "m", [part("task"), answer("streamed", 33), part("go on")])
    events = told.done()
    first, second = calls(events)
    assert (first.output_tokens, first.llm_s, second.delay_s) == (33, None, None)
    assert second.prompt.keep_tokens == 43
    assert second.output_tokens == 0
    assert first.agent == "main"


def test_a_workflow_that_never_ended_has_what_was_seen_of_it() -> None:
    told = Told("w", "demo", 0.0)
    told.step_started(0.0, "m", "main")
    told.tool_started(1.0, "x", "m", "search")
    told.asked(2.0, "a", "m", [])
    events = list(told.events())
    assert shape(events) == "tool_start tool_end"
    assert not any(isinstance(event, WorkflowEnd) for event in events)


def test_prompts_are_named_by_what_they_say() -> None:
    body = {
        "tools": [{"name": "search"}],
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "search"}}]},
        ],
    }
    parts = prompt_parts(body)
    assert [each.role for each in parts] == ["tools", "system", "user", "assistant"]
    assert len({each.name for each in parts}) == 4
    assert prompt_parts(body) == parts
    assert [each.tokens for each in prompt_parts({"prompt": "x" * 300})] == [80, 6]
    assert [each.tokens for each in prompt_parts({"text": ["ab", "cd"]})] == [1]
    assert [each.tokens for each in prompt_parts({"input_ids": [1, 2, 3]})] == [3]
    assert [each.tokens for each in prompt_parts({"input_ids": list(range(200))})] == [80, 80, 40]
    assert prompt_parts({"messages": [3]}) == prompt_parts({}) == []


def test_prompts_of_token_ids_that_begin_alike_share_their_beginning() -> None:
    ids = list(range(1000))
    told = Told("w", "demo", 0.0)
    told.call("m", 0.0, 1.0, *prompt_parts({"input_ids": ids[:400]}))
    told.call("m", 2.0, 3.0, *prompt_parts({"input_ids": [*ids[:400], *ids[900:]]}))
    first, second = calls(told.done())
    assert (second.prompt.base, second.prompt.keep_tokens) == (first.call, 400)


def test_answers_look_like_the_message_in_the_next_prompt() -> None:
    message = {"role": "assistant", "content": "hi", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    body = {"choices": [{"message": message}], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    assert usage(body) == Usage(7, 3, prompt_parts({"messages": [message]})[0])
    assert usage({"text": "hi", "meta_info": {"prompt_tokens": 7, "completion_tokens": 3}})[:2] == (7, 3)
    assert usage({"choices": [{"text": "hi"}]})[2] == MessagePart("text", usage({"text": "hi"})[2].name, 1)  # type: ignore[union-attr]
    for odd in ({}, {"choices": []}, {"choices": [3]}, {"usage": [1]}, {"usage": {"prompt_tokens": -1}}):
        assert usage(odd) == Usage()


def fact(kind: str, at_s: float, workflow: str = "w", **fields: Any) -> dict[str, Any]:
    return {"fact": kind, "workflow": workflow, "at_s": at_s, **fields}


def recorded() -> list[dict[str, Any]]:
    facts = []
    for number in range(2):
        workflow, at_s = f"w{number}", 100.0 + number
        facts += [
            fact("step_start", at_s, workflow, step="m", agent="main", type="demo"),
            fact("step_start", at_s, workflow, step="a", outer="m", agent="writer", fixed_tokens=40),
            fact("llm_start", at_s + 1, workflow, step="a", call="c", parts=[["user", "x", 60]]),
            fact("llm_end", at_s + 2, workflow, call="c", output_tokens=9, answer=["assistant", "y", 8]),
            fact("tool_start", at_s + 2, workflow, step="a", call="t", tool="run"),
            fact("tool_end", at_s + 3, workflow, call="t"),
            fact("step_end", at_s + 4, workflow, step="a"),
            fact("workflow_end", at_s + 5, workflow),
        ]
    return facts


def test_a_file_of_facts_is_a_trace(imported: Any) -> None:
    rows = sorted(recorded(), key=lambda row: row["at_s"])
    found = imported(*rows)
    assert [(start.workflow, start.type, start.t) for start in found.starts] == [
        ("w0", "demo", 0.0),
        ("w1", "demo", 1.0),
    ]
    assert [(call.agent, call.prompt.tokens, call.output_tokens, call.fixed_tokens) for call in found.calls] == [
        ("writer", 60, 9, 40)
    ] * 2
    assert len(found.programs) == 2


def test_what_workflows_say_alike_they_share_though_it_was_counted_with_something_else(imported: Any) -> None:
    def asked(workflow: str, at_s: float, prompt_tokens: int, *parts: tuple[str, str, int]) -> list[dict[str, Any]]:
        return [
            fact("step_start", at_s, workflow, step="a", agent="writer", fixed_messages=1),
            fact("llm_start", at_s, workflow, step="a", call="c", parts=parts),
            fact("llm_end", at_s + 1, workflow, call="c", prompt_tokens=prompt_tokens, output_tokens=9),
            fact("workflow_end", at_s + 2, workflow),
        ]

    system = ("system", "be brief", 50)
    found = imported(
        *asked("w0", 0.0, 90, system, ("user", "one", 10)), *asked("w1", 9.0, 140, system, ("user", "another", 40))
    )
    one, other = found.calls
    assert one.prompt.add[0] == other.prompt.add[0]
    assert (one.fixed_tokens, one.prompt.tokens) == (75, 90)
    assert (other.fixed_tokens, other.prompt.tokens) == (75, 140)


def test_facts_that_make_no_sense_are_reported(imported: Any) -> None:
    rows = recorded()
    odd = [fact("llm_end", 1.0, "unknown"), fact("dance", 1.0), fact("step_start", -1.0), {"fact": "step_end"}]
    found = imported(*rows[:3], *odd, *rows[3:])
    assert [each.line for each in found.bad] == [4, 5, 6, 7]
    assert len(found.programs) == 2


@pytest.mark.parametrize("seed", range(20))
def test_facts_lost_or_out_of_order_never_break_it(imported: Any, seed: int) -> None:
    chance = random.Random(seed)
    rows = recorded()
    for _ in range(4):
        del rows[chance.randrange(len(rows))]
    if seed % 2:
        chance.shuffle(rows)
    for program in imported(*rows, fact("step_start", 100.0)).programs:
        assert len(program.calls) <= 1
