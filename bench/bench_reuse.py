"""Time to first token where agents hand each other text behind different role prompts, computed or reused.

The shape is that of KVCOMM's own measurement (arXiv 2510.12872): every agent's prompt is a prefix of its own, the task,
and the answers of all agents before it; answers are as long as they are there. Prefixes are cached in every arm, as
they would be in service. Arms take turns program by program on one server, each in a namespace of its own, so that
nothing but the arm's own requests is in its cache:

    dense    SGLang's prefix cache: what is not a prefix is computed
    rotate   texts from elsewhere, keys moved
    kvcomm   the same with offsets of similar texts; every text is served (γ = 1, as in KVCOMM's own measurement)
    kvcomm+repair   and a part of the texts computed (the first 16 tokens, and of the others the default share)

``limit`` is 1 / (1 - what was reused or cached): how much faster it would be if only the rest took time.

The model is random: this shows speed, `bench/quality` shows what it does to answers.

Usage: python bench/bench_reuse.py [--agents 5] [--task 1024] [--prefix 512] [--answer 512] [--programs 6]
       [--warm-up 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from serving import add_options, cache_prefix, first_token, serve, words

from kvflow.cli.circumstances import circumstances
from kvflow.cli.ending import ended_by_signals
from kvflow.hints import envelope, segments_action, step_action

ARMS = ("dense", "rotate", "kvcomm", "kvcomm+repair")
WARM_UP = 3
"""KVCOMM's offsets are known after two programs; the quality gate has the prompts of six more computed again beside."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Lengths in tokens."""

    agents: int
    task: int
    prefix: int
    answer: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One agent's request."""

    arm: str
    agent: int
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    reused_tokens: int


class Bench:
    """One server and what has been measured on it."""

    def __init__(self, client: httpx.Client, shape: Shape) -> None:
        self._client = client
        self._shape = shape
        self.samples: list[Sample] = []

    def program(self, arm: str, number: int, *, counts: bool) -> None:
        """Run all agents of one program, one after the other."""
        texts = [words(f"task {number}", self._shape.task)]
        for agent in range(self._shape.agents):
            prefix = words(f"prefix {agent}", self._shape.prefix)
            sample, answer = self._ask(arm, number, agent, prefix, texts)
            texts.append(answer)
            if counts:
                self.samples.append(sample)

    def warm(self, arm: str) -> None:
        """Have every agent's prefix cached."""
        for agent in range(self._shape.agents):
            cache_prefix(self._client, words(f"prefix {agent}", self._shape.prefix), arm)

    def _ask(
        self, arm: str, number: int, agent: int, prefix: list[int], texts: list[list[int]]
    ) -> tuple[Sample, list[int]]:
        tokens, ranges = list(prefix), []
        for place, text in enumerate(texts):
            ranges.append({"name": f"text {place}", "start_tokens": len(tokens), "end_tokens": len(tokens) + len(text)})
            tokens += text
        actions = [
            step_action(workflow_id=f"{arm} {number}", workflow_type="chain", agent=f"agent {agent}"),
            segments_action(ranges=ranges, mode="off" if arm == "dense" else arm),
        ]
        body = {"input_ids": tokens, "kv_hints": envelope(actions), "cache_salt": arm}
        before = self._reused()
        ttft_s, last = first_token(self._client, body, self._shape.answer)
        meta = last["meta_info"]
        reused = self._reused() - before
        answer = last["output_ids"]
        return Sample(arm, agent + 1, ttft_s, len(tokens), meta["cached_tokens"], reused), answer

    def _reused(self) -> int:
        """Tokens put in so far that were not computed nevertheless."""
        stats = self.stats()
        return int(stats["grafted_tokens"] - stats["repaired_tokens"])

    def stats(self) -> dict[str, Any]:
        """What the server says about reuse."""
        return self._client.get("/kvflow/v1/stats").json()["replicas"][0]["reuse"]


def table(samples: list[Sample]) -> list[dict[str, Any]]:
    """Medians by arm and agent, beside the dense arm's."""
    groups: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.arm, sample.agent].append(sample)
    rows = []
    for (arm, agent), group in groups.items():
        dense = median(sample.ttft_s for sample in groups["dense", agent])
        share = median((sample.reused_tokens + sample.cached_tokens) / sample.prompt_tokens for sample in group)
        reused = median(sample.reused_tokens / sample.prompt_tokens for sample in group)
        ttft_s = median(sample.ttft_s for sample in group)
        row = {"arm": arm, "agent": agent, "prompt_tokens": group[0].prompt_tokens, "ttft_s": ttft_s}
        limit = 1 / max(1 - share, 1 / group[0].prompt_tokens)  # something is always computed
        row |= {"speedup": dense / ttft_s, "reused": reused, "not_computed": share, "limit": limit}
        rows.append(row)
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("agents", 5), ("task", 1024), ("prefix", 512), ("answer", 512), ("programs", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help="programs before those that count")
    add_options(parser)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.programs < 1 or options.warm_up < 0:
        parser.error("--programs is at least 1, --warm-up at least 0")
    shape = Shape(options.agents, options.task, options.prefix, options.answer)
    env = {"KVFLOW_STRICT": "1", "KVFLOW_REUSE__MODE": "kvcomm", "KVFLOW_REUSE__ENTROPY": "1"}
    env |= {"KVFLOW_REUSE__AGREEMENT": "0", "KVFLOW_REUSE__DIVERGENCE": "1e9", "KVFLOW_REUSE__CHECK_EVERY": "1000000"}
    flags = ["--enable-kvflow", "--page-size", "16", "--max-total-tokens", "65536", "--chunked-prefill-size", "8192"]
    with serve(options, flags, env) as client:
        bench = Bench(client, shape)
        for arm in ARMS:
            bench.warm(arm)
        for number in range(options.programs + options.warm_up):
            for arm in ARMS if number % 2 else reversed(ARMS):
                began_s = time.perf_counter()
                bench.program(arm, number, counts=number >= options.warm_up)
                print(f"program {number} {arm}: {time.perf_counter() - began_s:.1f} s", file=sys.stderr, flush=True)
        stats = bench.stats()
    rows = table(bench.samples)
    for row in sorted(rows, key=lambda row: (row["agent"], ARMS.index(row["arm"]))):
        print(
            f"agent {row['agent']} {row['arm']:13} {row['prompt_tokens']:6} tokens TTFT {row['ttft_s'] * 1e3:7.1f} ms  "
            f"{row['speedup']:5.2f}x of {row['limit']:.1f}x  reused {row['reused']:.1%}"
        )
    print(
        f"{stats['anchors']} anchors hold {stats['anchor_bytes'] / 2**20:.0f} MiB, "
        f"they and {stats['texts']} texts {stats['held_bytes'] / 2**20:.0f} MiB"
    )
    if options.json:
        record = {"bench": "reuse", **circumstances(), "shape": asdict(shape), "programs": options.programs}
        memory = ("anchors", "anchor_bytes", "texts", "held_bytes")
        record |= {"layers": options.layers, "repair_share": options.repair_share}
        record |= {"rows": rows, "memory": {key: stats[key] for key in memory}}
        record["dense"] = stats["dense"]
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    with ended_by_signals():
        main()
