"""Time to first token of one prompt against the length of its text and the share that is reused.

A prompt is a role, new every time, and a text that another agent has brought before. Every point is measured in every
arm in turn, so that all have the same machine; what cannot be reused bounds the gain by 1 / (1 - share).

    dense           SGLang's prefix cache, which finds nothing
    rotate          the text's keys moved
    rotate+repair   and a part of it computed (the first 16 tokens, and of the others the default share)
    kvcomm          and offsets of other texts added (two examples, every text served)

Usage: python bench/bench_segments.py [--repeats 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from serving import add_options, serve, words

from kvflow.cli.circumstances import circumstances
from kvflow.cli.ending import ended_by_signals
from kvflow.hints import envelope, segments_action, step_action

ARMS = ("dense", "rotate", "rotate+repair", "kvcomm")
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
ROLE = 64
SHARES, WHOLE = (0.25, 0.5, 0.75, 0.85, 0.95), 2048
POINTS = tuple(
    dict.fromkeys([(ROLE, text) for text in LENGTHS] + [(WHOLE - round(s * WHOLE), round(s * WHOLE)) for s in SHARES])
)
"""Tokens of the role and of the text."""
EXAMPLES = 3
"""Texts an agent has seen before: then KVCOMM has offsets."""
SETTLE_S = 60.0
"""How long the quality gate may take for its first checks."""


class Prompts:
    """Asks a server, each arm in a namespace of its own."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def ask(self, arm: str, agent: str, role: list[int], text: list[int]) -> float:
        """Ask an agent about a text; seconds until the first token."""
        place = {"name": f"text of {len(text)}", "start_tokens": len(role), "end_tokens": len(role) + len(text)}
        actions = [
            step_action(workflow_id=arm, workflow_type=f"{len(role)}", agent=agent),
            segments_action(ranges=[place], mode="off" if arm == "dense" else arm),
        ]
        body = {
            "input_ids": [*role, *text, *words("question", 8)],
            "sampling_params": {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
            "kv_hints": envelope(actions),
            "cache_salt": arm,
        }
        start_s = time.perf_counter()
        self._client.post("/generate", json=body).raise_for_status()
        return time.perf_counter() - start_s

    def reuse(self) -> dict[str, Any]:
        """What the server says about reuse."""
        return self._client.get("/kvflow/v1/stats").json()["replicas"][0]["reuse"]

    def settle(self) -> None:
        """Wait until the quality gate has had its first prompts computed again."""
        deadline_s = time.monotonic() + SETTLE_S
        while self.reuse()["checks_under_way"] and time.monotonic() < deadline_s:
            time.sleep(0.1)


def measure(prompts: Prompts, role: int, text: int, repeats: int) -> list[dict[str, Any]]:
    """Measure one point in all arms."""
    for arm in ARMS:
        for example in range(EXAMPLES):
            for agent in ("first", "second"):
                prompts.ask(arm, agent, words(f"{agent} {example}", role), words(f"example {text} {example}", text))
    prompts.settle()
    taken: dict[str, list[float]] = {arm: [] for arm in ARMS}
    reused: dict[str, int] = dict.fromkeys(ARMS, 0)
    for repeat in range(repeats):
        for arm in ARMS if repeat % 2 else reversed(ARMS):
            new = words(f"text {text} {repeat}", text)
            prompts.ask(arm, "first", words(f"first role {text} {repeat}", role), new)
            before = prompts.reuse()
            taken[arm].append(prompts.ask(arm, "second", words(f"second role {text} {repeat}", role), new))
            after = prompts.reuse()
            reused[arm] += after["grafted_tokens"] - before["grafted_tokens"]
            reused[arm] -= after["repaired_tokens"] - before["repaired_tokens"]
    rows = []
    for arm in ARMS:
        ttft_s = median(taken[arm])
        share = reused[arm] / repeats / (role + text + 8)
        row = {"arm": arm, "role_tokens": role, "text_tokens": text, "ttft_s": ttft_s, "reused": share}
        rows.append(row | {"speedup": median(taken["dense"]) / ttft_s, "limit": 1 / (1 - share)})
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    add_options(parser)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    env = {"KVFLOW_STRICT": "1", "KVFLOW_REUSE__MODE": "kvcomm", "KVFLOW_REUSE__ENTROPY": "1"}
    env |= {"KVFLOW_REUSE__AGREEMENT": "0", "KVFLOW_REUSE__DIVERGENCE": "1e9", "KVFLOW_REUSE__CHECK_EVERY": "1000000"}
    flags = ["--enable-kvflow", "--page-size", "16", "--max-total-tokens", "65536", "--chunked-prefill-size", "8192"]
    flags += ["--max-running-requests", "64"]
    with serve(options, flags, env) as client:
        prompts = Prompts(client)
        rows: list[dict[str, Any]] = []
        for role, text in POINTS:
            for row in measure(prompts, role, text, options.repeats):
                rows.append(row)
                print(
                    f"role {role:5} text {text:5} {row['arm']:14} TTFT {row['ttft_s'] * 1e3:7.1f} ms  "
                    f"{row['speedup']:6.2f}x of at most {row['limit']:6.2f}x  reused {row['reused']:.1%}",
                    flush=True,
                )
        stats = prompts.reuse()
    if options.json:
        record = {"bench": "segments", **circumstances(), "repeats": options.repeats, "rows": rows}
        record |= {"layers": options.layers, "repair_share": options.repair_share}
        record |= {"memory": {key: stats[key] for key in ("anchors", "texts", "held_bytes")}}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    with ended_by_signals():
        main()
