"""The simulated server under random programs: whatever memory it has, all are answered and nothing is left over."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pytest

from kvflow.engine import PromptClaim
from kvflow.sim import SimSettings, simulate
from kvflow.sim.admission import Everyone
from kvflow.sim.request import Request
from kvflow.trace import Piece
from tests.unit.sim.world import PAGE, PROFILE, Author, World

SIZES = {
    "ample": {"device": 16_384},
    "tight": {"device": 1024},
    "tiny": {"device": 640},
    "host": {"device": 1024, "host": 2048},
    "small host": {"device": 1024, "host": 512},
    "storage": {"device": 1024, "host": 1536, "storage": 2048},
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", SIZES)
def test_everybody_is_answered_and_nothing_is_left_over(size: str, seed: int) -> None:
    world = World(**SIZES[size])
    programs = Author(seed).programs(24)
    clients = world.play(programs)
    calls = sum(len(program.calls) for program in programs)
    assert clients.calls == calls - world.server.times.rejected
    assert len(clients.completion_s) == len(programs)
    counters, times = world.accounting.counters, world.server.times
    assert counters.requests + times.rejected == calls
    assert counters.prompt_tokens <= sum(counters.hit_tokens.values()) + counters.computed_tokens
    assert len(times.ttft_s) == len(times.queue_s) == counters.requests
    assert min(times.ttft_s) > 0
    world.check_idle()


@pytest.mark.parametrize("policy", ["lru", "lfu", "steps", "ttl", "saga", "cost"])
def test_every_order_leaves_the_server_as_clean(policy: str) -> None:
    world = World(policy=policy, device=768, host=1024)
    assert world.play(Author(7).programs(30)).calls
    assert sum(world.accounting.counters.evicted_tokens.values()) > 0
    world.check_idle()


def test_with_room_for_everything_a_conversation_is_computed_once() -> None:
    world = World()
    first = world.ask(Piece("system", 100), Piece("question", 60), output_tokens=20)
    second = world.ask(Piece("more", 30), after=first)
    assert first.hits == {"device": 0, "host": 0}
    assert second.hits == {"device": (160 + 20 - 1) // PAGE * PAGE, "host": 0}  # the last token is never computed
    assert world.accounting.counters.recomputed_tokens == 0


def test_the_same_prompt_again_hits_all_but_its_last_token() -> None:
    world = World()
    world.ask(Piece("system", 160))
    assert world.ask(Piece("system", 160)).hits == {"device": 144, "host": 0}
    assert world.ask(Piece("system", 161)).hits == {"device": 160, "host": 0}


def test_the_first_token_takes_as_long_as_the_profile_says() -> None:
    world = World()
    first = world.ask(Piece("a", 200), output_tokens=1)
    assert first.first_token_s == pytest.approx(0.002 + PROFILE.compute_s(0, 200))
    began_s = world.env.now
    second = world.ask(Piece("a", 200), Piece("b", 300), output_tokens=11)
    assert second.first_token_s is not None
    chunks = PROFILE.compute_s(192, 448) + PROFILE.compute_s(448, 500) + 2 * PROFILE.prefill_step_s
    assert second.first_token_s - began_s == pytest.approx(chunks)
    decode_s = sum(PROFILE.decode_s(1, 500 + step + 0.5) for step in range(10))
    assert world.env.now - second.first_token_s == pytest.approx(decode_s, rel=1e-6)


def test_what_is_on_the_host_is_loaded_while_the_rest_is_computed() -> None:
    profile = PROFILE.model_copy(update={"load_token_s": 1e-3})
    world = World(device=512, host=4096, profile=profile)
    world.ask(Piece("a", 320), output_tokens=1)
    world.ask(Piece("b", 480), output_tokens=1)
    world.env.run(until=world.env.now + 10)
    began_s = world.env.now
    again = world.ask(Piece("a", 321), output_tokens=1)
    assert again.first_token_s is not None
    assert again.hits == {"device": 0, "host": 320}
    assert again.first_token_s - began_s == pytest.approx(0.32)
    counters = world.accounting.counters
    assert (counters.load_backs, counters.load_back_tokens) == (1, 320)
    assert counters.load_back_s == pytest.approx(0.32)
    assert counters.stall_s == pytest.approx(0.32 - 0.002 - profile.compute_s(320, 321))


def test_what_only_storage_has_comes_back_through_the_host() -> None:
    world = World(device=512, host=1024, storage=4096)
    world.ask(Piece("a", 320), output_tokens=1)
    world.env.run(until=world.env.now + 10)
    for name in "bc":
        world.ask(Piece(name, 480), output_tokens=1)
        world.env.run(until=world.env.now + 10)
    node = world.memory.tree.match(world.request(Piece("a", 320)).prompt)
    assert (node.on_device, node.on_host, node.on_storage) == (False, False, True)
    again = world.ask(Piece("a", 321), output_tokens=1)
    assert again.hits == {"device": 0, "host": 320}
    assert world.memory.fetched_tokens == 320


def test_a_request_larger_than_memory_is_rejected_and_the_others_go_on() -> None:
    world = World(device=256)
    assert world.ask(Piece("a", 300)).done.value is False
    assert world.ask(Piece("a", 200)).done.value is True
    assert world.server.times.rejected == 1
    world.check_idle()


@pytest.mark.parametrize("output_tokens", [1, 15, 16, 17, 40])
def test_a_request_that_fills_memory_to_the_last_page_is_answered(output_tokens: int) -> None:
    world = World(device=256)
    request = world.ask(Piece("a", 256 - output_tokens), output_tokens=output_tokens)
    assert request.done.value is True
    assert world.server.times.retractions == 0
    world.check_idle()


def test_when_answers_outgrow_memory_the_last_one_admitted_starts_again() -> None:
    world = World(device=512, profile=PROFILE.model_copy(update={"reserve_tokens": 0}))
    requests = [world.request(Piece(name, 150), output_tokens=160) for name in "abc"]
    for request in requests:
        world.env.process(world.server.submit(request))
    world.env.run(until=world.env.all_of([request.done for request in requests]))
    assert world.server.times.retractions > 0
    assert requests[0].generated == 0
    assert world.accounting.counters.recomputed_tokens > 0
    world.check_idle()


class Heard(Everyone):
    """Remembers how long requests were when they came, or came back."""

    def __init__(self) -> None:
        self.tokens: dict[Hashable, list[int]] = {}

    def arrived(self, key: Hashable, claim: PromptClaim, tokens: int, digests: Sequence[int] = ()) -> None:
        self.tokens.setdefault(key, []).append(tokens)


def test_a_retracted_request_comes_back_with_what_it_had_generated() -> None:
    heard = Heard()
    world = World(device=512, profile=PROFILE.model_copy(update={"reserve_tokens": 0}), programs=heard)
    requests = [world.request(Piece(name, 150), output_tokens=160) for name in "abc"]
    for request in requests:
        world.env.process(world.server.submit(request))
    world.env.run(until=world.env.all_of([request.done for request in requests]))
    again = [tokens for tokens in heard.tokens.values() if len(tokens) > 1]
    assert again
    assert all(tokens[-1] > tokens[0] for tokens in again)


def test_the_guard_sees_a_retracted_request_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(device=512, profile=PROFILE.model_copy(update={"reserve_tokens": 0}))
    started: list[Request] = []
    watch = world.guard.started

    def counted(key: Any, *arguments: Any, **named: Any) -> None:
        started.append(key)
        watch(key, *arguments, **named)

    monkeypatch.setattr(world.guard, "started", counted)
    requests = [world.request(Piece(name, 150), output_tokens=160) for name in "abc"]
    for request in requests:
        world.env.process(world.server.submit(request))
    world.env.run(until=world.env.all_of([request.done for request in requests]))
    assert len(started) == len(requests) + world.server.times.retractions


class SmallestFirst:
    """An order in which whoever comes may pass those that wait."""

    def arrange(self, waiting: list[Request], memory: Any) -> list[Request]:
        return sorted(waiting, key=lambda request: request.prompt.tokens)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def test_whoever_comes_while_another_waits_is_looked_at_after_the_step_that_runs() -> None:
    world = World(device=1024, programs=SmallestFirst())
    large = world.request(Piece("large", 900))
    for request in (world.request(Piece("long", 500), output_tokens=300), large):
        world.env.process(world.server.submit(request))
    world.env.run(until=0.5)
    assert large.admitted_s is None
    small = world.ask(Piece("small", 60))
    assert small.admitted_s is not None
    assert small.admitted_s - small.arrived_s < 2 * PROFILE.decode_step_s
    world.env.run(until=large.done)
    world.check_idle()


def test_a_host_full_of_copies_of_the_device_takes_the_next_one_when_it_has_room() -> None:
    world = World(device=1024, host=240)
    first = world.ask(Piece("a", 240), output_tokens=1)
    second = world.ask(Piece("b", 160), output_tokens=1)
    world.env.run(until=world.env.now + 10)
    assert first.node is not None
    assert second.node is not None
    assert (first.node.on_host, second.node.on_host) == (True, False)
    world.memory.tree.touch(second.node)
    world.memory.tree.evict_device(1)
    assert not first.node.on_device
    world.ask(Piece("b", 160), output_tokens=1)
    assert (first.node.on_host, second.node.on_host) == (False, True)


def test_a_prompt_found_as_a_whole_is_claimed_too() -> None:
    world = World(policy="steps")
    first = world.ask(Piece("a", 160), output_tokens=1)
    assert first.node is not None
    world.brain.take([])
    before = first.node.last_access_time
    again = world.ask(Piece("a", 161), output_tokens=1)
    assert again.tagged
    assert again.node is first.node
    assert first.node.last_access_time > before
    assert first.node.hit_count == 2


def result(seed: int, **changed: Any) -> dict[str, Any]:
    settings = SimSettings(
        policy="cost", device_tokens=1024, host_tokens=2048, concurrency=4, page_tokens=PAGE, seed=seed, **changed
    )
    plain = asdict(simulate(Author(1).programs(30), PROFILE, settings))
    del plain["wall_s"], plain["settings"]
    return plain


def test_equal_seeds_give_equal_results_and_others_other_ones() -> None:
    assert result(3) == result(3)
    assert result(3) != result(4)


def test_more_memory_computes_no_more_under_lru() -> None:
    computed = []
    for tokens in (768, 1536, 6144):
        settings = SimSettings(policy="lru", device_tokens=tokens, concurrency=1, page_tokens=PAGE)
        computed.append(simulate(Author(2).programs(40), PROFILE, settings).counters.computed_tokens)
    assert all(more <= less for less, more in pairwise(computed))
