"""Threads wait for what their trace says, and tools for what ran in them."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any, ClassVar

import pytest

from kvflow.graph import END
from kvflow.hints import decode_envelope, envelope
from kvflow.hints.models import SEGMENTS_TYPE
from kvflow.replay.arms import Arm
from kvflow.replay.connection import Answer, Connection
from kvflow.replay.contents import Contents
from kvflow.replay.player import Player, arrive
from kvflow.replay.record import CallRecord, Round
from kvflow.replay.work import Pace
from kvflow.trace import (
    MAIN_THREAD,
    Join,
    LLMCall,
    Piece,
    Program,
    Prompt,
    Spawn,
    ThreadEvent,
    ToolEnd,
    ToolStart,
    WorkflowStart,
)

ANSWER_S = 0.2


class Slow(Connection):
    """A server that takes its time for every call."""

    said: ClassVar[list[dict[str, Any]]] = []
    invented: ClassVar[array[int]] = array("q")

    def say(self, workflow_id: str, action: dict[str, Any]) -> None:
        self.said.append(action)

    async def ask(self, prompt: Any, answer: array[int], hints: Any, seen: CallRecord, *_: Any) -> Answer:
        self.said.extend(hints)
        await asyncio.sleep(ANSWER_S)
        seen.ended_s = self.now_s()
        return Answer(tokens=answer or self.invented, cached={})


def call(name: str, thread: str = MAIN_THREAD) -> LLMCall:
    prompt = Prompt(add=(Piece(name, 4),))
    return LLMCall(workflow="w", thread=thread, agent="a", call=name, prompt=prompt, output=f"-{name}", output_tokens=2)


def tool(name: str, seconds: float | None = None) -> ToolStart | ToolEnd:
    if seconds is None:
        return ToolStart(workflow="w", agent="a", tool_call=name, tool=name)
    return ToolEnd(workflow="w", tool_call=name, seconds=seconds)


def played(main: list[ThreadEvent], **others: list[ThreadEvent]) -> Round:
    return played_program(Program(start=WorkflowStart(workflow="w", type="t"), threads={MAIN_THREAD: main, **others}))


def played_program(program: Program, workflow_id: str = "w", *, free: bool = True, reuse: bool = False) -> Round:
    Slow.said.clear()
    seen = Round(arm="a", index=0, seed=0)

    async def play() -> None:
        arm, began_s = Arm(name="a", hints=reuse, reuse=reuse), asyncio.get_running_loop().time()
        connection = Slow(None, arm, free=free, began_s=began_s)  # type: ignore[arg-type]
        await Player(connection, seen, Contents(), Pace(), 16).play(program, workflow_id, 0.0)

    asyncio.run(play())
    return seen


def test_a_round_takes_from_the_first_arrival_to_the_last_end() -> None:
    program = Program(start=WorkflowStart(workflow="w", type="t"), threads={MAIN_THREAD: [call("c")]})
    seen = Round(arm="a", index=0, seed=0)

    async def play() -> float:
        connection = Slow(None, Arm(name="a"), free=True, began_s=asyncio.get_running_loop().time())  # type: ignore[arg-type]
        player = Player(connection, seen, Contents(), Pace(), 16)
        await arrive(player, [(0.3, program, "first"), (0.4, program, "second")], None)
        return connection.now_s()

    ended_s = asyncio.run(play())
    assert seen.span_s == pytest.approx(ended_s - 0.3, abs=0.05)
    assert len(seen.workflows) == 2


def asked_s(seen: Round, name: str) -> float:
    began_s = min(each.asked_s for each in seen.calls)
    return next(each.asked_s for each in seen.calls if each.call == name) - began_s


def test_a_tool_that_has_waited_for_a_thread_takes_its_own_time_after_it() -> None:
    spawn, join = Spawn(workflow="w", child="s"), Join(workflow="w", child="s")
    main = [call("c1"), tool("x"), spawn, tool("y"), join, tool("x", 0.1), tool("y", 0.4), call("c2")]
    seen = played(main, s=[call("c3", "s"), call("c4", "s")])
    assert 0.69 < asked_s(seen, "c2") < 0.95, "two answers after the first, and one beside it from its start on"


def test_a_tool_takes_its_own_time_from_the_end_of_its_thread_on_though_another_is_waited_for_longer() -> None:
    spawn, join = Spawn(workflow="w", child="s"), Join(workflow="w", child="s")
    main = [call("c1"), tool("x"), spawn, tool("y"), tool("y", 0.4), join, tool("x", 0.25), call("c2")]
    assert 0.64 < asked_s(played(main, s=[call("c3", "s")]), "c2") < 0.8


def test_a_tool_that_has_waited_for_an_answer_takes_its_own_time_after_it() -> None:
    seen = played([call("c1"), tool("x"), call("c2"), tool("x", 0.1), call("c3")])
    assert 0.49 < asked_s(seen, "c3") < 0.9


def test_a_tool_takes_its_own_time_though_what_it_waited_for_was_over_before_it_began() -> None:
    spawn, join = Spawn(workflow="w", child="s"), Join(workflow="w", child="s")
    main = [spawn, call("c1"), call("c2"), tool("x"), join, tool("x", 0.5), call("c3")]
    assert asked_s(played(main, s=[call("c4", "s")]), "c3") >= 2 * ANSWER_S + 0.5


def test_a_thread_is_joined_that_another_one_spawns_later() -> None:
    spawns = [call("c2", "a"), Spawn(workflow="w", thread="a", child="b")]
    main = [Spawn(workflow="w", child="a"), Join(workflow="w", child="b"), call("c1")]
    assert asked_s(played(main, a=spawns, b=[call("c3", "b")]), "c1") >= 2 * ANSWER_S


def test_a_workflow_is_over_when_all_of_its_threads_are() -> None:
    played([Spawn(workflow="w", child="s"), call("m")], s=[tool("t"), tool("t", 2 * ANSWER_S), call("x", "s")])
    ends = [said["payload"]["workflow_id"] for said in Slow.said if said["payload"]["agent"] == END]
    assert ends == ["w/s", "w"]


def test_what_no_trace_says_does_not_tell_answers_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call without a recorded answer is made for its prompt; on a GPU rounding decides what comes of it."""

    def answers(*, free: bool, invented: int) -> str:
        monkeypatch.setattr(Slow, "invented", array("q", [invented]))
        calls = [call("1"), call("2").model_copy(update={"output_tokens": 0})]
        return played_program(
            Program(start=WorkflowStart(workflow="w", type="t"), threads={MAIN_THREAD: calls}), free=free
        ).answers

    assert answers(free=False, invented=1) == answers(free=False, invented=2) != ""
    assert answers(free=True, invented=1) != answers(free=True, invented=2)


def test_names_longer_than_hints_may_have_are_cut() -> None:
    long = "n" * 300
    ask = call("c1").model_copy(update={"thread": long, "agent": long})
    tools = [ToolStart(workflow="w", agent=long, tool_call=long, tool=long), ToolEnd(workflow="w", tool_call=long)]
    threads = {MAIN_THREAD: [Spawn(workflow="w", child=long)], long: [ask, *tools]}
    seen = played_program(Program(start=WorkflowStart(workflow="w", type=long), threads=threads), "w" * 256)
    assert len(seen.calls) == 1
    assert decode_envelope(envelope(Slow.said)).outcomes == ()


def test_every_text_of_a_prompt_but_the_fixed_one_may_be_reused() -> None:
    """What is left of a context keeps its texts, cut where it is, and an answer is one of them."""
    begin = Prompt(add=(Piece("role", 100), Piece("task", 80)))
    first = LLMCall(workflow="w", agent="a", call="1", prompt=begin, output="said", output_tokens=70, fixed_tokens=100)
    goes_on = Prompt(base="1", keep_tokens=230, add=(Piece("more", 90),))
    second = first.model_copy(update={"call": "2", "prompt": goes_on})
    program = Program(start=WorkflowStart(workflow="w", type="t"), threads={MAIN_THREAD: [first, second]})
    played_program(program, free=False, reuse=True)
    asked = [action["payload"]["ranges"] for action in Slow.said if action["action_type"] == SEGMENTS_TYPE]
    places = [[(text["start_tokens"], text["end_tokens"]) for text in ranges] for ranges in asked]
    assert places == [[(100, 180)], [(100, 180), (180, 230), (230, 320)]]
    assert decode_envelope(envelope(Slow.said[:2])).outcomes == ()
    played_program(program, free=False)
    assert not [action for action in Slow.said if action["action_type"] == SEGMENTS_TYPE]
