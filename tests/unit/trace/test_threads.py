"""Threads in one order: nothing before what it waits for, whatever the times say."""

from __future__ import annotations

from kvflow.trace import Join, LLMCall, Piece, Prompt, Spawn, ThreadEvent
from kvflow.trace.importers.threads import Timed, interleave


def call(name: str, at_s: float | None, thread: str = "main") -> Timed:
    prompt = Prompt(add=(Piece(name, 1),))
    return Timed(
        at_s, LLMCall(workflow="w", thread=thread, agent="a", call=name, prompt=prompt, output=name, output_tokens=1)
    )


def spawn(child: str, at_s: float | None, thread: str = "main") -> Timed:
    return Timed(at_s, Spawn(workflow="w", thread=thread, child=child))


def join(child: str, at_s: float | None, thread: str = "main") -> Timed:
    return Timed(at_s, Join(workflow="w", thread=thread, child=child))


def order(threads: dict[str, list[Timed]]) -> list[str]:
    def name(event: ThreadEvent) -> str:
        return event.call if isinstance(event, LLMCall) else f"{event.event} {event.child}"  # type: ignore[union-attr]

    return [name(event) for event in interleave(threads)]


def test_events_stand_in_the_order_of_their_times() -> None:
    threads = {
        "main": [call("a", 0), spawn("s", 1), call("b", 3), join("s", 6)],
        "s": [call("x", 2, "s"), call("y", 5, "s")],
    }
    assert order(threads) == ["a", "spawn s", "x", "b", "y", "join s"]


def test_a_join_waits_and_a_thread_does_not_run_before_it_is_spawned() -> None:
    threads = {"main": [call("a", 5), spawn("s", 6), join("s", 7), call("b", 8)], "s": [call("x", 1, "s")]}
    assert order(threads) == ["a", "spawn s", "x", "join s", "b"]
    late = {"main": [spawn("s", 0), join("s", 1), call("b", 2)], "s": [call("x", 50, "s"), call("y", 60, "s")]}
    assert order(late) == ["spawn s", "x", "y", "join s", "b"]


def test_unknown_times_keep_the_order_of_threads_and_nested_threads_work() -> None:
    threads = {
        "main": [spawn("s", None), spawn("t", None), join("s", None), join("t", None)],
        "s": [spawn("u", None, "s"), join("u", None, "s"), call("x", None, "s")],
        "t": [call("y", None, "t")],
        "u": [call("z", None, "u")],
        "never spawned": [call("lost", None, "never spawned")],
    }
    found = order(threads)
    assert "lost" not in found
    assert found.index("spawn s") < found.index("z") < found.index("join u") < found.index("x") < found.index("join s")
    assert found[-1] == "join t"


def test_an_empty_child_can_be_joined() -> None:
    assert order({"main": [spawn("s", 0), join("s", 0)], "s": []}) == ["spawn s", "join s"]
    assert order({"main": [spawn("s", 0), join("s", 0)]}) == ["spawn s", "join s"]
