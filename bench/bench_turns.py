"""Time to first token, turn by turn, of an agent that is handed a text and goes on talking about it.

A writer brings a text; a reader's prompt is a prefix of its own, cached in every arm, the text and a question. Each
further turn is all before it, the answer, and what a tool says. With SGLang's prefix cache the first turn computes the
text and the others only what is new. With reuse the text is put in, so that nothing behind it can be published; from
the second turn on that is put in as it was, by what the turn before has left. Arms take turns program by program on one
server, each in a namespace of its own:

    dense    SGLang's prefix cache
    rotate   the text from elsewhere, keys moved
    rotate+repair   and the default share of its tokens computed

The model is random: this shows speed, `bench/quality` shows what reuse does to answers.

Usage: python bench/bench_turns.py [--text 2048] [--tool 256] [--answer 64] [--turns 6] [--programs 6] [--warm-up 2]
       [--json FILE]
"""

from __future__ import annotations

import argparse
import json
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

ARMS = ("dense", "rotate", "rotate+repair")


@dataclass(frozen=True, slots=True)
class Shape:
    """Lengths in tokens, and turns."""

    prefix: int
    text: int
    tool: int
    answer: int
    turns: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One turn of the reader."""

    arm: str
    turn: int
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    put_in_tokens: int


class Bench:
    """One server and what has been measured on it."""

    def __init__(self, client: httpx.Client, shape: Shape) -> None:
        self._client = client
        self._shape = shape
        self.samples: list[Sample] = []

    def program(self, arm: str, number: int, *, counts: bool) -> None:
        """Have a text written and read, and talked about."""
        shape = self._shape
        text = words(f"text {number}", shape.text)
        writer, reader = (words(f"prefix {agent}", shape.prefix) for agent in ("writer", "reader"))
        self._ask(arm, number, "writer", [*writer, *text], [(len(writer), len(writer) + len(text))])
        tokens = [*reader, *text, *words(f"question {number}", 64)]
        for turn in range(1, shape.turns + 1):
            sample, answer = self._ask(arm, number, "reader", tokens, [(len(reader), len(reader) + len(text))], turn)
            tokens = [*tokens, *answer, *words(f"tool {number} {turn}", shape.tool)]
            if counts:
                self.samples.append(sample)

    def warm(self, arm: str) -> None:
        """Have both prefixes cached."""
        for agent in ("writer", "reader"):
            cache_prefix(self._client, words(f"prefix {agent}", self._shape.prefix), arm)

    def _ask(
        self, arm: str, number: int, agent: str, tokens: list[int], ranges: list[tuple[int, int]], turn: int = 0
    ) -> tuple[Sample, list[int]]:
        slots = [{"name": "text", "start_tokens": start, "end_tokens": end} for start, end in ranges]
        actions = [
            step_action(workflow_id=f"{arm} {number}", workflow_type="talk", agent=agent),
            segments_action(ranges=slots, mode="off" if arm == "dense" else arm),
        ]
        body = {"input_ids": tokens, "kv_hints": envelope(actions), "cache_salt": arm}
        before = self._put_in()
        ttft_s, last = first_token(self._client, body, self._shape.answer)
        put_in = self._put_in() - before
        return Sample(arm, turn, ttft_s, len(tokens), last["meta_info"]["cached_tokens"], put_in), last["output_ids"]

    def _put_in(self) -> int:
        """Tokens put in so far that were not computed nevertheless."""
        stats = self._client.get("/kvflow/v1/stats").json()["replicas"][0]["reuse"]
        return int(stats["grafted_tokens"] + stats.get("continued_tokens", 0) - stats["repaired_tokens"])


def table(samples: list[Sample]) -> list[dict[str, Any]]:
    """Medians by arm and turn, beside the dense arm's."""
    groups: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.arm, sample.turn].append(sample)
    rows: list[dict[str, Any]] = []
    for (arm, turn), group in groups.items():
        dense = median(sample.ttft_s for sample in groups["dense", turn])
        ttft_s = median(sample.ttft_s for sample in group)
        computed = median(one.prompt_tokens - one.cached_tokens - one.put_in_tokens for one in group)
        row = {"arm": arm, "turn": turn, "prompt_tokens": group[0].prompt_tokens, "ttft_s": ttft_s}
        rows.append(row | {"speedup": dense / ttft_s, "computed_tokens": computed})
    for arm in ARMS:
        own = {row["turn"]: row["ttft_s"] for row in rows if row["arm"] == arm}
        rows += [{"arm": arm, "turn": "all", "ttft_s": sum(own.values())}]
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"prefix": 512, "text": 2048, "tool": 256, "answer": 64, "turns": 6}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--programs", type=int, default=6)
    parser.add_argument("--warm-up", type=int, default=2, help="programs before those that count")
    add_options(parser)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.programs < 1 or options.warm_up < 0:
        parser.error("--programs is at least 1, --warm-up at least 0")
    shape = Shape(**{name: getattr(options, name) for name in defaults})
    env = {"KVFLOW_STRICT": "1", "KVFLOW_REUSE__MODE": "rotate"}
    env |= {"KVFLOW_REUSE__AGREEMENT": "0", "KVFLOW_REUSE__DIVERGENCE": "1e9", "KVFLOW_REUSE__CHECK_EVERY": "1000000"}
    flags = ["--enable-kvflow", "--page-size", "16", "--max-total-tokens", "65536", "--chunked-prefill-size", "8192"]
    with serve(options, flags, env) as client:
        bench = Bench(client, shape)
        for arm in ARMS:
            bench.warm(arm)
        for number in range(options.programs + options.warm_up):
            for arm in ARMS if number % 2 else reversed(ARMS):
                bench.program(arm, number, counts=number >= options.warm_up)
    rows = table(bench.samples)
    for row in rows:
        if row["turn"] == "all":
            print(f"all turns {row['arm']:13} {row['ttft_s'] * 1e3:7.1f} ms")
        else:
            print(
                f"turn {row['turn']} {row['arm']:13} {row['prompt_tokens']:6} tokens {row['ttft_s'] * 1e3:7.1f} ms "
                f"{row['speedup']:5.2f}x  computed {row['computed_tokens']:.0f}"
            )
    if options.json:
        record = {"bench": "turns", **circumstances(), "shape": asdict(shape), "programs": options.programs}
        record |= {"layers": options.layers, "repair_share": options.repair_share, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    with ended_by_signals():
        main()
