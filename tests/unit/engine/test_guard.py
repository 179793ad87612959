"""The guard: its shadow is LRU, and what predictions cost beyond LRU stays bounded."""

from __future__ import annotations

import random

import pytest

from kvflow.engine import Guard, GuardSettings, Tier
from kvflow.engine import guard as module
from kvflow.engine.guard import MemoryView
from kvflow.policy import ServingCosts
from tests.unit.engine.exact_lru import ExactLRU

UNIT = 64
COSTS = ServingCosts()


def memory(device_units: int, host_units: int = 0, private_units: int = 0, chunk_units: int = 1) -> MemoryView:
    return MemoryView(device_units * UNIT, host_units * UNIT, private_units * UNIT, chunk_units * UNIT)


def contexts(rng: random.Random, count: int) -> list[list[int]]:
    """Prompts that share beginnings and grow, as chains of unit digests."""
    heads = [[rng.getrandbits(60) for _ in range(rng.randrange(1, 5))] for _ in range(4)]
    chains = [rng.choice(heads) + [rng.getrandbits(60) for _ in range(rng.randrange(0, 6))] for _ in range(count // 2)]
    for _ in range(count - len(chains)):
        chains.append(rng.choice(chains) + [rng.getrandbits(60) for _ in range(rng.randrange(1, 4))])
    return chains


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("host_units", [0, 60])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_against_an_exact_lru_there_is_nothing_to_regret(seed: int, host_units: int, chunk: int) -> None:
    rng = random.Random(seed)
    chains = contexts(rng, 24)
    guard, device, host = Guard(COSTS, UNIT), ExactLRU(chunk), ExactLRU(chunk)
    running: dict[int, tuple[list[int], list[int]]] = {}
    hits = misses = 0
    for key in range(400):
        view = memory(30, host_units, rng.randrange(6), chunk)
        room = 30 - view.private_tokens // UNIT
        if len(running) == 3 or (running and rng.random() < 0.4):
            ended = rng.choice(list(running))
            prompt, whole = running.pop(ended)
            whole = prompt if rng.random() < 0.2 else whole  # aborted, or retracted
            device.end(prompt, whole, room)
            if host_units:
                host.end(prompt, whole, host_units)
            guard.ended(ended, whole, memory=view)
        prompt = rng.choice(chains)
        on_device = device.hits(prompt)
        on_host = max(0, host.hits(prompt) - on_device) if host_units else 0
        hits, misses = hits + on_device + on_host, misses + len(prompt) - on_device - on_host
        device.start(prompt, room)
        if host_units:
            host.start(prompt, host_units)
        guard.started(key, prompt, device_hit=on_device * UNIT, host_hit=on_host * UNIT, memory=view)
        running[key] = (prompt, prompt + [rng.getrandbits(60) for _ in range(rng.randrange(0, 3))])
    assert min(hits, misses) > 200
    regret = guard.regret
    assert (regret.lost_tokens, regret.gained_tokens, regret.mistakes) == (0, 0, 0)
    assert regret.lost_s == pytest.approx(0.0)
    assert regret.gained_s == pytest.approx(0.0)
    assert guard.share == 1.0


def chain(name: int, units: int = 8) -> list[int]:
    return [name * 1000 + index for index in range(units)]


class Cache:
    """A cache of whole contexts.

    Args:
        guard: names the candidates, of which the one that is used next is given up; None for LRU.
    """

    def __init__(self, guard: Guard, contexts: int, *, hostile: bool = True) -> None:
        self.guard = guard
        self._kept: dict[int, None] = {}
        self._contexts = contexts
        self._view = memory(8 * contexts, chunk_units=8)
        self._hostile = hostile

    def ask(self, turn: int, name: int) -> None:
        units = chain(name)
        found = name in self._kept
        self._kept.pop(name, None)
        self.guard.started(turn, units, device_hit=len(units) * UNIT * found, host_hit=0, memory=self._view)
        while len(self._kept) >= self._contexts:
            count = int(self.guard.share * len(self._kept)) if self._hostile else 0
            candidates = list(self._kept)[:count]
            victim = min(candidates, key=lambda kept: next_use(kept, turn), default=next(iter(self._kept)))
            del self._kept[victim]
        self._kept[name] = None
        self.guard.ended(turn, units, memory=self._view)


def name_at(turn: int) -> int:
    """56 names in turn, and after every 14 one that never comes back: with room for 60, LRU misses those alone.

    Behind the oldest, which is never used again, there is always the one that comes next.
    """
    rounds, place = divmod(turn, 15)
    return 1000 + rounds if place == 14 else rounds % 4 * 14 + place


def next_use(name: int, turn: int) -> float:
    """How soon a name comes again."""
    return (name // 14 * 15 + name % 14 - turn - 1) % 60 if name < 1000 else 10_000


def test_an_order_worse_than_lru_is_given_up_before_it_costs_more_than_allowed() -> None:
    guard = Guard(COSTS, UNIT, GuardSettings(allowance_prompts=16))
    cache = Cache(guard, contexts=60)
    prompt_s = 8 * UNIT * COSTS.saved_token_s(8 * UNIT, backed_up=False)
    allowed_s = (16 + 1) * prompt_s  # it is noticed with the request that costs too much
    shares = []
    for turn in range(6000):
        cache.ask(turn, name_at(turn))
        shares.append(guard.share)
        assert guard.regret.lost_s - guard.regret.gained_s < allowed_s
    assert sorted(set(shares), reverse=True) == [1.0, 0.5, 0.25, 0.125, 0.0]
    assert shares[-1] == 0.0
    assert guard.regret.fallbacks == 1 + guard.regret.recoveries


@pytest.mark.parametrize(("names", "most_turns"), [(30_000, 30_000), (200, 400)], ids=["losses fade", "LRU loses too"])
def test_an_order_that_was_given_up_is_tried_again_after_a_while(names: int, most_turns: int) -> None:
    """Once a quarter of what may be lost is left, and on a quarter of the cache."""
    guard = Guard(COSTS, UNIT)
    cache = Cache(guard, contexts=60)
    turn = 0
    while guard.active:
        cache.ask(turn, name_at(turn))
        turn += 1
    lost_s, given_up = guard.regret.lost_s, turn
    while not guard.active:
        turn += 1
        cache.ask(turn, 2000 + turn % names)  # nothing that prediction could be blamed for
        assert turn < given_up + most_turns
    assert guard.share == 0.25
    assert guard.regret.recoveries == 1
    assert guard.regret.lost_s == lost_s


def test_recency_itself_is_never_given_up() -> None:
    guard = Guard(COSTS, UNIT)
    cache = Cache(guard, contexts=60, hostile=False)
    for turn in range(3000):
        cache.ask(turn, name_at(turn))
    assert guard.share == 1.0
    assert guard.regret.lost_tokens == 0
    assert guard.regret.gained_tokens == 0


def lose(guard: Guard, names: range, view: MemoryView) -> None:
    """Contexts that LRU would have are computed again."""
    for name in names:
        guard.started(name, chain(name), device_hit=0, host_hit=0, memory=view)
        guard.ended(name, chain(name), memory=view)
    for name in names:
        guard.started(name, chain(name), device_hit=0, host_hit=0, memory=view)
        guard.ended(name, chain(name), memory=view)


def test_gains_earn_credit_for_later_losses_up_to_a_limit() -> None:
    view = memory(1000)
    settings = GuardSettings(ratio=0.04, allowance_prompts=2.0)
    trusted, fresh = Guard(COSTS, UNIT, settings), Guard(COSTS, UNIT, settings)
    for name in range(5000, 5040):  # hits that LRU would not have had
        trusted.started(name, chain(name), device_hit=8 * UNIT, host_hit=0, memory=view)
        trusted.ended(name, chain(name), memory=view)
    assert trusted.regret.gained_tokens == 40 * 8 * UNIT
    for guard in (trusted, fresh):
        lose(guard, range(8), view)
    assert fresh.regret.mistakes > 0
    assert trusted.regret.mistakes == 0
    assert trusted.share == 1.0
    lose(trusted, range(100, 150), view)  # no credit lasts for ever
    assert trusted.regret.mistakes > 0


def test_a_share_that_was_halved_grows_back_with_gains() -> None:
    view = memory(1000)
    guard = Guard(COSTS, UNIT)
    lose(guard, range(4), view)
    assert guard.share < 1.0
    for name in range(5000, 5040):
        guard.started(name, chain(name), device_hit=8 * UNIT, host_hit=0, memory=view)
        guard.ended(name, chain(name), memory=view)
    assert guard.share == 1.0


def test_a_host_tier_turns_a_loss_into_a_load() -> None:
    view = memory(1000, 1000)
    guard = Guard(COSTS, UNIT)
    for turn in range(2):
        guard.started(turn, chain(1), device_hit=0, host_hit=8 * UNIT * turn, memory=view)
        guard.ended(turn, chain(1), memory=view)
    assert guard.regret.lost_tokens == 0
    assert guard.regret.lost_s == pytest.approx(8 * UNIT * COSTS.load_token_s)


@pytest.mark.parametrize("allowance_prompts", [0.0, 0.5])
def test_on_the_host_prediction_chooses_among_as_much_as_may_be_lost(allowance_prompts: float) -> None:
    view, allowed = memory(40, 40), 2 * allowance_prompts
    guard = Guard(COSTS, UNIT, GuardSettings(ratio=0.1, allowance_prompts=allowance_prompts))
    assert guard.choice(Tier.HOST).window_tokens == 0
    assert guard.choice(Tier.DEVICE).free
    for _ in range(2):
        for name in range(20):  # more than LRU can keep: it computes all of them again
            guard.started(name, chain(name), device_hit=0, host_hit=0, memory=view)
            guard.ended(name, chain(name), memory=view)
    assert guard.host_window_tokens == pytest.approx((0.1 * 20 + allowed) * 8 * UNIT, rel=0.1)
    guard.started(0, chain(0), device_hit=0, host_hit=8 * UNIT, memory=view)  # LRU would not have had it
    gained = guard.host_window_tokens
    assert gained == pytest.approx((0.1 * 20 + allowed + 0.1 + 1) * 8 * UNIT, rel=0.1)
    lose(guard, range(16, 20), view)
    assert guard.choice(Tier.HOST).window_tokens == 0
    assert guard.regret.lost_tokens > gained


@pytest.mark.parametrize("host_units", [0, 40])
def test_what_a_waiting_request_looks_up_is_renewed_as_in_the_cache(host_units: int) -> None:
    view = memory(40, host_units)
    guard = Guard(COSTS, UNIT)
    for name in range(5):
        guard.started(name, chain(name), device_hit=0, host_hit=0, memory=view)
        if name < 4:
            guard.ended(name, chain(name), memory=view)
    guard.looked_up("waits", chain(0))
    guard.ended(4, chain(4), memory=view)
    guard.started(9, chain(9), device_hit=0, host_hit=0, memory=view)  # one has to leave: the oldest is not 0 now
    guard.started(0, chain(0), device_hit=0, host_hit=0, memory=view)
    assert guard.regret.lost_tokens == 8 * UNIT
    guard.started(1, chain(1), device_hit=0, host_hit=0, memory=view)
    assert guard.regret.lost_tokens == 8 * UNIT


def test_of_requests_that_wait_whoever_looked_last_is_renewed_last() -> None:
    view = memory(24)
    guard = Guard(COSTS, UNIT)
    for name in range(3):
        guard.started(name, chain(name), device_hit=0, host_hit=0, memory=view)
        guard.ended(name, chain(name), memory=view)
    for name in (0, 1, 0):
        guard.looked_up(f"waits for {name}", chain(name))
    for name in (2, 3):
        guard.started(name, chain(name), device_hit=8 * UNIT, host_hit=0, memory=view)
        guard.ended(name, chain(name), memory=view)
    assert guard._device.prefix(chain(0)) == 8
    assert guard._device.prefix(chain(1)) == 0


def push_out(guard: Guard, view: MemoryView) -> None:
    """Fill the shadow with something else."""
    for name in range(50, 60):
        guard.started(name, chain(name), device_hit=0, host_hit=0, memory=view)
        guard.ended(name, chain(name), memory=view)


@pytest.mark.parametrize(("early", "lost_units"), [(False, 8), (True, 0)])
def test_a_running_request_keeps_its_prompt_until_it_ends_or_is_aborted(early: bool, lost_units: int) -> None:
    view = memory(24)
    guard = Guard(COSTS, UNIT)
    guard.started("r", chain(1), device_hit=0, host_hit=0, memory=view)
    if early:
        guard.ended("r", (), memory=view)
    push_out(guard, view)
    guard.ended("r", (), memory=view)
    guard.started("again", chain(1), device_hit=0, host_hit=0, memory=view)
    assert guard.regret.lost_tokens == lost_units * UNIT


def test_what_requests_compute_at_the_same_time_none_of_them_has_lost() -> None:
    view = memory(24)
    guard = Guard(COSTS, UNIT)
    for name in range(3):
        guard.started(name, chain(1), device_hit=0, host_hit=0, memory=view)
    assert guard.regret.lost_tokens == 0
    for name in range(3):
        guard.ended(name, chain(1), memory=view)
    guard.started("later", chain(1), device_hit=0, host_hit=0, memory=view)
    assert guard.regret.lost_tokens == 8 * UNIT


def test_requests_that_never_end_are_forgotten_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_RUNNING", 4)
    view = memory(48)
    guard = Guard(COSTS, UNIT)
    for name in range(5):
        guard.started(name, chain(name), device_hit=0, host_hit=0, memory=view)
    push_out(guard, view)
    guard.started("again", chain(0), device_hit=0, host_hit=0, memory=view)
    assert guard.regret.lost_tokens == 0


def test_ends_of_requests_it_never_heard_of_change_nothing() -> None:
    view = memory(24)
    guard = Guard(COSTS, UNIT)
    guard.started("r", chain(1), device_hit=0, host_hit=0, memory=view)
    for key in ("stranger", "r", "r"):
        guard.ended(key, chain(1), memory=view)
    guard.ended("stranger", chain(7), memory=view)
    guard.started("again", chain(7), device_hit=0, host_hit=0, memory=view)
    assert guard.regret.lost_tokens == 0
    guard.started("once more", chain(1), device_hit=8 * UNIT, host_hit=0, memory=view)
    assert guard.regret.gained_tokens == 0


def test_what_a_flush_dropped_is_not_regretted() -> None:
    view = memory(24)
    guard = Guard(COSTS, UNIT)
    guard.started("r", chain(1), device_hit=0, host_hit=0, memory=view)
    guard.ended("r", chain(1), memory=view)
    guard.clear()
    guard.started("again", chain(1), device_hit=0, host_hit=0, memory=view)
    assert guard.regret.lost_tokens == 0


def test_another_order_is_trusted_whatever_the_last_one_did() -> None:
    view = memory(1000)
    guard = Guard(COSTS, UNIT)
    lose(guard, range(40), view)
    assert not guard.active
    guard.restart()
    assert guard.share == 1.0
    guard.started("known", chain(1), device_hit=8 * UNIT, host_hit=0, memory=view)
    assert guard.regret.gained_tokens == 0  # what LRU has is still known


def test_sampling_measures_the_same_regret(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    prompts = {name: [rng.getrandbits(60) for _ in range(8)] for name in range(400)}
    lost = []
    for sample in (1, 4):
        monkeypatch.setattr(module, "_SHADOW_UNITS", 2400 // sample)
        guard = Guard(COSTS, UNIT)
        view = memory(2400)
        for name in (*range(400), *range(400)):
            guard.started(name, prompts[name], device_hit=0, host_hit=0, memory=view)
            guard.ended(name, prompts[name], memory=view)
        for name in range(200, 400):
            guard.started(name, prompts[name], device_hit=0, host_hit=0, memory=view)
            guard.ended(name, prompts[name], memory=view)
        lost.append(guard.regret.lost_tokens)
    assert lost[0] == 200 * 8 * UNIT
    assert lost[1] == pytest.approx(lost[0], rel=0.1)


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_costs_that_are_learned_anew_make_no_old_loss_a_larger_one(factor: float) -> None:
    """A quarter of a prompt was lost that LRU would have kept; then the machine turns out to be faster or slower."""
    costs = ServingCosts(attention_token_s=0.0)
    guard, view = Guard(costs, UNIT), memory(1000, chunk_units=8)

    def ask(turn: int, name: int, found_units: int) -> None:
        guard.started(turn, chain(name, 32), device_hit=found_units * UNIT, host_hit=0, memory=view)
        guard.ended(turn, chain(name, 32), memory=view)

    ask(0, 1, 0)
    ask(1, 1, 24)
    assert guard.share < 1
    costs.learn({"prefill_token_s": factor * costs.prefill_token_s})
    for turn in range(2, 120):
        ask(turn, turn, 0)
    assert guard.share == 1
