"""What kvflow costs when nobody sends hints: scheduler CPU time, paired, against stock SGLang.

Four servers run side by side on the CPU engine, and the same hint-free requests go to them in turns:

* ``vanilla``: SGLang without kvflow's plugin, which SGLANG_PLUGINS leaves out; only the CPU engine is prepared.
* ``rust core``, ``python core``: the plugin is installed and off; SGLang's default tree core, and the other.
* ``kvflow``: on.

CPU time is that of the scheduler process, so waiting does not count. The comparison that isolates kvflow is the one
with the Python core; the other two show what choosing that core costs, and being installed.

Usage: python bench/bench_overhead.py [--pairs 8] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from scipy.stats import bootstrap

from kvflow.cli.circumstances import circumstances
from kvflow.patches.cpu.launch import ServerProcess, launch_server
from kvflow.patches.cpu.model import build_model

FLAGS = ["--enable-hierarchical-cache", "--hicache-ratio", "2", "--page-size", "16", "--max-total-tokens", "8192"]
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
    "kvflow": (["--enable-kvflow"], {"KVFLOW_STRICT": "1"}),
}
REQUESTS = 48
AT_ONCE = 4
OUTPUT_TOKENS = 24


def prompts(seed: int) -> list[str]:
    """Requests that share heads and press on the cache."""
    rng = random.Random(seed)
    heads = ["".join(rng.choice("abcdefgh ") for _ in range(900)) for _ in range(12)]
    return [rng.choice(heads) + "".join(rng.choice("stuvwxyz ") for _ in range(300)) for _ in range(REQUESTS)]


async def play(url: str, seed: int) -> None:
    """Send one round of requests."""
    gate = asyncio.Semaphore(AT_ONCE)
    params = {"temperature": 0, "max_new_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def one(text: str) -> None:
            async with gate:
                (await client.post("/generate", json={"text": text, "sampling_params": params})).raise_for_status()

        await asyncio.gather(*(one(text) for text in prompts(seed)))


def scheduler_of(server: Any) -> psutil.Process:
    """The scheduler among a server's processes: the child that has used the most CPU time by now."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    return max(children, key=lambda child: sum(child.cpu_times()[:2]))


def start(arm: str, model: Path, folder: Path) -> AbstractContextManager[ServerProcess]:
    """The server of an arm; its log goes to a folder."""
    flags, env = ARMS[arm]
    found = [write_plugin(folder)] if arm == "vanilla" else []
    return launch_server(
        model,
        log_path=folder / f"{arm}.log",
        extra_args=[*FLAGS, "--sleep-on-idle", *flags],
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


def measure(pairs: int, folder: Path) -> dict[str, list[float]]:
    """CPU seconds of every arm's scheduler, round by round; all arms play the same rounds."""
    model = build_model(folder / "model")
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with contextlib.ExitStack() as running:
        servers = {}
        for arm in ARMS:
            servers[arm] = running.enter_context(start(arm, model, folder))
            asyncio.run(play(servers[arm].url, seed=-1))  # warm up
        schedulers = {arm: scheduler_of(server) for arm, server in servers.items()}
        for number in range(pairs):
            order = list(ARMS) if number % 2 == 0 else list(ARMS)[::-1]
            for arm in order:
                before_s = sum(schedulers[arm].cpu_times()[:2])
                asyncio.run(play(servers[arm].url, seed=number))
                seconds[arm].append(sum(schedulers[arm].cpu_times()[:2]) - before_s)
                print(f"round {number + 1}/{pairs} {arm:12} {seconds[arm][-1]:.2f} s", flush=True)
    return seconds


def paired(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Ratio of two arms with the 95 % bootstrap interval of its mean over rounds."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "ratio": statistics.fmean(ratios),
        "ratio_median": statistics.median(ratios),
        "interval_95": mean_interval(ratios),
        "n": len(ratios),
    }


def mean_interval(values: list[float]) -> list[float]:
    """95 % bootstrap interval of a mean."""
    interval = bootstrap((values,), np.mean, method="percentile", rng=0).confidence_interval
    return [float(interval.low), float(interval.high)]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(options.pairs, Path(folder))
    comparison = {
        "kvflow / python core": paired(seconds["kvflow"], seconds["python core"]),
        "kvflow / rust core": paired(seconds["kvflow"], seconds["rust core"]),
        "python core / rust core": paired(seconds["python core"], seconds["rust core"]),
        "rust core / vanilla": paired(seconds["rust core"], seconds["vanilla"]),
        "kvflow / vanilla": paired(seconds["kvflow"], seconds["vanilla"]),
    }
    for name, result in comparison.items():
        low, high = result["interval_95"]
        print(f"{name:26} {result['ratio']:.4f}  95 % [{low:.4f}, {high:.4f}]  n={result['n']}")
    if options.json:
        result = {"bench": "overhead", **circumstances(), "scheduler_cpu_s": seconds, "comparison": comparison}
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
