"""How a scheduler step's cost grows with the radix tree and with the workflows that live: SGLang's cores and kvflow.

One process, no model: SGLang's real radix cache with so many nodes, full, and requests that match, insert and make it
evict, one a step. For kvflow each step also does what it does for a request of a live workflow: it takes over
predictions and the time, puts the prompt's claim on its nodes, counts hits, and asks the guard's shadow LRU. It does so
for the last 40,000 requests that fill the tree, too, and every workflow has had a step before any is timed.

The median over steps is given as a multiple of the Rust core's. Admission and loads ahead, which have nothing to do
with the size of the tree, are not part of it.

Usage: python bench/bench_scale.py [--nodes 1000 10000 100000] [--workflows 1 64 4096] [--steps 320] [--json FILE]
       --nodes 1000000 takes some 10 GB of memory, and minutes a line to fill the tree
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "engine")]

import conftest  # noqa: E402  # pyright: ignore[reportMissingImports] - harness around SGLang's real radix cache

from kvflow.cli.circumstances import circumstances  # noqa: E402
from kvflow.engine import PromptClaim, digests, unit_tokens  # noqa: E402
from kvflow.patches import tree  # noqa: E402
from kvflow.predict import ClaimPrediction, WorkflowUpdate  # noqa: E402

PAGE_TOKENS = 16
HEAD_TOKENS, TAIL_TOKENS = 1024, 64
TAILS = 16
"""Prompts with one head: a node of the head and one for each tail."""
MANAGED = 40_000
"""Requests that kvflow has seen when the tree is full; its record of what has been cached is full by then, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a step costs at one size.

    Attributes:
        live: workflows that lived when steps were timed; 0 for SGLang's own cores, which know of none.
        p95_us: of the steps.
        longest_us: of all.
    """

    core: str
    nodes: int
    workflows: int
    live: int
    mean_us: float
    median_us: float
    p95_us: float
    longest_us: float


class Load:
    """Prompts of which sixteen at a time share a head, and the claims on them."""

    def __init__(self, harness: Any, core: str, nodes: int, workflows: int) -> None:
        self.harness = harness
        self.kvflow = core == "kvflow"
        self.workflows = workflows
        self._random = random.Random(nodes)
        self._unit = unit_tokens(PAGE_TOKENS)
        self._head: list[int] = []
        self._count = 0
        self._now_s = 0.0
        requests = nodes * TAILS // (TAILS + 1)
        for request in range(requests):
            self.step(managed=requests - request <= MANAGED)

    def live(self) -> int:
        """How many workflows live."""
        claims = self.harness.cache.coordinator.claims if self.kvflow else None
        return sum(claims.of(f"w{number}") is not None for number in range(self.workflows)) if claims else 0

    def settle(self) -> None:
        """Fill what is left of the tree, and go on until every workflow has had a request."""
        for _ in range(max(2 * TAILS, self.workflows - self._count)):
            self.step()

    def step(self, *, managed: bool = True) -> float:
        """One request; returns the seconds it took."""
        if self._count % TAILS == 0:
            self._head = self._random.choices(range(30_000), k=HEAD_TOKENS)
        tokens = self._head + self._random.choices(range(30_000), k=TAIL_TOKENS)
        self._count += 1
        began_s = time.perf_counter()
        hit = self.harness.match(tokens)
        self.harness.insert(tokens)
        if self.kvflow and managed:
            self._manage(tokens, hit)
        return time.perf_counter() - began_s

    def _manage(self, tokens: list[int], hit: int) -> None:
        cache, name = self.harness.cache, f"w{self._count % self.workflows}"
        self._now_s += 0.05
        units = digests(tokens, "None/None", self._unit)
        cache.accounting.prompt(len(tokens), units, {"device": hit})
        memory = cache.watch.memory()
        cache.trust.started("r", units, {"device": hit, "host": 0, "storage": 0}, memory)
        claims = (
            ClaimPrediction(agent="a", steps=1, probability=0.9, due_s=self._now_s + self._random.uniform(1, 60)),
        )
        cache.coordinator.tick(self._now_s)
        cache.coordinator.apply(WorkflowUpdate(workflow_id=name, workflow_type="t", claims=claims))
        claim = PromptClaim(workflow_id=name, workflow_type="t", agent="a", fixed_tokens=HEAD_TOKENS)
        cache.coordinator.tag(claim, self.harness.path(tokens), HEAD_TOKENS)
        cache.trust.ended("r", units, memory)


def measure(core: str, nodes: int, workflows: int, steps: int) -> Point:
    """Fill a tree with so many nodes, and time steps that make it evict."""
    tokens = nodes // (TAILS + 1) * (HEAD_TOKENS + TAILS * TAIL_TOKENS)
    capacity = max(tokens, 4 * HEAD_TOKENS) // PAGE_TOKENS * PAGE_TOKENS
    gc.collect()  # the tree before
    gc.disable()  # one that grows makes no garbage
    load = Load(conftest.Tree(core, capacity_tokens=capacity), core, nodes, workflows)
    gc.enable()
    load.settle()
    live = load.live()
    gc.collect()
    gc.freeze()
    times_us = sorted(1e6 * load.step() for _ in range(steps))
    gc.unfreeze()
    return Point(
        core=core,
        nodes=nodes,
        workflows=workflows,
        live=live,
        mean_us=statistics.fmean(times_us),
        median_us=statistics.median(times_us),
        p95_us=times_us[int(0.95 * len(times_us))],
        longest_us=times_us[-1],
    )


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    conftest.PAGE_TOKENS = PAGE_TOKENS
    logging.disable(logging.WARNING)  # no request runs here, which the guard takes for a cache that loses
    points: list[Point] = []
    for nodes in options.nodes:
        base = None
        cases = [("rust", 1), ("python", 1), *(("kvflow", workflows) for workflows in options.workflows)]
        for core, workflows in cases:
            point = measure(core, nodes, workflows, options.steps)
            points.append(point)
            base = base or point
            print(
                f"{nodes:>9,} nodes, {point.live:>5,} workflows live, {core:7} {point.median_us:9.0f} µs a step "
                f"(p95 {point.p95_us:9.0f}, longest {point.longest_us:9.0f}), "
                f"mean {point.mean_us:9.0f}, {point.median_us / base.median_us:5.1f}x the Rust core",
                flush=True,
            )
    if options.json:
        result = {"bench": "scale", **circumstances(), "points": [asdict(point) for point in points]}
        options.json.write_text(json.dumps(result, indent=1))


def main() -> None:
    """Read options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--workflows", type=int, nargs="+", default=[1, 64, 4096])
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--json", type=Path)
    tree.register()
    run(parser.parse_args())


if __name__ == "__main__":
    main()
