"""While SGLang's batch is full it lets nobody in, and the gate looks at its queue only when there is something new."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvflow.patches.admission import Gate, is_shut
from kvflow.patches.batch import form
from tests.engine.test_gate import gate, request, seen

__all__ = ["gate"]


class Running:
    """A batch that runs."""

    def __init__(self, requests: int = 2, *, full: bool = True) -> None:
        self.reqs: list[Any] = [None] * requests
        self.batch_is_full = full

    def is_empty(self) -> bool:
        return not self.reqs


def scheduler(*names: str, **changed: Any) -> SimpleNamespace:
    return SimpleNamespace(
        waiting_queue=[request(name, name) for name in names],
        chunked_req=changed.get("chunked_req"),
        enable_priority_preemption=changed.get("preemption", False),
        is_hybrid_swa=changed.get("swa", False),
    )


@pytest.fixture
def looks(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the gate has looked at so far: whole queues."""
    looks: list[list[str]] = []
    arrange: Any = gate.programs.arrange
    monkeypatch.setattr(
        gate.programs, "arrange", lambda waiting, memory: looks.append(waiting) or arrange(waiting, memory)
    )
    return looks


def at(gate: Gate, now_s: float) -> None:
    gate._cache.coordinator.tick(now_s)


def test_while_the_batch_is_full_the_queue_is_looked_at_four_times_a_second(gate: Gate, looks: list[list[str]]) -> None:
    server = scheduler(*"abcd")
    assert seen(gate, server, starts=2) == ["a", "b"]
    for step in range(100):
        at(gate, step / 100)
        seen(gate, server, running=Running())
    assert [req.rid for req in server.waiting_queue] == ["c", "d"]
    assert len(looks) == 4


@pytest.mark.parametrize(
    ("changed", "running"),
    [
        ({}, Running(full=False)),
        ({}, Running(0)),
        ({}, None),
        ({"chunked_req": object()}, Running()),
        ({"preemption": True}, Running()),
        ({"swa": True}, Running()),
    ],
)
def test_where_sglang_looks_at_the_queue_so_does_the_gate(
    gate: Gate, looks: list[list[str]], changed: dict[str, Any], running: Running | None
) -> None:
    server = scheduler(*"abcd", **changed)
    seen(gate, server, starts=2)
    for _ in range(10):
        assert seen(gate, server, running=running) == []
    assert len(looks) == 11


def test_who_comes_meanwhile_is_known_at_once(gate: Gate) -> None:
    server = scheduler(*"abc")
    seen(gate, server, starts=2)
    for name in "xy":
        seen(gate, server, running=Running())
        server.waiting_queue.append(request(name, name))
        seen(gate, server, running=Running())
        assert name in gate.programs.waiting()


def test_who_comes_as_another_goes_is_known_at_once(gate: Gate) -> None:
    server = scheduler(*"abcd")
    seen(gate, server, starts=2)
    seen(gate, server, running=Running())
    server.waiting_queue = [server.waiting_queue[1], request("e", "e")]
    seen(gate, server, running=Running())
    assert list(gate.programs.waiting()) == ["d", "e"]


def test_who_gives_up_meanwhile_is_forgotten_at_once(gate: Gate) -> None:
    server = scheduler(*"abcd")
    seen(gate, server, starts=2)
    seen(gate, server, running=Running())
    del server.waiting_queue[0]
    seen(gate, server, running=Running())
    assert list(gate.programs.waiting()) == ["d"]


def test_when_one_has_left_the_batch_the_next_is_let_in_at_once(gate: Gate) -> None:
    requests = [request(name, name) for name in "abc"]
    server = scheduler()
    server.waiting_queue = [*requests]
    seen(gate, server, starts=2)
    seen(gate, server, running=Running())
    gate.left(requests[0], [])
    assert seen(gate, server, running=Running(1, full=False)) == ["c"]


def test_who_starts_although_the_batch_was_full_is_known_to_run(gate: Gate) -> None:
    server = scheduler(*"abc")
    seen(gate, server, starts=2)
    assert seen(gate, server, running=Running()) == ["c"]
    assert seen(gate, server, starts=1, running=Running()) == ["c"]
    assert not [*gate.programs.waiting()]


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("requests", [0, 1])
@pytest.mark.parametrize("preemption", [True, False])
@pytest.mark.parametrize("swa", [True, False])
@pytest.mark.parametrize("chunked_req", [None, object()])
def test_sglang_looks_at_nobody_where_it_is_taken_to_be_shut(
    full: bool, requests: int, preemption: bool, swa: bool, chunked_req: object | None
) -> None:
    from sglang.srt.managers.scheduler import Scheduler

    server = scheduler("a", chunked_req=chunked_req, preemption=preemption, swa=swa)
    server.grammar_manager = SimpleNamespace(has_waiting_grammars=lambda: False)
    running: Any = Running(requests, full=full)
    original: Any = getattr(Scheduler._get_new_batch_prefill_raw, "__wrapped__", Scheduler._get_new_batch_prefill_raw)
    shut = is_shut(server, running)
    if shut:
        assert original(server, None, running) == (None, running)
    else:
        with pytest.raises(AttributeError):  # it wants more of the scheduler than this one has
            original(server, None, running)


@pytest.mark.parametrize("by_name", [True, False])
def test_the_gate_is_told_which_batch_runs(gate: Gate, looks: list[list[str]], by_name: bool) -> None:
    server = scheduler(*"abc")
    server.tree_cache = SimpleNamespace(gate=gate)
    running = Running()

    def original(_self: Any, _delayer: Any, running_batch: Any) -> tuple[None, Any]:
        return None, running_batch

    for _ in range(5):
        result = (
            form(original, server, None, **{"running_batch": running})
            if by_name
            else form(original, server, None, running)
        )
        assert result == (None, running)
    assert len(looks) == 1
