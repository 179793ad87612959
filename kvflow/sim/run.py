"""One simulation: programs of a trace against one server under one policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import simpy

from kvflow.config import Eviction, ExclusiveMode, Pin, Settings
from kvflow.engine import Accounting, Coordinator, Counters, Guard, Regret, is_exclusive
from kvflow.policy import ORACLES
from kvflow.sim.admission import Admission, programs_of
from kvflow.sim.ahead import Ahead
from kvflow.sim.brains import LearnedBrain, OracleBrain, SilentBrain
from kvflow.sim.client import Clients, Waits
from kvflow.sim.context import Pager
from kvflow.sim.memory import Memory
from kvflow.sim.node import backed_up
from kvflow.sim.ports import Brain
from kvflow.sim.profile import Profile
from kvflow.sim.server import Server
from kvflow.sim.times import ServerTimes
from kvflow.trace import Program

_MOST_UNIT_TOKENS = 512
_LEAST_UNITS = 512
"""Units a device should have, so that rounding to units does not blur what is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """What is simulated.

    Attributes:
        policy: eviction order.
        guard: bound the damage of wrong predictions; only orders that predict have one.
        device_tokens, host_tokens, storage_tokens: capacity per tier, 0 for none.
        concurrency: programs that run at a time.
        admission: whose requests run, and in what order.
        exclusive: a full host drops copies of what the device holds before it loses anything, unless there is a storage
            tier; needs predictions.
        prefetch: load contexts back ahead of use; needs predictions and a host tier.
        page_tokens: page size.
    """

    policy: str = "lru"
    guard: bool = True
    device_tokens: int
    host_tokens: int = 0
    storage_tokens: int = 0
    concurrency: int = 8
    admission: Admission = "fcfs"
    exclusive: ExclusiveMode = "auto"
    prefetch: bool = False
    page_tokens: int = 64
    seed: int = 0
    waits: Waits = field(default_factory=Waits)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    """What came of it.

    Attributes:
        calls: LLM calls answered.
        workflows: programs completed.
        span_s: simulated time.
        wall_s: real time it took.
        counters: tokens and loads.
        times: where the server's time went.
        fetched_tokens: that came from storage to the host ...
        fetched_s: ... and how long that took.
        completion_s: time of every program from start to end, by workflow id.
        regret: what the guard has measured, and its state at the end; None without one.
    """

    settings: SimSettings
    calls: int
    workflows: int
    span_s: float
    wall_s: float
    counters: Counters
    times: ServerTimes
    fetched_tokens: int
    fetched_s: float
    completion_s: dict[str, float]
    regret: Regret | None
    share: float | None

    @property
    def lost_s(self) -> float:
        """Seconds spent on what had been cached: computed again, loaded from the host, or fetched from storage."""
        return self.times.recompute_s + self.counters.load_back_s + self.fetched_s

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"lost_s": self.lost_s}


def simulate(
    programs: Iterable[Program],
    profile: Profile,
    settings: SimSettings,
    *,
    on_progress: Callable[[int], None] = lambda calls: None,
) -> SimResult:
    """Run programs in a closed loop.

    Args:
        programs: in the order in which they start.
        profile: how long things take.
        settings: the rest.
        on_progress: told of the number of calls answered, now and then.

    Raises:
        ConfigError: the policy does not exist.
    """
    started_s = time.perf_counter()
    env = simpy.Environment()
    unit_tokens = min(_MOST_UNIT_TOKENS, settings.device_tokens // _LEAST_UNITS)
    pager = Pager(settings.page_tokens, max(1, unit_tokens // settings.page_tokens))
    coordinator = Coordinator(settings.policy, profile.costs, backed_up=backed_up, unit_tokens=pager.unit_tokens)
    accounting = Accounting(pager.unit_tokens)
    guard = Guard(profile.costs, pager.unit_tokens) if settings.guard and coordinator.guarded else None
    memory = Memory(
        env,
        profile,
        coordinator,
        accounting,
        page_tokens=settings.page_tokens,
        device_tokens=settings.device_tokens,
        host_tokens=settings.host_tokens,
        storage_tokens=settings.storage_tokens,
        guard=guard,
        exclusive=not settings.storage_tokens
        and is_exclusive(settings.exclusive, settings.device_tokens, profile.chunk_tokens),
    )
    brain = _brain(env, profile, settings, coordinator)
    server = Server(
        env,
        profile,
        memory,
        coordinator,
        accounting,
        guard=guard,
        programs=programs_of(settings.admission, coordinator, memory.tree, pager.unit_tokens),
        ahead=Ahead(env, memory, coordinator, accounting, brain.refresh) if settings.prefetch else None,
        before_eviction=brain.refresh,
    )
    clients = Clients(env, server, brain, pager, waits=settings.waits, seed=settings.seed)
    supply = enumerate(programs)
    workers = [env.process(clients.work(_share(supply))) for _ in range(settings.concurrency)]
    _run_to_end(env, workers, clients, on_progress)
    return SimResult(
        settings=settings,
        calls=clients.calls,
        workflows=len(clients.completion_s),
        span_s=env.now,
        wall_s=time.perf_counter() - started_s,
        counters=accounting.counters,
        times=server.times,
        fetched_tokens=memory.fetched_tokens,
        fetched_s=memory.fetched_s,
        completion_s=clients.completion_s,
        regret=guard.regret if guard else None,
        share=guard.share if guard else None,
    )


def _brain(env: simpy.Environment, profile: Profile, settings: SimSettings, coordinator: Coordinator) -> Brain:
    if settings.policy in ORACLES:
        return OracleBrain(env, profile, coordinator)
    if not (coordinator.uses_claims or settings.prefetch) and settings.admission != "workflow":
        return SilentBrain()
    return LearnedBrain(env, _control_settings(settings), coordinator)


def _control_settings(settings: SimSettings) -> Settings:
    """The server's settings, whatever its variables and files say; Continuum's order gets Continuum's TTLs."""
    ttl = "learned" if settings.policy in ("ttl", "saga") else "fixed"
    return Settings.model_construct(eviction=Eviction(policy="steps"), pin=Pin(ttl=ttl))


def _share(supply: Iterator[tuple[int, Program]]) -> Iterator[tuple[int, Program]]:
    """Let several workers take programs from one supply."""
    while True:
        try:
            yield next(supply)
        except StopIteration:
            return


def _run_to_end(
    env: simpy.Environment, workers: list[simpy.Process], clients: Clients, on_progress: Callable[[int], None]
) -> None:
    finished = env.all_of(workers)
    reported = 0
    while not finished.processed:
        env.step()
        if clients.calls >= reported + 100:
            reported = clients.calls
            on_progress(reported)
