"""What running only the programs that fit gains, on every trace of a folder, in simulation.

Three arms on servers too small for the programs that run at a time, without a host tier and with one, and on one that
holds all: SGLang as it is (LRU, first come first served), kvflow's eviction, and kvflow's eviction and admission. Arms
face the same programs in the same order. Results go to a JSON file after every source, and what is in it already is not
simulated again; docs/admission-results.md is made from it.

Usage: python bench/bench_admission.py DATA [--sources swe tau] [--seeds 2] [--calls 600] [--jobs 2]
       python bench/bench_admission.py --page      only write the page again
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import bench_simulate  # noqa: E402

from kvflow.cli.circumstances import circumstances  # noqa: E402
from kvflow.errors import TraceError  # noqa: E402
from kvflow.sim import SimSettings, load_profile, simulate  # noqa: E402
from kvflow.sim.admission import Admission  # noqa: E402
from kvflow.sim.measures import quantile  # noqa: E402
from kvflow.sim.workload import Workload, read_workload  # noqa: E402

RESULT = HERE / "results" / "admission.json"
PAGE = HERE.parent / "docs" / "admission-results.md"
CONCURRENCY = 24
SERVERS = ((0.33, 0.0), (0.33, 0.67), (1.5, 0.0))
"""Device and host tier, as shares of what the programs that run at a time hold."""
ARMS: dict[str, tuple[str, Admission]] = {
    "lru": ("lru", "fcfs"),
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
programs: more than twice as long).
"""


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="folder with traces (*.jsonl, *.jsonl.gz) at any depth")
    parser.add_argument("--sources", nargs="*", default=[""], help="only files whose path has one of these in it")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--calls", type=int, default=600, help="LLM calls per simulation, about; sets the programs")
    parser.add_argument("--profile", default="h200")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, default=RESULT)
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    options.limit = None
    if not options.page:
        if options.data is None or not options.data.is_dir():
            parser.error("give the folder with the traces")
        run(options)
    page = PAGE if options.json == RESULT else options.json.with_suffix(".md")
    page.write_text(render(json.loads(options.json.read_text())))
    print(f"written: {page.name}")


def run(options: argparse.Namespace) -> None:
    """Simulate what is missing."""
    settings = {name: getattr(options, name) for name in ("seeds", "calls", "profile")}
    result: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {"sources": {}}
    if result.setdefault("settings", settings) != settings:
        sys.exit(f"{options.json.name} was made with other settings: {result['settings']}; name another file by --json")
    result |= {"bench": "admission", **circumstances()}
    for name, path in bench_simulate.sources_of(options):
        if name in result["sources"]:
            continue
        try:
            workload = read_workload([path])
        except TraceError as error:
            print(f"left out: {name}: {str(error).replace(str(path), path.name).partition(' (')[0]}")
            continue
        limit = max(2 * CONCURRENCY, bench_simulate.programs_of(workload, options))
        live_tokens = workload.live_tokens(CONCURRENCY, limit)
        fitting = workload.up_to(int(SERVERS[0][0] * live_tokens))
        if len(fitting.programs) < CONCURRENCY:
            print(f"left out: {name}: fewer than {CONCURRENCY} programs that fit")
            continue
        servers = [compared(fitting, limit, server, options) for server in SERVERS]
        result["sources"][name] = {"commit": result["git"]["commit"], "servers": servers}
        bench_simulate.write(result, options.json)
        print(f"{name}: " + "; ".join(" ".join(cells) for cells in rows(servers)), flush=True)


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
        initargs=((workload, limit, device, host, options.profile),),
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


_given: list[tuple[Workload, int, int, int, str]] = []
"""What the simulations of a worker process have in common."""


def _simulated(task: tuple[str, int]) -> dict[str, Any]:
    arm, seed = task
    workload, limit, device, host, profile = _given[-1]
    policy, admission = ARMS[arm]
    settings = SimSettings(
        policy=policy,
        admission=admission,
        device_tokens=device,
        host_tokens=host,
        concurrency=CONCURRENCY,
        seed=seed,
    )
    result = simulate(workload.drawn(seed, limit), load_profile(profile), settings)
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
    )
    numbers = {
        "completion_mean_s": fmean(fmean(each) for each in completions),
        "completion_p95_s": fmean(quantile(each, 0.95) for each in completions),
        "worst_ratio": worst,
        "lost_s": fmean(one["lost_s"] for one in own),
        "span_s": fmean(one["span_s"] for one in own),
    }
    return {name: float(f"{value:.5g}") for name, value in numbers.items()}


def rows(servers: list[dict[str, Any]]) -> Iterator[list[str]]:
    """A server and one cell per arm."""
    for server in servers:
        theirs = server["arms"][BASELINE]
        cells = []
        for arm in list(ARMS)[1:]:
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
    arms = [f"{arm}: {name}" for arm in list(ARMS)[1:] for name in ("mean", "p95", "worst")]
    lines = [INTRO, textwrap.fill(told, 120), "", f"| source | device | host | LRU's mean | {' | '.join(arms)} |"]
    lines.append(f"|---|---:|---:|---:|{'---:|' * len(arms)}")
    for name, source in sorted(result["sources"].items()):
        lines += [f"| {name} | {' | '.join(cells)} |" for cells in rows(source["servers"])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
