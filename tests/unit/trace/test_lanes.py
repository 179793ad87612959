"""Which thread of a recording goes on with what, where several run side by side."""

from __future__ import annotations

from kvflow.trace import Event, Join, Spawn
from kvflow.trace.messages import MessagePart, Usage
from tests.unit.trace.test_record import SYSTEM, Told, answer, calls, part

Asked = tuple[float, float, str, list[MessagePart]]
"""When a step begins and ends, its agent, and the prompt of its one call."""


def recorded(*steps: Asked) -> list[Event]:
    """Steps within one, each with a call that takes all of its time and is answered with its agent and its start."""
    told = Told("w", "demo", 0.0)
    told.step_started(0.0, "m", "main")
    moments = [(step[1], 0, step) for step in steps] + [(step[0], 1, step) for step in steps]
    for at_s, begins, (start_s, _, agent, parts) in sorted(moments, key=lambda moment: moment[:2]):
        name = f"{agent}@{start_s:g}"
        if begins:
            told.step_started(at_s, name, agent, "m")
            told.asked(at_s, name, name, parts)
        else:
            told.answered(at_s, name, Usage(None, None, answer(name)))
            told.step_ended(at_s, name)
    return told.done()


def by_thread(events: list[Event]) -> dict[str, list[tuple[str, float | None]]]:
    found: dict[str, list[tuple[str, float | None]]] = {}
    for call in calls(events):
        found.setdefault(call.thread, []).append((call.agent, call.delay_s))
    return found


def alone(start_s: float, end_s: float, agent: str) -> Asked:
    return start_s, end_s, agent, [part(f"{agent} at {start_s:g}")]


def test_the_steps_of_a_branch_wait_for_each_other() -> None:
    first = [alone(0.0, 2.0, "plan"), alone(2.5, 5.0, "code"), alone(5.5, 8.0, "review")]
    other = [alone(0.5, 3.0, "plan"), alone(3.5, 7.0, "code"), alone(7.5, 9.0, "review")]
    events = recorded(*first, *other)
    assert by_thread(events) == {
        "plan": [("plan", 0.0), ("code", 0.5), ("review", 0.5)],
        "plan#2": [("plan", 0.5), ("code", 0.5), ("review", 0.5)],
    }
    assert [type(event) for event in events if isinstance(event, Spawn | Join)] == [Spawn, Spawn, Join, Join]


def test_a_step_that_begins_as_another_ends_goes_on_with_it() -> None:
    assert set(by_thread(recorded(alone(0.0, 2.0, "a"), alone(0.0, 9.0, "b"), alone(2.0, 3.0, "c")))) == {"a", "b"}


def test_a_conversation_is_gone_on_with_where_it_was() -> None:
    """Although another thread has ended later."""
    asked = {task: [SYSTEM, part(task)] for task in ("one", "two")}
    begun = [(0.0, 2.0, "writer", asked["one"]), (0.0, 3.0, "critic", asked["two"]), alone(0.0, 9.0, "watcher")]
    again = [
        (4.0, 5.0, "writer", [*asked["one"], answer("writer@0"), part("more")]),
        (4.5, 6.0, "critic", [*asked["two"], answer("critic@0"), part("more")]),
    ]
    events = recorded(*begun, *again)
    assert [agent for agent, _ in by_thread(events)["writer"]] == ["writer", "writer"]
    assert [agent for agent, _ in by_thread(events)["critic"]] == ["critic", "critic"]
    assert [call.prompt.keep_tokens for call in calls(events)[-2:]] == [65, 65]


def test_a_system_prompt_in_common_makes_no_conversation() -> None:
    """Two items go through the same agents; the first one's coder has said what the second one's is told, too."""
    told = [SYSTEM, part("task")]
    events = recorded(
        (0.0, 1.0, "code", [*told, part("one")]),
        (0.0, 4.0, "plan", [part("two")]),
        alone(0.0, 9.0, "watcher"),
        (4.1, 5.0, "code", [*told, part("two")]),
    )
    assert [agent for agent, _ in by_thread(events)["plan"]] == ["plan", "code"]


def test_what_all_threads_have_from_before_says_nothing() -> None:
    opening = [SYSTEM, part("task")]
    begun = [*opening, answer("main@0"), part("go on")]
    events = recorded(
        (0.0, 1.0, "main", opening),
        (2.0, 3.0, "main", [part("aside")]),
        (2.0, 5.0, "other", [part("else")]),
        alone(2.0, 9.0, "watcher"),
        (5.5, 6.0, "main", begun),
    )
    last = calls(events)[-1]
    assert (last.thread, last.prompt.keep_tokens) == ("other", 65)
