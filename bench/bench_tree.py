"""What kvflow's own code costs per hint-free request, in microseconds, paired: the sharp side of bench_overhead.py.

The same prompts go through SGLang's Python tree core and through kvflow's on top of it, one after the other, in one
process and without a model: match, insert, evict, and for kvflow the counting it does for every request and the guard's
shadow LRU. The difference is set against the scheduler CPU time of a request as measured by bench_overhead.py on the
live server.

With ``--turns`` it is one session instead that grows turn by turn, as agents' do: every turn is two nodes more to walk,
for SGLang's default Rust core, its Python core and kvflow.

Usage: python bench/bench_tree.py [--rounds 40] [--prompt-tokens 1200] [--json FILE]
       python bench/bench_tree.py --turns 320 [--rounds 10] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "engine")]

import conftest  # noqa: E402  # pyright: ignore[reportMissingImports] - harness around SGLang's real radix cache
from bench_overhead import REQUESTS as LIVE_REQUESTS  # noqa: E402
from bench_overhead import mean_interval  # noqa: E402
from model_free import Requests  # noqa: E402  # pyright: ignore[reportMissingImports]
from sglang.srt.runtime_context import get_context  # noqa: E402

from kvflow.cli.circumstances import circumstances  # noqa: E402
from kvflow.engine import digests, unit_tokens  # noqa: E402
from kvflow.patches import tree  # noqa: E402

REQUESTS = 200
PAGE_TOKENS = 16
TASK_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 800, 128, 32


def prompts(seed: int, tokens: int) -> list[list[int]]:
    """Prompts of which three quarters are shared heads, several times what the cache holds."""
    rng = random.Random(seed)
    heads = [[rng.randrange(1000) for _ in range(tokens * 3 // 4)] for _ in range(12)]
    return [rng.choice(heads) + [rng.randrange(1000) for _ in range(tokens // 4)] for _ in range(REQUESTS)]


def play(backend: str, batch: list[list[int]]) -> float:
    """Microseconds per request."""
    harness = conftest.Tree(backend, capacity_tokens=8 * len(batch[0]))
    ours = backend == "kvflow"
    unit = unit_tokens(PAGE_TOKENS)
    start_s = time.perf_counter()
    for tokens in batch:
        hit = harness.match(tokens)
        harness.insert(tokens)
        if ours:
            units = digests(tokens, "None/None", unit)
            harness.cache.accounting.prompt(len(tokens), units, {"device": hit})
            memory = harness.cache.watch.memory()
            harness.cache.trust.started("r", units, {"device": hit, "host": 0, "storage": 0}, memory)
            harness.cache.trust.ended("r", units, memory)
    return (time.perf_counter() - start_s) / len(batch) * 1e6


def session(backend: str, turns: int) -> list[float]:
    """Microseconds of every turn in the tree: matching the prompt, entering it, and entering the answer."""
    requests = Requests(
        backend, device_tokens=TASK_TOKENS + (turns + 2) * (TURN_TOKENS + PAGE_TOKENS), page_tokens=PAGE_TOKENS
    )
    rng = random.Random(1)
    tokens = [rng.randrange(1000) for _ in range(TASK_TOKENS)]
    spent: list[float] = []
    for turn in range(turns):
        tokens = tokens + [rng.randrange(1000) for _ in range(TURN_TOKENS - ANSWER_TOKENS)]
        start_s = time.perf_counter()
        req = requests.ask(str(turn), tokens, ANSWER_TOKENS)
        requests.admit(req)
        requests.compute(req, rng.randrange(1000))
        end_s = time.perf_counter()
        while len(req.output_ids) < ANSWER_TOKENS:
            requests.decode(req, rng.randrange(1000))
        start_s += time.perf_counter() - end_s
        requests.finish(req)
        spent.append((time.perf_counter() - start_s) * 1e6)
        tokens += req.output_ids
    return spent


def growing(turns: int, rounds: int) -> dict[str, Any]:
    """Medians over rounds, around some turns, by core."""
    found: dict[str, list[list[float]]] = {"rust": [], "python": [], "kvflow": []}
    for number in range(-1, rounds):
        for backend, kept in found.items():
            spent = session(backend, turns)
            if number >= 0:
                kept.append(spent)
    shown = [turn for turn in (10, 20, 40, 80, 160, 320, 640) if turn <= turns]
    return {
        "turn_us": {
            backend: {turn: statistics.median(us for spent in kept for us in spent[turn - 5 : turn]) for turn in shown}
            for backend, kept in found.items()
        },
        "turn_tokens": TURN_TOKENS,
        "rounds": rounds,
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--prompt-tokens", type=int, default=1200)
    parser.add_argument("--turns", type=int, help="of one session that grows")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    conftest.PAGE_TOKENS = PAGE_TOKENS
    tree.register()
    logging.disable(logging.WARNING)  # no request runs here, which the guard takes for a cache that loses
    with get_context().override_server_args():
        result = growing(options.turns, options.rounds) if options.turns else compared(options)
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps({"bench": "tree", **circumstances(), **result}, indent=1))


def compared(options: argparse.Namespace) -> dict[str, Any]:
    """Requests that share heads, through both Python cores in turns."""
    times: dict[str, list[float]] = {"python": [], "kvflow": []}
    for number in range(-2, options.rounds):
        batch = prompts(number, options.prompt_tokens)
        for backend in ("python", "kvflow") if number % 2 else ("kvflow", "python"):
            spent = play(backend, batch)
            if number >= 0:
                times[backend].append(spent)
    differences = [ours - theirs for ours, theirs in zip(times["kvflow"], times["python"], strict=True)]
    interval = mean_interval(differences)
    live = json.loads((HERE / "results" / "overhead.json").read_text())["scheduler_cpu_s"]["python core"]
    request_us = statistics.fmean(live) / LIVE_REQUESTS * 1e6
    return {
        "python_core_us": statistics.fmean(times["python"]),
        "kvflow_us": statistics.fmean(times["kvflow"]),
        "difference_us": statistics.fmean(differences),
        "interval_95_us": interval,
        "scheduler_cpu_per_request_us": request_us,
        "share_percent": [100 * value / request_us for value in interval],
        "rounds": options.rounds,
        "prompt_tokens": options.prompt_tokens,
    }


if __name__ == "__main__":
    main()
