"""What kvflow does for programs as a whole: closed loops on the real server, each arm with the same programs.

All programs run at once, on a device for a third of their contexts and a host tier for another two thirds, over a link
slowed down until loading 2048 tokens takes as long as decoding 32 (the ratio of KVFlow's single-GPU set-up), alone or
with --at-once of them: a batch takes this engine longer than one sequence, a GPU hardly longer. Arms:
SGLang's hierarchical cache with its own orders of requests, kvflow without admission, and with it;
and SGLang on a device that holds all contexts, which shows how much there is to gain, and, if asked for, kvflow there,
which shows what it costs where there is nothing. Each arm has a fresh server in every round, and rounds take the arms
in turns.

Workloads: sessions of a trace, contexts, answers, tools and pauses all scaled down by one factor; and a mix of
synthetic chains, fan-outs, loops, ReAct agents and supervisors.

Usage: python bench/bench_programs.py --trace FILE [--factor 0.05] [--rounds 2] [--json FILE]
       python bench/bench_programs.py --mixed [--programs 16] [--arms "sglang, fits all" "kvflow, fits all"] …
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

from bench_prefetch import decode_s, token_bytes  # noqa: E402
from replaying import play as play_on  # noqa: E402
from serving import require_whole  # noqa: E402

from kvflow.cli.circumstances import circumstances  # noqa: E402
from kvflow.cli.ending import ended_by_signals  # noqa: E402
from kvflow.patches.cpu.launch import ServerProcess, launch_server  # noqa: E402
from kvflow.patches.cpu.link import BANDWIDTH_VARIABLE  # noqa: E402
from kvflow.patches.cpu.model import build_model  # noqa: E402
from kvflow.replay.live import live_tokens, longest_request  # noqa: E402
from kvflow.replay.scaling import scaled  # noqa: E402
from kvflow.replay.work import Pace  # noqa: E402
from kvflow.sim import load_profile  # noqa: E402
from kvflow.sim.measures import quantile  # noqa: E402
from kvflow.sim.workload import read_workload  # noqa: E402
from kvflow.trace import Program, programs  # noqa: E402
from kvflow.trace.synth import SynthOptions, synthetic_trace  # noqa: E402

PAGE_TOKENS = 16
LINK_TOKENS = 2048
"""Loaded in the time in which a step's output is decoded."""
LONGEST_S = 10.0
KINDS = ("chain", "fan", "loop", "react", "supervisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One configuration of the comparison."""

    name: str
    flags: tuple[str, ...] = ()
    hints: bool = True
    fits_all: bool = False
    """Its device holds all contexts: what no order of eviction can better."""


ARMS = (
    Arm(name="sglang, fcfs", flags=("--schedule-policy", "fcfs"), hints=False),
    Arm(name="sglang, lpm", flags=("--schedule-policy", "lpm"), hints=False),
    Arm(name="kvflow, fcfs", flags=("--enable-kvflow", "--kvflow-admission", "fcfs")),
    Arm(name="kvflow", flags=("--enable-kvflow",)),
    Arm(name="sglang, fits all", flags=("--schedule-policy", "fcfs"), hints=False, fits_all=True),
    Arm(name="again, fits all", flags=("--schedule-policy", "fcfs"), hints=False, fits_all=True),
    Arm(name="kvflow, fits all", flags=("--enable-kvflow",), fits_all=True),
)
ASKED_FOR = ("again, fits all", "kvflow, fits all")
USUAL = tuple(arm.name for arm in ARMS if arm.name not in ASKED_FOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the servers have."""

    device_tokens: int
    host_tokens: int
    live_tokens: int
    link_bytes_s: float
    costs: dict[str, float] = field(default_factory=dict)


def mixed(count: int) -> list[Program]:
    """Programs of every shape in turns."""
    sizes: dict[str, Any] = {"fixed_tokens": 2048, "task_tokens": 512, "output_tokens": 32, "turns": 6, "agents": 4}
    each = -(-count // len(KINDS))
    made = [list(programs(synthetic_trace(kind, SynthOptions(workflows=each, seed=7, **sizes))[1])) for kind in KINDS]
    return [program for group in zip(*made, strict=True) for program in group][:count]


def sizes_of(work: list[Program], device: float, host: float, decoding_s: float, model: Path) -> Sizes:
    """Tiers as shares of the live contexts, and the link's speed."""
    bytes_s = LINK_TOKENS * token_bytes(model) / decoding_s
    costs = asdict(load_profile("cpu").costs) | {"load_token_s": token_bytes(model) / bytes_s}
    longest = longest_request(work)
    live = int(live_tokens(work))
    return Sizes(
        device_tokens=max(int(device * live), 2 * longest) // PAGE_TOKENS * PAGE_TOKENS,
        host_tokens=int(host * live),
        live_tokens=live,
        link_bytes_s=bytes_s,
        costs=costs,
    )


def start(arm: Arm, model: Path, folder: Path, sizes: Sizes) -> Any:
    """The server of an arm."""
    device_tokens, host_tokens = sizes.device_tokens, sizes.host_tokens
    if arm.fits_all:
        device_tokens = host_tokens = 2 * sizes.live_tokens // PAGE_TOKENS * PAGE_TOKENS
    flags = ["--page-size", str(PAGE_TOKENS), "--max-total-tokens", str(device_tokens), "--sleep-on-idle"]
    flags += ["--enable-hierarchical-cache", "--hicache-write-policy", "write_through"]
    flags += ["--hicache-ratio", f"{host_tokens / device_tokens:.3f}", *arm.flags]
    env = {f"KVFLOW_COSTS__{name.upper()}": str(value) for name, value in sizes.costs.items()}
    env |= {"KVFLOW_STRICT": "1", BANDWIDTH_VARIABLE: f"{sizes.link_bytes_s:.0f}"}
    return launch_server(model, log_path=folder / "server.log", extra_args=flags, env=env)


async def play(arm: Arm, server: ServerProcess, work: list[Program]) -> dict[str, Any]:
    """All programs at once."""
    limits = httpx.Limits(max_connections=256)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits, trust_env=False) as client:
        warm = {"input_ids": [9] * 64, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        (await client.post("/generate", json=warm)).raise_for_status()
        seen = await play_on(client, work, Pace(max_gap_s=LONGEST_S, tool_s=0.0), hints=arm.hints)
        stats: dict[str, Any] = {}
        if arm.hints:
            stats = (await client.get("/kvflow/v1/stats")).raise_for_status().json()["total"]
            require_whole(server.url)
    return {
        "completion_s": {flow.workflow: flow.completion_s for flow in seen.workflows},
        "ttft_s": statistics.fmean((call.first_s or call.ended_s) - call.asked_s for call in seen.calls),
        "span_s": seen.span_s,
        "recomputed_tokens": sum(call.recomputed_tokens for call in seen.calls),
        "prompt_tokens": sum(call.prompt_tokens for call in seen.calls),
        "answers": seen.answers,
        "stats": stats,
    }


def measure(
    arms: list[Arm], work: list[Program], sizes: Sizes, model: Path, folder: Path, rounds: int
) -> dict[str, list[Any]]:
    """Every arm, round by round."""
    taken: dict[str, list[Any]] = {arm.name: [] for arm in arms}
    for number in range(rounds):
        for arm in arms if number % 2 == 0 else arms[::-1]:
            with start(arm, model, folder, sizes) as server:
                taken[arm.name].append(asyncio.run(play(arm, server, work)))
            last = taken[arm.name][-1]
            print(f"round {number + 1}/{rounds} {arm.name:18} {told(last['completion_s'])}", flush=True)
    return taken


def told(completion_s: dict[str, float]) -> str:
    """A run in a line."""
    times = sorted(completion_s.values())
    return f"mean {statistics.fmean(times):7.2f} s, p95 {quantile(times, 0.95):7.2f} s"


def compared(taken: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Arms against the first one, means over the rounds; the worst program of any round against its own time there."""

    first = next(iter(taken))
    names = list(taken[first][0]["completion_s"])

    def mean(arm: str, name: str) -> float:
        return statistics.fmean(run["completion_s"][name] for run in taken[arm])

    def worst(runs: list[Any]) -> float:
        pairs = zip(runs, taken[first], strict=True)
        return max(run["completion_s"][name] / own["completion_s"][name] for run, own in pairs for name in names)

    base = {name: mean(first, name) for name in names}
    rows = []
    for arm, runs in taken.items():
        times = {name: mean(arm, name) for name in names}
        rows.append(
            {
                "arm": arm,
                "completion_mean_s": statistics.fmean(times.values()),
                "completion_p95_s": quantile(sorted(times.values()), 0.95),
                "mean_ratio": statistics.fmean(times.values()) / statistics.fmean(base.values()),
                "p95_ratio": quantile(sorted(times.values()), 0.95) / quantile(sorted(base.values()), 0.95),
                "worst_ratio": worst(runs),
                "recomputed_tokens": statistics.fmean(run["recomputed_tokens"] for run in runs),
                "span_s": statistics.fmean(run["span_s"] for run in runs),
            }
        )
    return rows


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="file with recorded sessions")
    parser.add_argument("--mixed", action="store_true", help="synthetic programs instead")
    parser.add_argument("--factor", type=float, default=0.05, help="of contexts, answers, tools and pauses")
    parser.add_argument("--programs", type=int, help="24 sessions, or 16 mixed programs")
    parser.add_argument("--device", type=float, default=0.33, help="device tier, in live contexts")
    parser.add_argument("--host", type=float, default=0.67, help="host tier, in live contexts")
    parser.add_argument("--at-once", type=int, default=1, help="answers decoded together when the link is chosen")
    parser.add_argument("--arms", nargs="+", choices=[arm.name for arm in ARMS], default=USUAL, metavar="ARM")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.mixed == (options.trace is not None):
        parser.error("give either --trace or --mixed")
    if options.at_once < 1:
        parser.error("--at-once must be at least 1")
    options.programs = options.programs or (16 if options.mixed else 24)
    if options.mixed:
        work = mixed(options.programs)
    else:
        drawn = read_workload([options.trace]).drawn(0, options.programs)
        work = [scaled(program, options.factor, options.factor) for program in drawn]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = build_model(folder / "model")
        sizes = sizes_of(work, options.device, options.host, decode_s(model, folder, options.at_once), model)
        calls = sum(len(program.calls) for program in work)
        print(f"{len(work)} programs, {calls} calls, {live_tokens(work):,} tokens live; {sizes}", flush=True)
        arms = [arm for arm in ARMS if arm.name in options.arms]
        taken = measure(arms, work, sizes, model, folder, options.rounds)
    rows = compared(taken)
    answers = {run["answers"] for runs in taken.values() for run in runs}
    for row in rows:
        print(
            f"{row['arm']:18} mean {row['completion_mean_s']:7.2f} s {row['mean_ratio']:.2f}, "
            f"p95 {row['p95_ratio']:.2f}, worst {row['worst_ratio']:.2f}, "
            f"recomputed {row['recomputed_tokens']:,.0f} tokens"
        )
    print(f"identical tokens: {len(answers) == 1}")
    if options.json:
        settings = {"trace": options.trace.parent.name if options.trace else "mixed", "factor": options.factor}
        settings |= {"programs": options.programs, "rounds": options.rounds, "at_once": options.at_once, "calls": calls}
        result = {"bench": "programs", **circumstances(), "settings": settings, "sizes": asdict(sizes)}
        result |= {"live_tokens": live_tokens(work), "comparison": rows, "identical_tokens": len(answers) == 1}
        options.json.write_text(json.dumps(result | {"arms": taken}, indent=1))


if __name__ == "__main__":
    with ended_by_signals():
        main()
