"""Several simulations over one workload: every server with every policy and every seed, in processes of their own."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from typing import get_args

from kvflow.config import ExclusiveMode
from kvflow.errors import ConfigError
from kvflow.policy import make_policy
from kvflow.sim.admission import Admission
from kvflow.sim.client import Waits
from kvflow.sim.measures import measures_of
from kvflow.sim.profile import Profile
from kvflow.sim.run import SimSettings, simulate
from kvflow.sim.workload import Size, Workload

BASELINE = "lru"
IDEAL = "belady"
"""Always simulated too: between these two lies what an eviction order can gain."""
DEFAULT_POLICIES = ("lru", "steps", "ttl", "saga", "cost", "belady")
ADMISSIONS: tuple[str, ...] = get_args(Admission)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One server and the load on it.

    Attributes:
        device_size, host_size, storage_size: the tiers' sizes as they were asked for, e.g. ``50%``.
    """

    device_tokens: int
    host_tokens: int = 0
    storage_tokens: int = 0
    concurrency: int = 16
    device_size: str = ""
    host_size: str = ""
    storage_size: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to simulate, the programs apart.

    Attributes:
        policies: as asked for; the two references are simulated in any case.
        limit: programs per seed; None for all.
    """

    profile: Profile
    setups: Sequence[Setup]
    policies: Sequence[str] = DEFAULT_POLICIES
    seeds: Sequence[int] = (0,)
    limit: int | None = None
    admission: Admission = "fcfs"
    prefetch: bool = False
    guard: bool = True
    exclusive: ExclusiveMode = "auto"
    waits: Waits = field(default_factory=Waits)

    @property
    def all_policies(self) -> list[str]:
        """Policies to simulate: LRU first, those asked for, Belady last."""
        asked = [name for name in dict.fromkeys(self.policies) if name not in (BASELINE, IDEAL)]
        return [BASELINE, *asked, IDEAL]

    @property
    def simulations(self) -> int:
        """How many there are to run."""
        return len(self.setups) * len(self.all_policies) * len(self.seeds)

    def settings(self, setup: Setup, policy: str, seed: int) -> SimSettings:
        """Settings of one simulation."""
        return SimSettings(
            policy=policy,
            guard=self.guard,
            device_tokens=setup.device_tokens,
            host_tokens=setup.host_tokens,
            storage_tokens=setup.storage_tokens,
            concurrency=setup.concurrency,
            admission=self.admission,
            prefetch=self.prefetch,
            exclusive=self.exclusive,
            seed=seed,
            waits=self.waits,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One simulation, in numbers.

    Attributes:
        setup: its position in the plan.
        measures: see :func:`kvflow.sim.measures.measures_of`.
        evicted_tokens: by ``tier/class``.
    """

    setup: int
    policy: str
    seed: int
    measures: dict[str, float]
    evicted_tokens: dict[str, int]


def check(plan: Plan, workload: Workload) -> None:
    """Refuse what cannot be simulated, before hours are spent on it.

    Raises:
        ConfigError: a policy or an admission order does not exist, or a size makes no sense.
    """
    for name in plan.policies:
        make_policy(name, plan.profile.costs)
    if plan.admission not in ADMISSIONS:
        raise ConfigError(f"admission {plan.admission!r} does not exist; choose one of {', '.join(ADMISSIONS)}")
    if not plan.setups or not plan.seeds:
        raise ConfigError("nothing to simulate: give at least one size and one seed")
    page_tokens = SimSettings(device_tokens=0).page_tokens
    for setup in plan.setups:
        if setup.concurrency < 1:
            raise ConfigError("at least one program must run at a time")
        if workload.too_long(setup.device_tokens, page_tokens) == len(workload.request_tokens):
            shortest = workload.request_tokens[0]
            raise ConfigError(
                f"a device of {setup.device_tokens:,} tokens holds no request of these programs: the shortest has "
                f"{shortest:,} tokens, the longest {workload.request_tokens[-1]:,}"
            )
        if setup.storage_tokens and not setup.host_tokens:
            raise ConfigError("a storage tier needs a host tier above it")


def grid(
    workload: Workload,
    *,
    devices: Iterable[Size],
    hosts: Iterable[Size],
    storages: Iterable[Size],
    concurrencies: Iterable[int],
    limit: int | None = None,
) -> list[Setup]:
    """Combine sizes and loads, device sizes varying fastest; shares are of what the programs of that load hold."""
    setups = []
    for concurrency, storage, host, device in itertools.product(concurrencies, storages, hosts, devices):
        live_tokens = workload.live_tokens(concurrency, limit)
        setups.append(
            Setup(
                device_tokens=device.resolve(live_tokens),
                host_tokens=host.resolve(live_tokens),
                storage_tokens=storage.resolve(live_tokens),
                concurrency=concurrency,
                device_size=device.text,
                host_size=host.text,
                storage_size=storage.text,
            )
        )
    return list(dict.fromkeys(setups))


def compare(
    plan: Plan, workload: Workload, *, jobs: int = 1, on_progress: Callable[[int, int], None] = lambda runs, calls: None
) -> list[Run]:
    """Simulate a plan. Results depend on nothing but plan and programs, wall time apart.

    Args:
        jobs: processes to use; with 1 everything happens in this one.
        on_progress: told of the number of simulations done and of LLM calls answered; with one job also in between.

    Returns:
        The runs, by setup, policy and seed.

    Raises:
        ConfigError: see :func:`check`.
    """
    check(plan, workload)
    tasks = list(itertools.product(range(len(plan.setups)), plan.all_policies, plan.seeds))
    runs: list[Run] = []
    calls = 0
    todo = _in_turn(plan, workload, tasks, lambda done: on_progress(len(runs), calls + done))
    gc.freeze()  # or every collection goes through all programs, which takes half of the time
    try:
        with closing(todo if jobs <= 1 else _side_by_side(plan, workload, tasks, jobs)) as played:
            for run in played:
                runs.append(run)
                calls += int(run.measures["calls"])
                on_progress(len(runs), calls)
    finally:
        gc.unfreeze()
    position = {task: index for index, task in enumerate(tasks)}
    return sorted(runs, key=lambda run: position[run.setup, run.policy, run.seed])


Task = tuple[int, str, int]
"""Setup by position, policy, seed."""
Made = Generator[Run, None, None]


def _in_turn(plan: Plan, workload: Workload, tasks: list[Task], on_calls: Callable[[int], None]) -> Made:
    for task in tasks:
        yield _simulated(plan, workload, task, on_calls)


def _side_by_side(plan: Plan, workload: Workload, tasks: list[Task], jobs: int) -> Made:
    # a forked process has the programs already; elsewhere each gets a copy
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    with ProcessPoolExecutor(
        min(jobs, len(tasks)), mp_context=context, initializer=_start, initargs=(plan, workload)
    ) as pool:
        futures = [pool.submit(_task, task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:  # an interrupt, too: nobody waits for what still runs
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


_given: list[tuple[Plan, Workload]] = []
"""What the simulations of a worker process have in common."""


def _start(plan: Plan, workload: Workload) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides
    _given.append((plan, workload))


def _task(task: Task) -> Run:
    return _simulated(*_given[-1], task)


def _simulated(plan: Plan, workload: Workload, task: Task, on_calls: Callable[[int], None] = lambda calls: None) -> Run:
    setup, policy, seed = task
    settings = plan.settings(plan.setups[setup], policy, seed)
    result = simulate(workload.drawn(seed, plan.limit), plan.profile, settings, on_progress=on_calls)
    evicted = {place: tokens for place, tokens in result.counters.evicted_tokens.items() if tokens}
    return Run(setup=setup, policy=policy, seed=seed, measures=measures_of(result), evicted_tokens=evicted)
