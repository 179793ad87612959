"""What eviction orders lose on every trace of a folder, in simulation.

For every file that can be imported: all policies on three device sizes, at two loads, with and without a host tier,
with several seeds. Sizes are shares of what the programs that run at a time hold. Results go to a JSON file after every
server, and what is in it already is not simulated again, so that policies can be added later; docs/results.md is made
from it.

Usage: python bench/bench_simulate.py DATA [--sources swe tau] [--seeds 5] [--jobs 2] [--calls 1200] [--limit N]
       python bench/bench_simulate.py --page      only write docs/results.md again
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import simulate_page  # noqa: E402
from by_source import begun, enough, left_out, options_of, parser_of, plenty, programs_of, sources_of, write  # noqa: E402

from kvflow.cli.circumstances import circumstances  # noqa: E402
from kvflow.policy import POLICIES  # noqa: E402
from kvflow.sim import Waits, load_profile  # noqa: E402
from kvflow.sim.compare import DEFAULT_POLICIES, Plan, Setup, compare, grid  # noqa: E402
from kvflow.sim.summary import document  # noqa: E402
from kvflow.sim.workload import Workload, parse_size, read_workload  # noqa: E402

RESULT = HERE / "results" / "simulate.json"
PAGE = HERE.parent / "docs" / "results.md"
DEVICES, HOSTS, CONCURRENCIES = ("30%", "50%", "70%"), ("none", "100%"), (12, 24)
ORDER = {name: index for index, name in enumerate(POLICIES)}
LEAST_DIFFERENT = 4
"""Programs of a source: fewer show little of a kind of work, however often they are played."""
SERVERS = len(DEVICES) * len(HOSTS) * len(CONCURRENCIES)
CALLS_PER_S = 850
"""Of one process on an otherwise idle core; for the first estimate only."""
MEASURES = (
    "lost_s", "recomputed_s", "reloaded_s", "stalled_s", "prefill_s", "ttft_p50_s", "ttft_p95_s", "queue_mean_s",
    "completion_mean_s", "completion_p95_s", "retractions", "rejected", "calls", "guard_share", "guard_fallbacks",
    "calls_per_min",
)  # fmt: skip


def main() -> None:
    """Run and write."""
    parser = parser_of(__doc__ or "", seeds=5, calls=1200, result=RESULT)
    parser.add_argument("--policies", nargs="*", default=DEFAULT_POLICIES)
    parser.add_argument("--tool-spread", type=float, default=Waits().tool_spread, help="of durations the traces lack")
    options = options_of(parser)
    if not options.page:
        run(options)
    page = PAGE if options.json == RESULT else options.json.with_suffix(".md")
    page.write_text(simulate_page.render(json.loads(options.json.read_text())))
    print(f"written: {page.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file with servers that have not been simulated yet.

    Attributes:
        programs, calls: of one simulation.
    """

    name: str
    path: Path
    setups: list[Setup]
    programs: int
    calls: int


def run(options: argparse.Namespace) -> None:
    """Simulate what is missing."""
    names = ("seeds", "calls", "limit", "profile")
    settings = {name: getattr(options, name) for name in names} | {"devices": DEVICES, "hosts": HOSTS}
    waits = Waits(tool_spread=options.tool_spread)
    if waits != Waits():
        settings["tool_spread"] = waits.tool_spread
    settings = json.loads(json.dumps(settings | {"concurrencies": CONCURRENCIES}))
    result = begun(options.json, settings)
    profile = load_profile(options.profile)
    result |= {"bench": "simulate", **circumstances(), "profile": profile.model_dump()}
    todo = list(missing(options, result["sources"]))
    plan = Plan(
        profile=profile,
        setups=(),
        policies=options.policies,
        seeds=range(options.seeds),
        waits=waits,
        exclusive="never",
    )
    simulations = len(plan.all_policies) * options.seeds
    left = total = sum(source.calls * len(source.setups) * simulations for source in todo)
    print(
        f"{len(todo)} sources, {left:,} LLM calls to simulate; about {left / CALLS_PER_S / options.jobs / 60:.0f} min"
    )
    began_s = time.perf_counter()
    for source in todo:
        workload, _ = fitting(read_workload([source.path]), options)
        for setup in source.setups:
            here = replace(plan, setups=[setup], limit=source.programs)
            enter(result, source.name, document(here, workload, compare(here, workload, jobs=options.jobs)))
            write(result, options.json)
            left -= source.calls * simulations
            rest_min = (time.perf_counter() - began_s) / (total - left) * left / 60
            print(f"{told(result, source.name, setup)}; about {rest_min:.0f} min left", flush=True)


def missing(options: argparse.Namespace, done: dict[str, Any]) -> Iterator[Source]:
    """What is not in the result yet."""
    for name, path in sources_of(options):
        known = [setup for setup in done.get(name, {}).get("setups", []) if has_all(setup, options.policies)]
        if len(known) == SERVERS:
            continue
        with left_out(name, path):
            workload, setups = fitting(read_workload([path]), options)
            finished = [(setup["concurrency"], setup["host_size"], setup["device_size"]) for setup in known]
            programs = programs_of(workload, options)
            yield Source(
                name=name,
                path=path,
                setups=[s for s in setups if (s.concurrency, s.host_size, s.device_size) not in finished],
                programs=programs,
                calls=round(programs * len(workload.request_tokens) / len(workload.programs)),
            )


def has_all(setup: dict[str, Any], policies: list[str]) -> bool:
    """Whether a server has been simulated with all these policies."""
    return {policy["policy"] for policy in setup["policies"]} >= set(policies)


def fitting(workload: Workload, options: argparse.Namespace) -> tuple[Workload, list[Setup]]:
    """Leave out programs with requests that the smallest device cannot hold, and size the servers for the others.

    Those that are left hold less, so the smallest device is smaller then, and may still reject a few calls; the page
    says how many. To go on until none is rejected would leave little of sources with a few very long programs.
    """
    workload = plenty(workload, programs_of(workload, options))
    kept = workload.up_to(min(setup.device_tokens for setup in servers(workload, options)))
    kept = enough(kept, LEAST_DIFFERENT)
    kept = plenty(kept, programs_of(kept, options))
    return kept, servers(kept, options)


def servers(workload: Workload, options: argparse.Namespace) -> list[Setup]:
    """What is simulated of a source."""
    return grid(
        workload,
        devices=map(parse_size, DEVICES),
        hosts=map(parse_size, HOSTS),
        storages=[parse_size("none")],
        concurrencies=CONCURRENCIES,
        limit=programs_of(workload, options),
    )


def enter(result: dict[str, Any], name: str, made: dict[str, Any]) -> None:
    """Put the servers of a document into the result, cut down to what the page and its readers need."""
    programs = made["traces"][0]["programs"]
    source = result["sources"].setdefault(
        name,
        {"trace": made["traces"][0], "context_tokens": round(made["context_tokens"]), "setups": []},
    )
    source |= {"limit": made["settings"]["limit"], "times": made["times"], "git": result["git"]}
    source["left_out"] = programs - made["programs"] // made["times"]
    for setup in made["setups"]:
        for policy in setup["policies"]:
            measures = policy["measures"]
            policy["measures"] = {key: short(measures[key]["mean"]) for key in MEASURES if key in measures}
            policy["measures"]["lost_s"] = short(measures["lost_s"])
            policy["relative"] = {key: short(value) for key, value in policy["relative"].items() if value}
            policy["gap_closed"] = short(policy["gap_closed"])
            del policy["evicted_tokens"]
        place(source["setups"], setup)
    source["setups"].sort(key=lambda setup: (setup["concurrency"], setup["host_tokens"], setup["device_tokens"]))


def place(setups: list[dict[str, Any]], made: dict[str, Any]) -> None:
    """Enter a server; what other policies have brought on the same one stays."""
    size = ("concurrency", "host_tokens", "device_tokens")
    for index, known in enumerate(setups):
        if all(known[name] == made[name] for name in size):
            policies = {policy["policy"]: policy for policy in (*known["policies"], *made["policies"])}
            setups[index] = made | {"policies": sorted(policies.values(), key=lambda each: ORDER[each["policy"]])}
            return
    setups.append(made)


def short(value: Any) -> Any:
    """Numbers with five digits, which is more than they are good for."""
    if isinstance(value, dict):
        return {key: short(part) for key, part in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def told(result: dict[str, Any], name: str, setup: Setup) -> str:
    """A server in a line: what every policy lost, relative to LRU."""
    cells = []
    entered = result["sources"][name]["setups"]
    for policy in next(each for each in entered if each.items() >= asdict(setup).items())["policies"]:
        ratio = policy["relative"].get("lost_s")
        cells.append(f"{policy['policy']} " + (f"{ratio['mean']:.2f}" if ratio else "–"))
    where = f"{setup.concurrency} at a time, device {setup.device_size}, host {setup.host_size}"
    return f"{name}: {where}: {', '.join(cells)}"


if __name__ == "__main__":
    main()
