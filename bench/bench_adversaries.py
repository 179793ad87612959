"""What the guard lets wrong predictions cost, on every trace of a folder, in simulation.

Orders made to do harm (`adversaries.py`) run under the guard beside LRU; so does LRU itself, which shows the guard's
own error. Results go to a JSON file after every source, and what is in it already is not simulated again;
docs/guard.md is made from it.

Usage: python bench/bench_adversaries.py DATA [--sources swe tau] [--seeds 2] [--calls 1200] [--jobs 2]
       python bench/bench_adversaries.py --page      only write docs/guard.md again
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from adversaries import ADVERSARIES, GuardedLRU, registered  # noqa: E402
from bench_simulate import fitting  # noqa: E402
from by_source import Bench, Servers, programs_of  # noqa: E402

from kvflow.sim import load_profile  # noqa: E402
from kvflow.sim.compare import BASELINE, Plan, Run, compare  # noqa: E402
from kvflow.sim.workload import read_workload  # noqa: E402

CONCURRENCY = 12
POLICIES = (GuardedLRU.name, *ADVERSARIES)
MEASURES = ("recomputed_tokens", "lost_s")
LEAST_RECOMPUTED = 0.001
"""Of all prompt tokens: of less than that the tokens are told, since a single prompt may double it."""
INTRO = """\
# What wrong predictions cost

Made by `bench/bench_adversaries.py` from `bench/results/adversaries.json`; do not edit. How the guard works is said in
[eviction.md](eviction.md), who these adversaries are in `bench/adversaries.py`. Each is what the server believes for
the whole run, on every decision.

Numbers are multiples of LRU's, summed over three device sizes and all seeds: first the tokens computed again, then
the seconds lost to computing again and loading back. What harm has been done when the guard steps in weighs more in a
short simulation than in a server that runs for days, most of all where a host tier leaves LRU little to lose: with 400
calls instead of 1,200 (`adversaries-short.json`, `--calls 400`, commit 1a5e59e8) up to 1.08x over servers without and
with a host tier, and 1.10x on tau-bench, whose conversations are few. Sources with fewer than 32 programs are played
more than once, as new workflows with texts of their own; what a single pass over the smallest one gives is in
`adversaries-once.json` (`--sources metagpt --limit 15`): up to 1.19x (1.35x without a host tier, commit 987b55a1) in
148 calls, in which LRU loses a tenth of a second.
`guarded-lru` is LRU under the guard: what differs from 1.00 there is the guard's own error. **Bold is above 1.10.**
Where LRU computes less than 0.1 % of all prompt tokens again, there are thousands of tokens instead of a multiple,
LRU's and the order's, and the share that the difference is of all prompt tokens.
"""


def main() -> None:
    """Run and write."""
    with registered():
        Bench(
            name="adversaries",
            description=__doc__ or "",
            page=HERE.parent / "docs" / "guard.md",
            calls=1200,
            measured=simulated,
            rows=rows,
            render=render,
        ).main()


def simulated(path: Path, options: argparse.Namespace) -> Servers:
    """Every order on the servers of a source."""
    workload, setups = fitting(read_workload([path]), options)
    setups = [setup for setup in setups if setup.concurrency == CONCURRENCY]
    plan = Plan(
        profile=load_profile(options.profile),
        setups=setups,
        policies=POLICIES,
        seeds=range(options.seeds),
        limit=programs_of(workload, options),
    )
    runs = compare(plan, workload, jobs=options.jobs)
    return [
        {
            "device_size": setup.device_size,
            "host_size": setup.host_size,
            "prompt_tokens": total(runs, index, BASELINE, "prompt_tokens"),
            "policies": {
                policy: {measure: total(runs, index, policy, measure) for measure in (*MEASURES, *guarded(policy))}
                for policy in (BASELINE, *POLICIES)
            },
        }
        for index, setup in enumerate(setups)
    ]


def guarded(policy: str) -> tuple[str, ...]:
    """What the guard says itself, of orders it watches."""
    return () if policy == BASELINE else ("guard_lost_s", "guard_gained_s", "guard_fallbacks", "guard_recoveries")


def total(runs: Sequence[Run], setup: int, policy: str, measure: str) -> float:
    """Sum over the seeds of a server."""
    chosen = (run for run in runs if run.setup == setup and run.policy == policy)
    return float(f"{sum(run.measures[measure] for run in chosen):.6g}")


def rows(servers: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """Host tier and one cell per order: all servers together, then those without and those with a host tier."""
    yield ["both", *(cell(servers, policy) for policy in POLICIES)]
    for host_size in dict.fromkeys(server["host_size"] for server in servers):
        chosen = [server for server in servers if server["host_size"] == host_size]
        yield ["–" if host_size == "none" else host_size, *(cell(chosen, policy) for policy in POLICIES)]


def cell(servers: Sequence[dict[str, Any]], policy: str) -> str:
    """Recomputed tokens and lost seconds of an order, as multiples of LRU's."""

    def summed(name: str, measure: str) -> float:
        return sum(server["policies"][name][measure] for server in servers)

    prompt_tokens = sum(server["prompt_tokens"] for server in servers)
    theirs, ours = (summed(name, "recomputed_tokens") for name in (BASELINE, policy))
    if theirs < LEAST_RECOMPUTED * prompt_tokens:
        text = f"{theirs / 1000:,.1f} k → {ours / 1000:,.1f} k ({(ours - theirs) / prompt_tokens:+.2%})"
    else:
        text = f"{ours / theirs:.2f}"
    lost_s = [summed(name, "lost_s") for name in (BASELINE, policy)]
    seconds = f"{lost_s[1] / lost_s[0]:.2f}" if lost_s[0] else "–"
    return f"{bold(text, ours, theirs)} · {bold(seconds, lost_s[1], lost_s[0])}"


def bold(text: str, ours: float, theirs: float) -> str:
    """What is more than a tenth above LRU's."""
    return f"**{text}**" if ours > 1.10 * theirs else text


def render(result: dict[str, Any]) -> str:
    """The page."""
    settings, commits = result["settings"], sorted({source["commit"][:8] for source in result["sources"].values()})
    told = (
        f"{settings['seeds']} seeds, {CONCURRENCY} programs at a time, about {settings['calls']} LLM calls a "
        f"simulation, profile {settings['profile']}. Commit {', '.join(commits)}, {result['created'][:10]}."
    )
    lines = [INTRO, textwrap.fill(told, 120), "", f"| source | host | {' | '.join(POLICIES)} |"]
    lines.append(f"|---|---|{'---:|' * len(POLICIES)}")
    for name, source in sorted(result["sources"].items()):
        lines += [f"| {name} | {' | '.join(cells)} |" for cells in rows(source["servers"])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
