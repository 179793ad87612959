"""How often a request is passed over because its context is still being loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder
from sglang.srt.runtime_context import get_context

from kvflow.engine import Counters, Load, Room
from kvflow.patches import prefetch, prefetch_hooks
from kvflow.patches.guard import Guard
from kvflow.patches.prefetch import Prefetch

_GUESSES = {
    "page_size": 4,
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


@pytest.fixture
def passing() -> Prefetch:
    """All that it needs to pass over a request whose context should be loaded first."""
    made = object.__new__(Prefetch)
    made._load, made._guard = None, Guard("prefetch")
    made._flush, made._flush_until_s = None, 0.0
    made._asks = lambda req: True  # type: ignore[method-assign]
    made._cache = SimpleNamespace(accounting=SimpleNamespace(counters=Counters()))  # type: ignore[assignment]
    return made


def test_a_request_is_passed_over_only_so_often(passing: Prefetch) -> None:
    for _ in range(2):
        req = SimpleNamespace()
        assert sum(passing.passes_over(req, busy=True) for _ in range(2000)) == 512
    assert passing._cache.accounting.counters.passed_over == 2 * 512


def test_nothing_is_passed_over_while_nothing_else_runs(passing: Prefetch) -> None:
    assert not passing.passes_over(SimpleNamespace(), busy=False)


def test_what_has_left_the_host_while_its_request_waited_is_not_loaded() -> None:
    made = object.__new__(Prefetch)
    core = SimpleNamespace(find=lambda node_id: None, evictable_host_leaves={1})
    made._cache = SimpleNamespace(tree_core=core)  # type: ignore[assignment]
    made._asking = [SimpleNamespace(best_match_node=7)]
    asked: list[tuple[Any, Any]] = []
    made.planner = SimpleNamespace(  # type: ignore[assignment]
        asked=lambda asking, room, device: asked.extend(asking), next=lambda room, device: None
    )
    assert made._choose(lambda: Room(free_tokens=100)) is None
    assert not asked


class Arriving:
    """A load whose end can be waited for."""

    def __init__(self) -> None:
        self.finish_event = self
        self.waited = 0

    def synchronize(self) -> None:
        self.waited += 1


def test_a_request_moved_onto_what_is_still_arriving_waits_for_it(passing: Prefetch) -> None:
    load, arriving = Load([], 32), Arriving()
    load.under_way, passing._load = True, load
    root = SimpleNamespace(parent=None)
    above = SimpleNamespace(parent=root, arriving=None)
    below = SimpleNamespace(parent=above, arriving=load, load=None)  # whoever used it first has been counted
    core = SimpleNamespace(root_node=root, node_by_id={1: above, 2: below}.__getitem__)
    controller = SimpleNamespace(ack_load_queue=[arriving])
    passing._cache = SimpleNamespace(tree_core=core, cache_controller=controller)  # type: ignore[assignment]
    passing.entered(SimpleNamespace(last_node=1))
    assert not arriving.waited
    passing.entered(SimpleNamespace(last_node=2))
    assert arriving.waited == 1
    load.under_way = False
    passing.entered(SimpleNamespace(last_node=2))
    assert arriving.waited == 1


def test_whoever_wants_an_idle_server_waits_for_what_is_under_way(passing: Prefetch) -> None:
    acks, to_write = [Arriving(), Arriving()], {1: "a", 2: "b"}
    done: list[tuple[str, int]] = []
    controller = SimpleNamespace(ack_write_queue=acks[:1], ack_load_queue=acks[1:])
    passing._storage = SimpleNamespace(  # type: ignore[assignment]
        give_up=lambda: done.append(("storage", 0)), reap=lambda: done.append(("reaped", 0))
    )
    passing._cache = SimpleNamespace(  # type: ignore[assignment]
        cache_controller=controller,
        flush_pending_backups=lambda: done.append(("submitted", 0)),
        writing_check=lambda finish_count: done.append(("writes", finish_count)),
        loading_check=lambda finish_count: done.append(("loads", finish_count)),
        enable_storage=True,
        ongoing_backup=to_write,
        check_hicache_events=to_write.popitem,
    )
    idle = False
    scheduler = SimpleNamespace(
        tree_cache=SimpleNamespace(prefetch=passing), is_fully_idle=lambda **_: idle, _engine_paused=False
    )
    prefetch_hooks.settle(scheduler)
    assert done == [], "where requests run it would be refused all the same"
    idle = True
    prefetch_hooks.settle(SimpleNamespace(scheduler=scheduler))
    submitted = [("submitted", 0)] if prefetch._QUEUES_COPIES else []
    assert done == [("storage", 0), *submitted, ("writes", 1), ("loads", 1), ("reaped", 0)]
    assert [ack.waited for ack in acks] == [1, 1]
    assert not to_write, "what has been copied has been written to storage, too"
    prefetch_hooks.settle(scheduler)
    assert len(done) == 8 + 2 * len(submitted)


def test_how_long_a_flush_is_waited_for_goes_by_the_time_that_ranks_have_alike(passing: Prefetch) -> None:
    clock = SimpleNamespace(now_s=10.0)
    passing._cache = SimpleNamespace(  # type: ignore[assignment]
        coordinator=SimpleNamespace(claims=SimpleNamespace(clock=clock))
    )
    passing.planner = SimpleNamespace(flushed=lambda: None)  # type: ignore[assignment]
    passing._storage = SimpleNamespace(forget=lambda: None)  # type: ignore[assignment]
    passing.backups = SimpleNamespace(planner=passing.planner)  # type: ignore[assignment]
    flush = SimpleNamespace(timeout_s=5.0)

    def awaited(flush: Any) -> bool:
        passing._note_flush(flush)
        return passing._is_to_be_flushed

    assert not awaited(None)
    assert awaited(flush)
    clock.now_s = 14.9
    assert awaited(None), "one rank has given it up by its own clock"
    assert awaited(flush), "another has not"
    clock.now_s = 15.0
    assert not awaited(flush)
    assert awaited(SimpleNamespace(timeout_s=5.0)), "the next one"
    passing.forget()
    assert not awaited(None), "it has been flushed"


def test_nobody_waits_for_a_load_while_none_begins_because_of_a_flush(passing: Prefetch) -> None:
    clock = SimpleNamespace(now_s=10.0)
    del passing._asks  # type: ignore[method-assign]
    passing._cache = SimpleNamespace(  # type: ignore[assignment]
        accounting=passing._cache.accounting,
        cache_controller=SimpleNamespace(load_queue=[1]),
        coordinator=SimpleNamespace(claims=SimpleNamespace(clock=clock)),
    )
    passing._batch = SimpleNamespace(join=lambda tokens: False)  # type: ignore[assignment]
    req = SimpleNamespace(needs_host_load_back=lambda: True, host_hit_length=32, _kvflow_claim="a")
    assert passing.passes_over(req, busy=True)
    passing._note_flush(SimpleNamespace(timeout_s=5.0))
    assert not passing.passes_over(req, busy=True)
    clock.now_s = 15.0
    assert passing.passes_over(req, busy=True)


def test_decoding_does_not_wait_for_the_load_its_prefill_waited_for() -> None:
    batch = SimpleNamespace(hicache_consumer_index=2)
    prefetch_hooks.decode(None, batch)
    assert batch.hicache_consumer_index == -1


@pytest.mark.parametrize(("mamba", "patient"), [(False, True), (True, False)])
def test_models_that_keep_a_state_are_left_to_sglang(mamba: bool, patient: bool) -> None:
    cache = SimpleNamespace(gate=object(), supports_mamba=lambda: mamba)
    scheduler = SimpleNamespace(tree_cache=cache)
    assert (prefetch_hooks.adder_class(PrefillAdder, scheduler) is not PrefillAdder) == patient


@pytest.mark.parametrize(("guessed", "growth_tokens"), [({}, 2 * (10 + 4)), (_GUESSES, 2 * (10 * 4 + 8 + 4))])
def test_what_requests_may_take_meanwhile_is_what_sglang_says(
    passing: Prefetch, guessed: dict[str, Any], growth_tokens: int
) -> None:
    passing._cache = SimpleNamespace(  # type: ignore[assignment]
        _component_available_size=lambda component: 100, full_evictable_size=lambda: 50, page_size=4
    )
    with get_context().override_server_args(**guessed):
        assert passing._room(running=2, chunked=None).growth_tokens(10) == growth_tokens


@pytest.mark.parametrize(
    ("adapter", "batch", "passed_over"),
    [
        ("a", ["a"], True),
        ("a", ["b"], False),
        ("a", [None], False),
        ("a", [], False),
        (None, ["a"], False),
        (None, ["a", None], True),
        (None, [], True),
    ],
)
@pytest.mark.parametrize("starting", [False, True])
def test_who_is_passed_over_takes_up_no_adapter_that_another_could_have(
    monkeypatch: pytest.MonkeyPatch, adapter: str | None, batch: list[str | None], passed_over: bool, starting: bool
) -> None:
    reqs = [SimpleNamespace(lora_id=each, finished=lambda: False) for each in batch]
    ended = SimpleNamespace(lora_id="a", finished=lambda: True)
    adder = object.__new__(prefetch_hooks._patient(PrefillAdder))
    adder.preempt_list, adder.can_run_list = [], reqs if starting else []
    adder.running_batch = SimpleNamespace(reqs=[ended, *([] if starting else reqs)], is_empty=lambda: False)
    adder.tree_cache = SimpleNamespace(gate=None, prefetch=SimpleNamespace(passes_over=lambda req, busy: busy))
    monkeypatch.setattr(PrefillAdder, "add_one_req", lambda self, req: AddReqResult.OTHER)
    result = adder.add_one_req(SimpleNamespace(lora_id=adapter))
    assert result is (AddReqResult.CONTINUE if passed_over else AddReqResult.OTHER)


@pytest.mark.parametrize(
    ("result", "fits", "adapter", "yields", "passed_over"),
    [
        ("NO_TOKEN", False, None, True, True),
        ("NO_TOKEN", False, None, False, False),
        ("NO_TOKEN", True, None, True, False),
        ("OTHER", False, None, True, False),
        ("NO_TOKEN", False, "a", True, False),
    ],
)
def test_who_there_is_no_memory_for_may_let_others_by(
    monkeypatch: pytest.MonkeyPatch, result: str, fits: bool, adapter: str | None, yields: bool, passed_over: bool
) -> None:
    req = SimpleNamespace(lora_id=adapter)
    adder = object.__new__(prefetch_hooks._patient(PrefillAdder))
    adder.preempt_list, adder.can_run_list = [], []
    adder.running_batch = SimpleNamespace(reqs=[], is_empty=lambda: False)
    gate = SimpleNamespace(late=lambda req: False, refused=lambda req: yields)
    adder.tree_cache = SimpleNamespace(gate=gate, prefetch=None)

    def add_one_req(self: Any, req: Any) -> AddReqResult:
        self.can_run_list += [req] if fits else []
        return AddReqResult[result]

    monkeypatch.setattr(PrefillAdder, "add_one_req", add_one_req)
    assert adder.add_one_req(req) is (AddReqResult.CONTINUE if passed_over else AddReqResult[result])


def test_a_load_that_has_been_published_is_started_whatever_fails() -> None:
    def fails(*arguments: Any) -> None:
        raise ArithmeticError

    made, started = object.__new__(Prefetch), list[str]()
    chosen = Load([SimpleNamespace(id=7, key=[0] * 64, load=None)], 64)  # type: ignore[list-item]
    made._choose = lambda look: chosen  # type: ignore[method-assign]
    made.planner = SimpleNamespace(begun=lambda load: None, refused=fails)  # type: ignore[assignment]
    made._cache = SimpleNamespace(  # type: ignore[assignment]
        load_back=lambda anchor: True,
        journal=SimpleNamespace(ahead=fails),
        ready_to_load_host_cache=lambda: started.append("load"),
    )
    for begun in (made.planner.begun, fails):
        cast("Any", made.planner).begun = begun
        with pytest.raises(ArithmeticError):
            made._begin(lambda: Room(free_tokens=100))
    assert started == ["load", "load"]
