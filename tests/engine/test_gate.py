"""Which requests a scheduler sees while it forms a batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvflow.engine import Coordinator, PromptClaim
from kvflow.patches.admission import Gate
from kvflow.patches.claim import attach, claim_of
from kvflow.policy import AdmissionMemory


@pytest.fixture
def gate() -> Gate:
    """Of a device for two contexts of 40,000 tokens."""
    watch = SimpleNamespace(memory=lambda: AdmissionMemory(device_tokens=100_000), digests=lambda req: [])
    core = SimpleNamespace(unit_tokens=64)
    coordinator = Coordinator("cost")
    cache = SimpleNamespace(coordinator=coordinator, journal=None, watch=watch, tree_core=core, follows=True)
    return Gate(cast("Any", cache))


def request(name: str, workflow: str | None = None, fixed_tokens: int | None = None) -> SimpleNamespace:
    claim = PromptClaim(workflow_id=workflow or "", workflow_type="t", agent="a", fixed_tokens=fixed_tokens)
    return SimpleNamespace(
        rid=name,
        _kvflow_claim=claim if workflow else None,
        origin_input_ids=[0] * 40_000,
        output_ids=[0],
        finished=lambda: True,
        finished_reason=None,
        to_finish=None,
    )


def seen(gate: Gate, scheduler: SimpleNamespace, *, starts: int = 0, lost: int = 0, running: Any = None) -> list[str]:
    """What a pass sees, of which the first few start, and the next few are given up."""
    held = gate.hold(scheduler, running)
    there = [req.rid for req in scheduler.waiting_queue]
    batch = SimpleNamespace(reqs=scheduler.waiting_queue[:starts]) if starts else None
    del scheduler.waiting_queue[: starts + lost]
    gate.release(scheduler, held, batch)
    return there


@pytest.mark.parametrize(("declared", "fixed"), [(2**31, 100), (40, 40), (None, None)])
def test_a_fixed_prompt_is_no_longer_than_its_prompt(declared: int | None, fixed: int | None) -> None:
    claim = PromptClaim(workflow_id="w", workflow_type="t", agent="a", fixed_tokens=declared)
    carried = attach({"actions": []}, claim)["actions"]
    hints = SimpleNamespace(actions=[SimpleNamespace(**action) for action in carried])
    found = claim_of(SimpleNamespace(kv_hints=hints, origin_input_ids=[0] * 100))
    assert found is not None
    assert found.fixed_tokens == fixed


def test_a_queue_without_hints_is_not_touched(gate: Gate) -> None:
    queue = [request("x"), request("y")]
    scheduler = SimpleNamespace(waiting_queue=queue)
    assert seen(gate, scheduler) == ["x", "y"]
    assert scheduler.waiting_queue is queue
    assert gate.late(request("z", "w"))
    assert not gate.late(request("z"))


def test_who_does_not_fit_is_out_of_sight_and_stays_in_its_place(gate: Gate) -> None:
    requests = [request("x"), *(request(name, name) for name in "abc")]
    scheduler = SimpleNamespace(waiting_queue=requests)
    assert seen(gate, scheduler, starts=3) == ["x", "a", "b"]
    assert [req.rid for req in scheduler.waiting_queue] == ["c"]
    scheduler.waiting_queue += [request("y")]
    assert seen(gate, scheduler) == ["y"]
    assert [req.rid for req in scheduler.waiting_queue] == ["c", "y"]
    for started in requests[1:3]:
        gate.left(started, [])
    assert seen(gate, scheduler, starts=2) == ["c", "y"]
    gate.left(requests[3], [])
    assert gate.programs.at_rest


def test_who_has_been_refused_is_told_at_once(gate: Gate) -> None:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    requests = [request(name, name) for name in "abcd"]
    requests[3].to_finish = FINISH_ABORT("too long")
    scheduler = SimpleNamespace(waiting_queue=requests)
    assert seen(gate, scheduler, starts=2) == ["a", "b", "d"]
    refused = request("e", "e")
    assert gate.late(refused)
    refused.to_finish = requests[3].to_finish
    assert not gate.late(refused)


def test_who_gave_up_while_held_is_forgotten(gate: Gate) -> None:
    scheduler = SimpleNamespace(waiting_queue=[request(name, name) for name in "abc"])
    seen(gate, scheduler, starts=2)
    scheduler.waiting_queue = []
    assert seen(gate, scheduler) == []
    assert list(gate.programs.waiting()) == []


def test_who_is_given_up_in_a_pass_has_not_started(gate: Gate) -> None:
    scheduler = SimpleNamespace(waiting_queue=[request(name, name) for name in "abc"])
    assert seen(gate, scheduler, starts=1, lost=1) == ["a", "b"]
    assert seen(gate, scheduler) == ["c"], "there is room again"


def test_nobody_waits_for_what_a_beam_search_computes(gate: Gate) -> None:
    requests = [request(name, name, fixed_tokens=1000) for name in "ab"]
    scheduler = SimpleNamespace(waiting_queue=[*requests])
    assert seen(gate, scheduler) == ["a"], "which computes it for both"
    beams = [request(name, name, fixed_tokens=1000) for name in "cd"]
    for each in beams:
        each.skip_radix_cache_insert = True
    for req in requests:
        gate.left(req, [])
    scheduler.waiting_queue = [*beams]
    assert seen(gate, scheduler) == ["c", "d"]


def test_nobody_is_late_for_a_gate_that_never_looks(gate: Gate) -> None:
    assert not gate.late(request("a", "a")), "SGLang does not call it here, and nobody would be let in"


def test_a_pause_of_all_generation_does_not_teach_that_less_fits(gate: Gate) -> None:
    running = request("a", "a")
    scheduler = SimpleNamespace(waiting_queue=[running], _engine_paused=False)
    seen(gate, scheduler, starts=1)
    scheduler._engine_paused = True
    running.finished = lambda: False
    share = gate.programs._margin.share
    gate.left(running, [])
    assert gate.programs._margin.share == share
    scheduler._engine_paused = False
    scheduler.waiting_queue = [running]
    assert seen(gate, scheduler, starts=1) == ["a"]
    gate.left(running, [])
    assert gate.programs._margin.share > share


def test_what_a_retracted_request_has_generated_is_part_of_what_it_asks_with(gate: Gate) -> None:
    running = request("a", "a")
    scheduler = SimpleNamespace(waiting_queue=[running], _engine_paused=False)
    seen(gate, scheduler, starts=1)
    running.finished, running.output_ids = (lambda: False), [0] * 5_000
    gate.left(running, [])
    scheduler.waiting_queue = [running]
    assert seen(gate, scheduler) == ["a"]
    assert gate.programs._requests["a"].tokens == 45_000


@pytest.mark.parametrize("lost", ["what it goes by", "itself"])
def test_once_given_up_the_queue_is_not_touched_and_nobody_is_late(gate: Gate, lost: str) -> None:
    queue = [request(name, name) for name in "abc"]
    scheduler = SimpleNamespace(waiting_queue=queue)
    assert seen(gate, scheduler) == ["a", "b"]
    assert gate.programs.held == 1
    if lost == "itself":
        gate._guard.failures_left = 0
    else:
        cast("Any", gate._cache).follows = False
    queue = scheduler.waiting_queue
    for _ in range(2):
        assert seen(gate, scheduler) == ["a", "b", "c"]
        assert scheduler.waiting_queue is queue
    assert gate.programs.held == 0
    assert not gate.late(request("z", "w"))
    assert not gate.refused(request("a", "a"))
    gate.left(request("a", "a"), [])
