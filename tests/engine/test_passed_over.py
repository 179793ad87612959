"""How often a request is passed over because its context is still being loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.schedule_policy import AddReqResult

from kvflow.engine import Counters, Room
from kvflow.patches import prefetch
from kvflow.patches.guard import Guard
from kvflow.patches.prefetch import Prefetch


@pytest.fixture
def passing() -> Prefetch:
    """All that it needs to pass over a request whose context should be loaded first."""
    made = object.__new__(Prefetch)
    made._load, made._guard = None, Guard("prefetch")
    made._asks = lambda req: True  # type: ignore[method-assign]
    made._cache = SimpleNamespace(accounting=SimpleNamespace(counters=Counters()))  # type: ignore[assignment]
    return made


def test_a_request_is_passed_over_only_so_often(passing: Prefetch) -> None:
    for _ in range(2):
        req = SimpleNamespace()
        assert sum(passing.passes_over(req, busy=True) for _ in range(2 * prefetch._PATIENCE)) == prefetch._PATIENCE
    assert passing._cache.accounting.counters.passed_over == 2 * prefetch._PATIENCE


def test_nothing_is_passed_over_while_nothing_else_runs(passing: Prefetch) -> None:
    assert not passing.passes_over(SimpleNamespace(), busy=False)


def test_what_has_left_the_host_while_its_request_waited_is_not_loaded() -> None:
    made = object.__new__(Prefetch)
    core = SimpleNamespace(find=lambda node_id: None, evictable_host_leaves={1})
    made._cache = SimpleNamespace(tree_core=core)  # type: ignore[assignment]
    made._asking = SimpleNamespace(best_match_node=7)
    made.planner = SimpleNamespace(next=lambda room, device: None)  # type: ignore[assignment]
    assert made._choose(lambda: Room(free_tokens=100)) is None
    assert made._asking is None


def test_decoding_does_not_wait_for_the_load_its_prefill_waited_for() -> None:
    batch = SimpleNamespace(hicache_consumer_index=2)
    prefetch.decode(None, batch)
    assert batch.hicache_consumer_index == -1


class Adder:
    """Of SGLang's adder what says how much room there is."""

    preempt_list = ()

    def __init__(self, room_tokens: int, *, running: bool, lets_pass: bool) -> None:
        self.room_tokens = room_tokens
        self.can_run_list: list[Any] = []
        self.running_batch = SimpleNamespace(is_empty=lambda: not running)
        self.gate = SimpleNamespace(late=lambda req: False, lets_pass=lambda req: lets_pass, tried_all=True)
        self.tree_cache = SimpleNamespace(gate=self.gate, prefetch=None)

    def add_one_req(self, tokens: int) -> AddReqResult:
        if not tokens:
            return AddReqResult.OTHER
        if tokens <= self.room_tokens:
            self.room_tokens -= tokens
            self.can_run_list.append(tokens)
        elif self.room_tokens:
            return AddReqResult.NO_TOKEN
        return AddReqResult.CONTINUE if self.room_tokens else AddReqResult.NO_TOKEN

    def add(self, *tokens: int) -> list[int]:
        """Go through requests as SGLang does, and say which run."""
        for each in tokens:
            if self.add_one_req(each) is not AddReqResult.CONTINUE:
                break
        return self.can_run_list


@pytest.mark.parametrize(
    ("running", "lets_pass", "run"),
    [(True, True, [5, 3, 2]), (True, False, [5]), (False, True, [5, 3, 2])],
)
def test_others_go_before_who_finds_no_room(running: bool, lets_pass: bool, run: list[int]) -> None:
    made = prefetch._patient(Adder)(10, running=running, lets_pass=lets_pass)
    assert made.add(5, 6, 3, 2, 4) == run


def test_nobody_goes_before_who_finds_no_room_while_nothing_runs() -> None:
    assert prefetch._patient(Adder)(10, running=False, lets_pass=True).add(11, 3) == []


def test_a_batch_that_is_full_is_full() -> None:
    made = prefetch._patient(Adder)(10, running=True, lets_pass=True)
    assert made.add_one_req(10) is AddReqResult.NO_TOKEN


def test_who_is_not_tried_may_fit() -> None:
    made = prefetch._patient(Adder)(10, running=True, lets_pass=True)
    made.add(5, 6, 3)
    assert made.gate.tried_all
    made.add(0)
    assert not made.gate.tried_all


def test_nobody_passes_where_sglang_takes_who_is_passed_for_one_that_runs() -> None:
    made = prefetch._patient(Adder, backfills=False)(10, running=True, lets_pass=True)
    assert made.add(5, 6, 3) == [5]


@pytest.mark.parametrize(("mamba", "patient"), [(False, True), (True, False)])
def test_models_that_keep_a_state_are_left_to_sglang(mamba: bool, patient: bool) -> None:
    cache = SimpleNamespace(gate=object(), supports_mamba=lambda: mamba)
    scheduler = SimpleNamespace(tree_cache=cache, is_hybrid_swa=False, enable_lora=False)
    assert (prefetch.adder_class(Adder, scheduler) is not Adder) == patient
