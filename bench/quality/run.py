"""What reuse does to answers, on a model that has to bind texts to what stands before them (:mod:`tasks`).

Programs of two to five agents: each but the last reads a text of its own, the last reads all of them, behind a role of
its own, and is asked about them. It gets their KV in each way there is. All arms see the same programs and questions,
in namespaces of their own. What is cached exactly because an arm has computed it counts as not reused. "repaired" is
what was computed of the texts put in, which is at most the share that was asked for.

Usage: python bench/quality/run.py MODEL_FOLDER [--programs 120] [--json FILE]
       (make the model with: python bench/quality/train.py MODEL_FOLDER)
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
from tasks import (
    PASSAGE_KINDS,
    PUZZLE_KINDS,
    Library,
    Passage,
    Puzzle,
    Question,
    Tokens,
    make_puzzle,
    make_role,
)

from kvflow.cli.circumstances import circumstances
from kvflow.hints import envelope, segments_action, step_action
from kvflow.patches.cpu.launch import launch_server

AGENTS, STATEMENTS = (2, 3, 4, 5), 12
WARM_UP = 40
"""Programs that do not count: in them anchors are learned."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve texts.

    Attributes:
        repair_tokens: first tokens of a text that ``+repair`` computes.
        repair_share: of the others.
    """

    name: str
    mode: str
    repair_tokens: int = 0
    repair_share: float = 0.0


def arms(tokens: int, shares: Sequence[float]) -> tuple[Arm, ...]:
    """All arms; those of one server stand together."""
    plain = (Arm("dense", "off"), Arm("naive", "naive"), Arm("rotate", "rotate"), Arm("kvcomm", "kvcomm"))
    repaired = [Arm("EPIC", "rotate+repair", tokens)]
    for share in shares:
        repaired.append(Arm(f"CacheBlend {share:.0%}", "rotate+repair", 0, share))
        repaired.append(Arm(f"kvcomm+repair {share:.0%}", "kvcomm+repair", tokens, share))
    return (*plain, *repaired)


@dataclass(frozen=True, slots=True)
class Asked:
    """One question to one agent about texts.

    Attributes:
        agents: how many the program has.
        counts: whether the answer is of interest.
    """

    program: int
    agents: int
    agent: str
    tokens: Tokens
    slots: tuple[tuple[int, int], ...]
    question: Question
    counts: bool


def questions(programs: int, references: float, seed: int) -> Iterator[Asked]:
    """Write all programs: who reads everything is asked a question of every kind."""
    rng, library = random.Random(seed), Library(held_out=True)
    roles = {agent: make_role(rng) for agent in ("reader", *(f"worker {n}" for n in range(AGENTS[-1] - 1)))}
    for program in range(programs):
        agents = AGENTS[program % len(AGENTS)]
        puzzle, passage = make_puzzle(rng, agents - 1, STATEMENTS, references), library.passage(rng)

        def asked(agent: str, unit: Puzzle | Passage, kind: str, program: int = program) -> Iterator[Asked]:
            question = unit.ask(rng, roles[agent], kind)
            if question is not None:
                counts = agent == "reader" and program >= WARM_UP
                yield Asked(
                    program, len(unit.texts) + 1, agent, *_prompt(roles[agent], unit, question), question, counts
                )

        for number, text in enumerate(puzzle.texts):
            own = Puzzle(tuple(s for s in puzzle.statements if s.text == number), (text,))
            yield from asked(f"worker {number}", own, "first")
        for kind in PUZZLE_KINDS:
            yield from asked("reader", puzzle, kind)
        for agent in ("worker 0", "reader"):
            yield from asked(agent, passage, "next")


def _prompt(role: Tokens, unit: Puzzle | Passage, question: Question) -> tuple[Tokens, tuple[tuple[int, int], ...]]:
    tokens, slots = list(role), []
    for text in unit.texts:
        slots.append((len(tokens), len(tokens) + len(text)))
        tokens += text
    return (*tokens, *question.asked), tuple(slots)


def answer(client: httpx.Client, arm: Arm, item: Asked) -> bool:
    """Ask; whether every token of the answer is right."""
    ranges = [
        {"name": f"text {number}", "start_tokens": start, "end_tokens": end}
        for number, (start, end) in enumerate(item.slots)
    ]
    kind = "prose" if item.question.kind in PASSAGE_KINDS else f"{item.agents} agents"
    step = step_action(workflow_id=f"{arm.name} {item.program}", workflow_type=kind, agent=item.agent)
    params = {"temperature": 0, "max_new_tokens": len(item.question.answer), "ignore_eos": True}
    body = {
        "input_ids": item.tokens,
        "sampling_params": params,
        "kv_hints": envelope([step, segments_action(ranges=ranges, mode=arm.mode)]),
        "cache_salt": arm.name,
    }
    response = client.post("/generate", json=body)
    response.raise_for_status()
    return tuple(response.json()["output_ids"]) == item.question.answer


def measure(client: httpx.Client, arm: Arm, items: list[Asked]) -> dict[str, Any]:
    """Ask everything in one arm."""
    marks: dict[tuple[str, int], list[bool]] = defaultdict(list)
    bound: list[bool] = []
    before: dict[str, int] = {}
    text_tokens = 0
    for item in items:
        if item.counts and not before:
            before = reuse_stats(client)
        right = answer(client, arm, item)
        if item.counts:
            marks[item.question.kind, item.agents].append(right)
            if item.question.bound:
                bound.append(right)
            text_tokens += sum(end - start for start, end in item.slots)
    after = reuse_stats(client)
    puzzles = {key: each for key, each in marks.items() if key[0] in PUZZLE_KINDS}
    return {
        "arm": arm.name,
        "right": _share([mark for each in puzzles.values() for mark in each]),
        "questions": sum(map(len, puzzles.values())),
        "bound_right": _share(bound),
        "bound_questions": len(bound),
        "by_kind": _shares({key: key[0] for key in marks}, marks),
        "by_agents": _shares({key: str(key[1]) for key in puzzles}, marks),
        "text_tokens": text_tokens,
        **{key: after[key] - before[key] for key in ("grafted_tokens", "repaired_tokens")},
    }


def _shares(groups: dict[tuple[str, int], str], marks: dict[tuple[str, int], list[bool]]) -> dict[str, float]:
    of_group: dict[str, list[bool]] = defaultdict(list)
    for key, group in groups.items():
        of_group[group] += marks[key]
    return {group: _share(each) for group, each in of_group.items()}


def _share(marks: list[bool]) -> float:
    return sum(marks) / len(marks)


def reuse_stats(client: httpx.Client) -> dict[str, Any]:
    """What the server says about reuse."""
    return client.get("/kvflow/v1/stats").json()["replicas"][0]["reuse"]


def run(options: argparse.Namespace, group: list[Arm], items: list[Asked]) -> list[dict[str, Any]]:
    """Measure arms with the same settings of repair on one server."""
    env = {
        "KVFLOW_STRICT": "1",
        "KVFLOW_REUSE__MODE": "rotate",
        "KVFLOW_REUSE__MIN_TOKENS": "32",
        "KVFLOW_REUSE__AGREEMENT": "0",  # the gate lets everything pass, and does not look
        "KVFLOW_REUSE__DIVERGENCE": "1e9",
        "KVFLOW_REUSE__CHECK_EVERY": "1000000",
        "KVFLOW_REUSE__REPAIR_TOKENS": str(group[0].repair_tokens),
        "KVFLOW_REUSE__REPAIR_SHARE": str(group[0].repair_share),
        "KVFLOW_REUSE__REPAIR_LAYER": str(options.repair_layer),
    }
    flags = ["--page-size", "1", "--max-total-tokens", "16384", "--enable-kvflow", "--sleep-on-idle"]
    flags += shlex.split(options.flags)
    with (
        tempfile.TemporaryDirectory() as folder,
        launch_server(
            options.model, log_path=Path(folder) / "log", extra_args=flags, env=env, device=options.device
        ) as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        return [measure(client, arm, items) for arm in group]


def main() -> None:
    """Run every arm and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--programs", type=int, default=120)
    parser.add_argument("--references", type=float, default=0.5, help="share of statements that refer to others")
    parser.add_argument("--repair-tokens", type=int, default=4)
    parser.add_argument("--repair-share", type=float, nargs="+", default=[0.22, 0.46])
    parser.add_argument("--repair-layer", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arms", nargs="+", help="only these")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--flags", default="", help="further flags of SGLang, e.g. '--attention-backend triton'")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    items = list(questions(options.programs + WARM_UP, options.references, options.seed))
    asked = [arm for arm in arms(options.repair_tokens, options.repair_share) if arm.name in (options.arms or arm.name)]
    rows: list[dict[str, Any]] = []
    for _, group in groupby(asked, key=lambda arm: (arm.repair_tokens, arm.repair_share)):
        for row in run(options, list(group), items):
            rows.append(row)
            print(_line(row), flush=True)
    if options.json:
        settings = {key: value for key, value in vars(options).items() if key not in ("model", "json")}
        record = {"bench": "quality", **circumstances(), "settings": settings, "arms": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def _line(row: dict[str, Any]) -> str:
    reused = (row["grafted_tokens"] - row["repaired_tokens"]) / row["text_tokens"]
    repaired = row["repaired_tokens"] / max(1, row["grafted_tokens"])
    kinds = "  ".join(f"{kind} {share:.0%}" for kind, share in row["by_kind"].items())
    right = f"{row['right']:.1%} of {row['questions']}  bound {row['bound_right']:.1%}"
    return f"{row['arm']:18} {right}  reused {reused:.0%}  repaired {repaired:.1%}  {kinds}"


if __name__ == "__main__":
    main()
