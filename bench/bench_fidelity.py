"""How true the simulator is: the same programs through the real server on the CPU engine and through the simulator.

Small synthetic multi-agent programs run in a closed loop against SGLang with kvflow (host tier, throttled link), and
then, with the same capacities, against the simulated server, which gets its times from the profile ``cpu``, and once
more from a profile fitted to this very server just before the run (other people's work on the machine then slows both).
Hits, loads and computed tokens tell whether the cache does the same; times tell whether the rest of the server is
understood. docs/fidelity.md discusses the result. The guard is off on both sides: it decides by thresholds, so that a
little noise is enough for another decision.

Usage: python bench/bench_fidelity.py [--policies lru cost] [--repeats 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from replaying import play as play_on  # noqa: E402
from serving import require_whole  # noqa: E402

from kvflow.cli.circumstances import circumstances  # noqa: E402
from kvflow.cli.ending import ended_by_signals  # noqa: E402
from kvflow.patches.cpu.launch import ServerProcess, launch_server  # noqa: E402
from kvflow.patches.cpu.model import build_model  # noqa: E402
from kvflow.replay.work import Pace  # noqa: E402
from kvflow.sim import Profile, SimSettings, Waits, load_profile, simulate  # noqa: E402
from kvflow.sim.fit import fit  # noqa: E402
from kvflow.sim.measure import MeasureSettings, measure  # noqa: E402
from kvflow.trace import Program, programs  # noqa: E402
from kvflow.trace.synth import SynthOptions, synthetic_trace  # noqa: E402

PAGE_TOKENS, DEVICE_TOKENS, HOST_RATIO = 16, 4096, 1.5
HOST_TOKENS = (int(DEVICE_TOKENS * HOST_RATIO) // PAGE_TOKENS + 1) * PAGE_TOKENS  # SGLang adds a page
AT_ONCE, MAX_RUNNING = 6, 8
LINK_BYTES_S = 1e8
LONGEST_TOOL_S = 1.5
CALIBRATION = MeasureSettings(
    lengths=(128, 512, 1024, 2048), contexts=(128, 1024), concurrencies=(1, 3, 6), decode_tokens=48, repeats=2
)


def workload(seed: int) -> list[Program]:
    """ReAct agents with tools, and supervisors that hand jobs to workers, in turns."""
    sizes: dict[str, Any] = {"fixed_tokens": 640, "task_tokens": 256, "output_tokens": 24, "seed": seed}
    react = SynthOptions(workflows=14, turns=4, **sizes)
    supervisor = SynthOptions(workflows=10, agents=3, turns=3, **sizes)
    made = [list(programs(synthetic_trace(kind, o)[1])) for kind, o in (("react", react), ("supervisor", supervisor))]
    mixed = [program for pair in zip(*made, strict=False) for program in pair]
    return mixed + made[0][len(made[1]) :]


def start(model: Path, folder: Path, policy: str, costs: Profile) -> Any:
    """A server that evicts by a policy, with the costs the simulated one has."""
    flags = ["--enable-kvflow", "--kvflow-policy", policy, "--kvflow-admission", "fcfs"]
    flags += ["--enable-hierarchical-cache"]
    flags += ["--hicache-ratio", str(HOST_RATIO), "--hicache-write-policy", "write_through", "--sleep-on-idle"]
    flags += ["--page-size", str(PAGE_TOKENS), "--max-total-tokens", str(DEVICE_TOKENS)]
    flags += ["--max-running-requests", str(MAX_RUNNING)]
    environment = {f"KVFLOW_COSTS__{name.upper()}": str(value) for name, value in asdict(costs.costs).items()}
    environment |= {"KVFLOW_CPU_LINK_BYTES_PER_S": str(LINK_BYTES_S), "KVFLOW_STRICT": "1"}
    environment |= {"KVFLOW_GUARD__ENABLED": "false", "KVFLOW_COSTS__LEARN_COMPUTE": "false"}
    return launch_server(model, log_path=folder / f"{policy}.log", extra_args=flags, env=environment)


async def play(server: ServerProcess, work: list[Program]) -> dict[str, float]:
    """Run the programs on the real server."""
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits, trust_env=False) as client:
        warm = {"input_ids": [9] * 64, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        (await client.post("/generate", json=warm)).raise_for_status()
        while (await client.post("/flush_cache")).status_code != httpx.codes.OK:
            await asyncio.sleep(0.1)
        await client.get("/kvflow/v1/stats", params={"reset": True})
        seen = await play_on(client, work, Pace(max_gap_s=LONGEST_TOOL_S, tool_s=0.0), hints=True, at_once=AT_ONCE)
        await asyncio.sleep(0.5)
        counters = (await client.get("/kvflow/v1/stats")).json()["total"]
    require_whole(server.url)
    counters["recomputed_tokens"] = sum(call.recomputed_tokens for call in seen.calls)
    ttft_s = [(call.first_s or call.ended_s) - call.asked_s for call in seen.calls]
    return numbers(counters, ttft_s, [flow.ended_s - flow.started_s for flow in seen.workflows], seen.span_s)


def numbers(
    counters: dict[str, Any], ttft_s: list[float], completion_s: list[float], span_s: float
) -> dict[str, float]:
    """What is compared."""
    return {
        "prompt_tokens": counters["prompt_tokens"],
        "hit_device_tokens": counters["hit_tokens"]["device"],
        "hit_host_tokens": counters["hit_tokens"]["host"],
        "computed_tokens": counters["computed_tokens"],
        "recomputed_tokens": counters["recomputed_tokens"],
        "evicted_device_tokens": sum(n for key, n in counters["evicted_tokens"].items() if key.startswith("device/")),
        "evicted_host_tokens": sum(n for key, n in counters["evicted_tokens"].items() if key.startswith("host/")),
        "load_back_tokens": counters["load_back_tokens"],
        "load_back_s": counters["load_back_s"],
        "stall_s": counters["stall_s"],
        "ttft_mean_s": statistics.fmean(ttft_s),
        "ttft_p95_s": statistics.quantiles(ttft_s, n=20)[-1],
        "completion_mean_s": statistics.fmean(completion_s),
        "span_s": span_s,
    }


def imagine(work: list[Program], policy: str, profile: Profile) -> dict[str, float]:
    """Run the programs on the simulated server."""
    settings = SimSettings(
        policy=policy,
        guard=False,
        prefetch=True,
        device_tokens=DEVICE_TOKENS,
        host_tokens=HOST_TOKENS,
        concurrency=AT_ONCE,
        page_tokens=PAGE_TOKENS,
        waits=Waits(max_delay_s=LONGEST_TOOL_S),
    )
    longest = max(call.output_tokens for program in work for call in program.calls)
    served = profile.model_copy(update={"max_running": MAX_RUNNING, "reserve_tokens": longest})
    result = simulate(work, served, settings)
    return numbers(asdict(result.counters), result.times.ttft_s, [*result.completion_s.values()], result.span_s)


def average(runs: list[dict[str, float]]) -> dict[str, float]:
    """Mean of every number."""
    return {key: statistics.fmean(run[key] for run in runs) for key in runs[0]}


def show(policy: str, real: list[dict[str, float]], simulated: dict[str, list[dict[str, float]]]) -> None:
    """Print simulated beside real."""
    heads = "".join(f" {name:>12} {'error':>7}" for name in simulated)
    print(f"\n{policy:22} {'real':>10} {'spread':>7}{heads}")
    imagined = [average(runs) for runs in simulated.values()]
    for key, mean in average(real).items():
        digits = 0 if mean >= 1000 else 3
        values = [run[key] for run in real]
        spread = (max(values) - min(values)) / mean if mean else 0.0
        line = f"{key:22} {mean:10.{digits}f} {spread:7.1%}"
        for run in imagined:
            error = f"{run[key] / mean - 1:+7.1%}" if mean else f"{'-':>7}"
            line += f" {run[key]:12.{digits}f} {error}"
        print(line)


@dataclass(slots=True)
class Arm:
    """Real runs of one policy, and what the simulator makes of them.

    Attributes:
        fitted: profile of every real run's server, measured just before it.
        simulated: by profile.
    """

    real: list[dict[str, float]] = field(default_factory=list)
    fitted: list[Profile] = field(default_factory=list)
    simulated: dict[str, list[dict[str, float]]] = field(default_factory=dict)


def run(arms: dict[str, Arm], work: list[Program], repeats: int) -> None:
    """Run every policy, each on a fresh server, in turns."""
    packaged = load_profile("cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = build_model(folder / "model")
        for repeat in range(repeats):
            for policy, arm in arms.items():
                with start(model, folder, policy, packaged) as server:
                    print(f"real run {repeat + 1}/{repeats}: {policy}", flush=True)
                    measured = asyncio.run(measure(server.url, "fitted", CALIBRATION, lambda text: None))
                    arm.fitted.append(fit(measured).profile)
                    arm.real.append(asyncio.run(play(server, work)))
    for policy, arm in arms.items():
        arm.simulated["cpu"] = [imagine(work, policy, packaged)]
        arm.simulated["fitted"] = [imagine(work, policy, profile) for profile in arm.fitted]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="*", default=["lru", "cost"])
    parser.add_argument("--repeats", type=int, default=1, help="real runs per policy, each on a fresh server")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    work = workload(options.seed)
    arms = {policy: Arm() for policy in options.policies}
    run(arms, work, options.repeats)
    for policy, arm in arms.items():
        show(policy, arm.real, arm.simulated)
    result = {
        "bench": "fidelity",
        **circumstances(),
        "settings": {"device_tokens": DEVICE_TOKENS, "host_tokens": HOST_TOKENS, "at_once": AT_ONCE},
        "calls": sum(len(program.calls) for program in work),
        "arms": {
            policy: {
                "real": arm.real,
                "simulated": arm.simulated,
                "fitted": [profile.model_dump() for profile in arm.fitted],
            }
            for policy, arm in arms.items()
        },
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    with ended_by_signals():
        main()
