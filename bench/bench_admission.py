"""What running only the programs that fit gains, on every trace of a folder, in simulation.

Four arms on servers too small for the programs that run at a time, without a host tier and with one, and on one that
holds all: SGLang as it is (LRU, first come first served), its longest prefix first, kvflow's eviction, and that with
its admission. Arms face the same programs in the same order. Results go to a JSON file after every source, and what is
in it already is not simulated again; docs/admission-results.md is made from it.

Usage: python bench/bench_admission.py DATA [--sources swe tau] [--seeds 2] [--calls 600] [--jobs 2] [--inclusive]
       python bench/bench_admission.py --page      only write the page again
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from by_source import Bench, Servers, enough, plenty, programs_of  # noqa: E402

from kvflow.sim import SimSettings, load_profile, simulate  # noqa: E402
from kvflow.sim.admission import Admission  # noqa: E402
from kvflow.sim.measures import quantile  # noqa: E402
from kvflow.sim.workload import Workload, read_workload  # noqa: E402

CONCURRENCY = 24
SERVERS = ((0.33, 0.0), (0.33, 0.67), (1.5, 0.0))
"""Device and host tier, as shares of what the programs that run at a time hold."""
ARMS: dict[str, tuple[str, Admission]] = {
    "lru": ("lru", "fcfs"),
    "lpm": ("lru", "lpm"),
    "cost": ("cost", "fcfs"),
    "cost + admission": ("cost", "workflow"),
}
BASELINE = "lru"
INTRO = """\
# Admission, simulated

Made by `bench/bench_admission.py` from `bench/results/admission.json`; do not edit. How admission works is said in
[admission.md](admission.md), what is simulated in [simulator.md](simulator.md).

Completion times of programs as multiples of those with LRU and first come, first served: the mean, the 95th percentile,
and the worst of all programs, each against its own time there. **Bold is worse** than that by more than 1 % (for single
programs: more than twice as long). Where there is a host tier, contexts are loaded ahead in kvflow's columns. `lpm`, if
it is among them, is SGLang's order by the longest prefix that is cached, above its LRU. Programs with a prompt too long
for the smallest device are left out. Those that are left hold less, so that the device is smaller then, and may reject
a few calls, in all columns alike.
"""


def main() -> None:
    """Run and write."""
    Bench(
        name="admission",
        description=__doc__ or "",
        page=HERE.parent / "docs" / "admission-results.md",
        calls=600,
        measured=simulated,
        rows=rows,
        render=render,
        switches={"inclusive": "a host tier keeps copies of what the device holds, as SGLang's does"},
    ).main()


def simulated(path: Path, options: argparse.Namespace) -> Servers:
    """All arms on the servers of a source."""
    workload = read_workload([path])
    limit = max(2 * CONCURRENCY, programs_of(workload, options))
    live_tokens = workload.live_tokens(CONCURRENCY, limit)
    fitting = enough(workload.up_to(int(SERVERS[0][0] * live_tokens)), CONCURRENCY)
    fitting = plenty(fitting, limit)
    return [compared(fitting, limit, server, options) for server in SERVERS]


def compared(
    workload: Workload, limit: int, server: tuple[float, float], options: argparse.Namespace
) -> dict[str, Any]:
    """All arms on one server, every seed."""
    live_tokens = workload.live_tokens(CONCURRENCY, limit)
    device, host = (int(share * live_tokens) for share in server)
    tasks = [(arm, seed) for arm in ARMS for seed in range(options.seeds)]
    with ProcessPoolExecutor(
        min(options.jobs, len(tasks)),
        mp_context=multiprocessing.get_context("fork"),
        initializer=_given.append,
        initargs=((workload, limit, device, host, options),),
    ) as pool:
        times = dict(zip(tasks, pool.map(_simulated, tasks), strict=True))
    return {
        "device_share": server[0],
        "host_share": server[1],
        "device_tokens": device,
        "host_tokens": host,
        "programs": limit,
        "arms": {arm: measured(times, arm, options.seeds) for arm in ARMS},
    }


_given: list[tuple[Workload, int, int, int, argparse.Namespace]] = []
"""What the simulations of a worker process have in common."""


def _simulated(task: tuple[str, int]) -> dict[str, Any]:
    arm, seed = task
    workload, limit, device, host, options = _given[-1]
    policy, admission = ARMS[arm]
    settings = SimSettings(
        policy=policy,
        admission=admission,
        prefetch=policy != "lru" and host > 0,
        exclusive="never" if options.inclusive else "auto",
        device_tokens=device,
        host_tokens=host,
        concurrency=CONCURRENCY,
        seed=seed,
    )
    result = simulate(workload.drawn(seed, limit), load_profile(options.profile), settings)
    return {"completion_s": result.completion_s, "lost_s": result.lost_s, "span_s": result.span_s}


def measured(times: dict[tuple[str, int], dict[str, Any]], arm: str, seeds: int) -> dict[str, float]:
    """Means over the seeds, and the worst program of all."""
    own = [times[arm, seed] for seed in range(seeds)]
    theirs = [times[BASELINE, seed] for seed in range(seeds)]
    completions = [sorted(one["completion_s"].values()) for one in own]
    worst = max(
        seconds / other["completion_s"][name]
        for one, other in zip(own, theirs, strict=True)
        for name, seconds in one["completion_s"].items()
        if other["completion_s"][name]  # a program whose calls are all too long for the device takes no time
    )
    numbers = {
        "completion_mean_s": fmean(fmean(each) for each in completions),
        "completion_p95_s": fmean(quantile(each, 0.95) for each in completions),
        "worst_ratio": worst,
        "lost_s": fmean(one["lost_s"] for one in own),
        "span_s": fmean(one["span_s"] for one in own),
    }
    return {name: float(f"{value:.5g}") for name, value in numbers.items()}


def compared_arms(servers: list[dict[str, Any]]) -> list[str]:
    """What stands beside the baseline: arms that came later than a result are not in it."""
    return [arm for arm in ARMS if arm != BASELINE and all(arm in server["arms"] for server in servers)]


def rows(servers: list[dict[str, Any]], arms: Sequence[str] | None = None) -> Iterator[list[str]]:
    """A server and three cells per arm."""
    for server in servers:
        theirs = server["arms"][BASELINE]
        cells = []
        for arm in compared_arms(servers) if arms is None else arms:
            own = server["arms"][arm]
            for name in ("completion_mean_s", "completion_p95_s"):
                cells.append(shown(own[name] / theirs[name], 1.01))
            cells.append(shown(own["worst_ratio"], 2.0))
        host = f"{server['host_share']:.0%}" if server["host_share"] else "–"
        yield [f"{server['device_share']:.0%}", host, f"{theirs['completion_mean_s']:,.4g} s", *cells]


def shown(ratio: float, limit: float) -> str:
    """A ratio, bold above the limit."""
    return f"**{ratio:.2f}**" if ratio > limit else f"{ratio:.2f}"


def render(result: dict[str, Any]) -> str:
    """The page."""
    settings, commits = result["settings"], sorted({source["commit"][:8] for source in result["sources"].values()})
    told = (
        f"{settings['seeds']} seeds, {CONCURRENCY} programs at a time, about {settings['calls']} LLM calls a "
        f"simulation but at least {2 * CONCURRENCY} programs, profile {settings['profile']}. Device and host tier as "
        f"shares of what {CONCURRENCY} programs hold. Commit {', '.join(commits)}, {result['created'][:10]}."
    )
    servers = [server for source in result["sources"].values() for server in source["servers"]]
    arms = compared_arms(servers)
    columns = [f"{arm}: {name}" for arm in arms for name in ("mean", "p95", "worst")]
    lines = [INTRO, textwrap.fill(told, 120), "", f"| source | device | host | LRU's mean | {' | '.join(columns)} |"]
    lines.append(f"|---|---:|---:|---:|{'---:|' * len(columns)}")
    for name, source in sorted(result["sources"].items()):
        lines += [f"| {name} | {' | '.join(cells)} |" for cells in rows(source["servers"], arms)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
