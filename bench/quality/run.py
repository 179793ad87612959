"""What reuse does to answers, on a model that has to bind texts to what stands before them.

Agents of different roles are asked about the same texts (:mod:`tasks`). The first agent computes them, the others reuse
its KV in each way there is; every arm sees the same programs and questions, on one server, in a namespace of its own.

Usage: python bench/quality/run.py MODEL_FOLDER [--programs 30] [--agents 5] [--json FILE]
       (make the model with: python bench/quality/train.py MODEL_FOLDER)
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from kvflow.report.circumstances import circumstances
from tasks import KINDS, Puzzle, Question, ask, make_puzzle, make_role

from kvflow.hints import envelope, segments_action, step_action
from kvflow.patches.cpu.launch import launch_server

ARMS = ("dense", "naive", "rotate", "rotate+repair", "kvcomm", "kvcomm+repair")
TEXTS, STATEMENTS, WARM_UP = 2, 12, 6


@dataclass(frozen=True, slots=True)
class Asked:
    """One question to one agent about one program's texts."""

    program: int
    agent: int
    question: Question
    tokens: tuple[int, ...]
    slots: tuple[tuple[int, int], ...]


def questions(programs: int, agents: int, seed: int) -> Iterator[Asked]:
    """Write all programs: every agent is asked a question of every kind."""
    rng = random.Random(seed)
    roles = [make_role(rng) for _ in range(agents)]
    for program in range(programs):
        puzzle = make_puzzle(rng, TEXTS, STATEMENTS)
        for agent, role in enumerate(roles):
            for kind in KINDS:
                question = ask(rng, role, puzzle, kind)
                if question is not None:
                    yield _asked(program, agent, role, puzzle, question)


def _asked(program: int, agent: int, role: list[int], puzzle: Puzzle, question: Question) -> Asked:
    tokens, slots = list(role), []
    for text in puzzle.texts:
        slots.append((len(tokens), len(tokens) + len(text)))
        tokens += text
    return Asked(program, agent, question, (*tokens, *question.asked), tuple(slots))


def answer(client: httpx.Client, arm: str, item: Asked) -> tuple[bool, int]:
    """Ask; whether every token of the answer is right, and how many of the texts were cached exactly."""
    ranges = [
        {"name": f"text {number}", "start_tokens": start, "end_tokens": end}
        for number, (start, end) in enumerate(item.slots)
    ]
    step = step_action(workflow_id=f"{arm} {item.program}", workflow_type="puzzle", agent=f"agent {item.agent}")
    reuse = segments_action(ranges=ranges, mode="off" if arm == "dense" else arm)
    params = {"temperature": 0, "max_new_tokens": len(item.question.answer), "ignore_eos": True}
    body = {
        "input_ids": item.tokens,
        "sampling_params": params,
        "kv_hints": envelope([step, reuse]),
        "cache_salt": arm,
        "return_logprob": True,
    }
    response = client.post("/generate", json=body)
    response.raise_for_status()
    meta = response.json()["meta_info"]
    drawn = tuple(token for _, token, _ in meta["output_token_logprobs"])
    return drawn == item.question.answer, meta["cached_tokens"]


def measure(client: httpx.Client, arm: str, items: list[Asked]) -> dict[str, Any]:
    """Ask everything in one arm; the first programs teach, and do not count."""
    right: dict[str, list[bool]] = defaultdict(list)
    before = _reuse(client)
    for item in items:
        correct, _ = answer(client, arm, item)
        if item.program >= WARM_UP and item.agent > 0:
            right[item.question.kind].append(correct)
    after = _reuse(client)
    marks = [mark for kind in right.values() for mark in kind]
    return {
        "arm": arm,
        "right": sum(marks) / len(marks),
        "by_kind": {kind: sum(each) / len(each) for kind, each in right.items()},
        "questions": len(marks),
        "grafted_tokens": after["grafted_tokens"] - before["grafted_tokens"],
        "slot_tokens": after["slot_tokens"] - before["slot_tokens"],
    }


def _reuse(client: httpx.Client) -> dict[str, Any]:
    return client.get("/kvflow/v1/stats").json()["total"]["reuse"]


def main() -> None:
    """Run every arm and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--programs", type=int, default=30)
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    items = list(questions(options.programs + WARM_UP, options.agents, options.seed))
    env = {
        "KVFLOW_STRICT": "1",
        "KVFLOW_REUSE__MODE": "kvcomm+repair",
        "KVFLOW_REUSE__MIN_TOKENS": "32",
        "KVFLOW_REUSE__AGREEMENT": "0",
        "KVFLOW_REUSE__DIVERGENCE": "1e9",
        "KVFLOW_REUSE__CHECK_EVERY": "1000000",
        "KVFLOW_REUSE__REPAIR_TOKENS": "4",
    }
    flags = ["--page-size", "1", "--max-total-tokens", "16384", "--enable-kvflow", "--sleep-on-idle"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with (
            launch_server(options.model, log_path=log, extra_args=flags, env=env) as server,
            httpx.Client(base_url=server.url, timeout=120) as client,
        ):
            rows = [measure(client, arm, items) for arm in options.arms]
    for row in rows:
        kinds = "  ".join(f"{kind} {share:.0%}" for kind, share in row["by_kind"].items())
        reused = row["grafted_tokens"] / max(1, row["slot_tokens"])
        print(f"{row['arm']:16} {row['right']:.1%} of {row['questions']}  reused {reused:.0%}  {kinds}")
    if options.json:
        record = {"bench": "quality", **circumstances(), "settings": vars(options) | {"model": ""}, "arms": rows}
        options.json.write_text(json.dumps(record, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
