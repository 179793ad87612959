"""What kvflow costs: CPU time of the scheduler, and of all the server's processes, paired, against stock SGLang.

Servers run side by side on the CPU engine, and the same requests go to them in turns:

* ``vanilla``: SGLang without kvflow's plugin, which SGLANG_PLUGINS leaves out; only the CPU engine is prepared.
* ``rust core``, ``python core``: the plugin is installed and off; SGLang's default tree core, and the other.
* ``again``: as ``rust core``, which shows by how much servers that are the same differ for as long as they run.
* ``kvflow``: on, without hints.
* ``hinted``: on, and every request is the only step of a workflow of its own.
* ``endless``: on, and every request is a step of one of 48 workflows, which never end and call agents at random, so
  that kvflow expects contexts back that do not come: what is computed differs, not only what it costs to decide.

Waiting takes no CPU time; the model's forward pass, which runs in the scheduler's process on this engine, does. What
hints mean is worked out in the HTTP process, so that only all processes together have what they cost. The comparison
that isolates kvflow is the one with the Python core; the others show what choosing that core costs, and being
installed. With --nodes every server's radix tree has grown to that size before anything is measured, and is full, so
that each request evicts from it.

Usage: python bench/bench_overhead.py [--pairs 8] [--arms ...] [--nodes 100000] [--json FILE]
       --nodes 100000 takes 5 GB of memory and a few minutes for each arm
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from rich.progress import track
from scipy.stats import bootstrap
from serving import require_whole

from kvflow.cli.circumstances import circumstances
from kvflow.cli.ending import ended_by_signals
from kvflow.hints import envelope, step_action
from kvflow.patches.cpu.launch import ServerProcess, launch_server
from kvflow.patches.cpu.model import FIRST_PRINTABLE, LAST_PRINTABLE, build_model
from kvflow.replay.watching import cpu_s

FLAGS = ["--enable-hierarchical-cache", "--hicache-ratio", "2", "--sleep-on-idle"]
CPU_ONLY = """
import inspect

def register():
    if any(frame.function == "run_scheduler_process" for frame in inspect.stack(context=0)):
        from kvflow.patches import cpu
        cpu.install()
"""
"""A plugin of SGLang that does for the CPU engine what kvflow's does, and nothing else."""
ARMS: dict[str, tuple[list[str], dict[str, str]]] = {
    "vanilla": ([], {"SGLANG_PLUGINS": "kvflow-cpu,cpu-only"}),
    "python core": ([], {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}),
    "rust core": ([], {}),
    "again": ([], {}),
    "kvflow": (["--enable-kvflow"], {"KVFLOW_STRICT": "1"}),
    "hinted": (["--enable-kvflow"], {"KVFLOW_STRICT": "1"}),
    "endless": (["--enable-kvflow"], {"KVFLOW_STRICT": "1"}),
}
COMPARISONS = (
    ("again", "rust core"),
    ("kvflow", "python core"),
    ("kvflow", "rust core"),
    ("hinted", "python core"),
    ("hinted", "rust core"),
    ("endless", "rust core"),
    ("python core", "rust core"),
    ("rust core", "vanilla"),
    ("kvflow", "vanilla"),
)
HEADS = 12
REQUESTS = 48
WARM_UP = 1 << 20
"""Seed of the round before the first: no other round's (and not -1, for which `random` draws what it draws for 1)."""
AT_ONCE = 4
OUTPUT_TOKENS = 24
SMALL_PAGE, TAILS = 4, 16
"""Of large trees: a node is one page, so that so many fit in memory, and heads have so many tails."""
FILLED_AT_ONCE = 512


def prompts(seed: int) -> list[tuple[int, str]]:
    """Requests that share heads and press on the cache; each with the number of its head."""
    rng = random.Random(seed)
    heads = ["".join(rng.choice("abcdefgh ") for _ in range(900)) for _ in range(HEADS)]
    numbers = rng.choices(range(HEADS), k=REQUESTS)
    return [(number, heads[number] + "".join(rng.choice("stuvwxyz ") for _ in range(300))) for number in numbers]


def bodies(arm: str, seed: int) -> Iterator[dict[str, Any]]:
    """What is sent for one round of requests."""
    params = {"temperature": 0, "max_new_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    for index, (head, text) in enumerate(prompts(seed)):
        hints = {}
        if arm in ("hinted", "endless"):
            ends = arm == "hinted"
            workflow_id = f"w{seed}-{index}" if ends else f"w{index}"
            step = step_action(workflow_id=workflow_id, workflow_type="bench", agent=f"a{head}", final=ends)
            hints = {"kv_hints": envelope([step])}
        yield {"text": text, "sampling_params": params, **hints}


async def play(url: str, arm: str, seed: int) -> None:
    """Send one round of requests."""
    gate = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def one(body: dict[str, Any]) -> None:
            async with gate:
                (await client.post("/generate", json=body)).raise_for_status()

        await asyncio.gather(*(one(body) for body in bodies(arm, seed)))


def fill(url: str, nodes: int) -> None:
    """Grow a server's radix tree to so many nodes of a page each."""
    rng = random.Random(0)
    ids: list[list[int]] = []
    params = {"temperature": 0, "max_new_tokens": 1}
    with httpx.Client(base_url=url, timeout=600) as client:
        for _ in track(range(0, nodes, TAILS + 1), "filling"):
            head = rng.choices(range(FIRST_PRINTABLE, LAST_PRINTABLE), k=SMALL_PAGE)
            # The last token of a prompt is always computed, so one more than is to be cached.
            tails = [rng.choices(range(FIRST_PRINTABLE, LAST_PRINTABLE), k=SMALL_PAGE + 1) for _ in range(TAILS)]
            ids += [head + tail for tail in tails]
            if len(ids) >= FILLED_AT_ONCE:
                client.post("/generate", json={"input_ids": ids, "sampling_params": params}).raise_for_status()
                ids = []


def scheduler_of(server: Any) -> psutil.Process:
    """The scheduler among a server's processes: the child that has used the most CPU time by now."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    return max(children, key=lambda child: sum(child.cpu_times()[:2]))


def start(arm: str, nodes: int, model: Path, folder: Path) -> AbstractContextManager[ServerProcess]:
    """The server of an arm; its log goes to a folder."""
    flags, env = ARMS[arm]
    page, tokens = (SMALL_PAGE, SMALL_PAGE * nodes) if nodes else (16, 8192)
    flags = [*flags, "--page-size", str(page), "--max-total-tokens", str(tokens)]
    found = [write_plugin(folder)] if arm == "vanilla" else []
    return launch_server(
        model,
        log_path=folder / f"{arm}.log",
        extra_args=[*FLAGS, *flags],
        env=env,
        python_path=found,
    )


def write_plugin(folder: Path) -> Path:
    """Install :data:`CPU_ONLY` for servers that search a folder, which is returned."""
    package = folder / "plugin" / "cpu_only-0.dist-info"
    package.mkdir(parents=True)
    (package.parent / "cpu_only.py").write_text(CPU_ONLY)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: cpu-only\nVersion: 0\n")
    (package / "entry_points.txt").write_text("[sglang.srt.plugins]\ncpu-only = cpu_only:register\n")
    return package.parent


def measure(arms: Sequence[str], pairs: int, nodes: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    """CPU seconds of every arm's scheduler and whole server, round by round; all arms play the same rounds."""
    model = build_model(folder / "model")
    seconds: dict[str, dict[str, list[float]]] = {name: {arm: [] for arm in arms} for name in ("scheduler", "server")}
    with contextlib.ExitStack() as running:
        servers = {}
        for arm in arms:
            servers[arm] = running.enter_context(start(arm, nodes, model, folder))
            fill(servers[arm].url, nodes)
            asyncio.run(play(servers[arm].url, arm, seed=WARM_UP))
        pids = {
            arm: {"scheduler": scheduler_of(server).pid, "server": server.process.pid}
            for arm, server in servers.items()
        }
        for number in range(pairs):
            order = arms if number % 2 == 0 else arms[::-1]
            for arm in order:
                before_s = {name: cpu_s(pid) for name, pid in pids[arm].items()}
                asyncio.run(play(servers[arm].url, arm, seed=number))
                for name, pid in pids[arm].items():
                    seconds[name][arm].append(cpu_s(pid) - before_s[name])
                took = ", ".join(f"{name} {of_arms[arm][-1]:.2f} s" for name, of_arms in seconds.items())
                print(f"round {number + 1}/{pairs} {arm:12} {took}", flush=True)
        for server in servers.values():
            require_whole(server.url)
    return seconds


def paired(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Ratio of what two arms took in all rounds, with its 95 % bootstrap interval."""

    def ratio(one: Any, other: Any, axis: int = -1) -> Any:
        return np.sum(one, axis=axis) / np.sum(other, axis=axis)

    interval = bootstrap((ours, theirs), ratio, paired=True, method="percentile", rng=0).confidence_interval
    return {
        "ratio": sum(ours) / sum(theirs),
        "ratio_median": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        "interval_95": [float(interval.low), float(interval.high)],
        "n": len(ours),
    }


def mean_interval(values: list[float]) -> list[float]:
    """95 % bootstrap interval of a mean."""
    interval = bootstrap((values,), np.mean, method="percentile", rng=0).confidence_interval
    return [float(interval.low), float(interval.high)]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--nodes", type=int, default=0, help="size of the radix tree before anything is measured")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(options.arms, options.pairs, options.nodes, Path(folder))
    result = {"bench": "overhead", **circumstances(), "nodes": options.nodes}
    for name, of_arms in seconds.items():
        comparison = {
            f"{ours} / {theirs}": paired(of_arms[ours], of_arms[theirs])
            for ours, theirs in COMPARISONS
            if ours in of_arms and theirs in of_arms
        }
        for pair, found in comparison.items():
            low, high = found["interval_95"]
            print(f"{name:9} {pair:26} {found['ratio']:.4f}  95 % [{low:.4f}, {high:.4f}]  n={found['n']}")
        result |= {f"{name}_cpu_s": of_arms, f"{name}_comparison": comparison}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    with ended_by_signals():
        main()
