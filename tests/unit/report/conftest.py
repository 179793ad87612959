"""A made-up result document with everything a demo run records."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

GRAPH: dict[str, Any] = {
    "name": "research_and_code",
    "agents": {
        "planner": {"fixed_prompt_tokens": 2048},
        "web_search": {},
        "paper_reader": {},
        "code_reader": {},
        "synthesizer": {"join": "all"},
        "coder": {},
        "reviewer": {},
        "tester": {},
        "debugger": {},
    },
    "edges": [
        ["START", "planner"],
        ["planner", "web_search"],
        ["planner", "paper_reader"],
        ["planner", "code_reader"],
        ["web_search", "synthesizer"],
        ["paper_reader", "synthesizer"],
        ["code_reader", "synthesizer"],
        ["synthesizer", "coder"],
        ["coder", "reviewer"],
        {"from": "reviewer", "to": "coder", "probability": 0.3},
        {"from": "reviewer", "to": "tester", "probability": 0.6},
        {"from": "reviewer", "to": "END", "probability": 0.1},
        {"from": "tester", "to": "debugger", "probability": 0.25},
        {"from": "tester", "to": "END", "probability": 0.75},
        ["debugger", "tester"],
    ],
}
READERS = ("web_search", "paper_reader", "code_reader")
CLASSES = ("fixed", "tail", "retired", "unclaimed", "pinned")

METRICS = [
    ("recomputed + reloaded tokens", "tokens", 120_000, 61_000, True),
    ("time stalled on load-back", "s", 14.21, 6.3, True),
    ("workflow completion, mean", "s", 9.71, 8.02, True),
    ("step latency, p95", "s", 1.302, 1.418, True),
    ("bytes loaded", "bytes", 1.84e9, 1.02e9, True),
    ("cache hits", "tokens", 181_000, 243_000, False),
    ("output tokens per second", "tokens/s", 310.2, 311.9, False),
    ("wasted prefetches", "tokens", 0, 2_048, True),
]


def walk(chance: random.Random) -> list[tuple[str, ...]]:
    """The agents of one run; those of one tuple run in parallel."""
    path: list[tuple[str, ...]] = [("planner",), READERS, ("synthesizer",), ("coder",), ("reviewer",)]
    while chance.random() < 0.3:
        path += [("coder",), ("reviewer",)]
    path.append(("tester",))
    while chance.random() < 0.25:
        path += [("debugger",), ("tester",)]
    return path


def arm_of(name: str, *, kvflow: bool, rounds: int, workflows: int, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    steps: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    clock = 0.0
    for number in range(rounds):
        ends = []
        for w in range(workflows):
            now = begin = clock + 0.15 * w
            for agents in walk(random.Random(f"{number}/{w}")):
                latest = now
                for agent in agents:
                    prompt = chance.randrange(1800, 4200)
                    device = int(prompt * chance.choice([0.3, 0.55, 0.8] if kvflow else [0, 0.2, 0.7]))
                    host = int((prompt - device) * chance.choice([0, 0.2, 0.4]))
                    lost = int((prompt - device - host) * chance.choice([0, 0.1] if kvflow else [0, 0.6, 0.8]))
                    new = prompt - device - host - lost
                    latency = 0.15 + (lost + new) * 2.2e-4 + host * 1e-4 + chance.random() * 0.1
                    steps.append(
                        {
                            "round": number, "workflow": f"r{number}w{w}", "agent": agent, "start_s": now,
                            "latency_s": latency, "prompt_tokens": prompt, "device_tokens": device,
                            "host_tokens": host, "recomputed_tokens": lost, "new_tokens": new, "output_tokens": 32,
                        }
                    )  # fmt: skip
                    latest = max(latest, now + latency)
                now = latest + 0.02
            runs.append({"round": number, "workflow": f"r{number}w{w}", "start_s": begin, "end_s": now})
            ends.append(now)
        clock = max(ends) + 1.0
    return {
        "name": name,
        "policy": "steps" if kvflow else "lru",
        "kvflow": kvflow,
        "steps": steps,
        "workflows": runs,
        "residency": residency(chance, clock) if kvflow else [],
    }


def residency(chance: random.Random, until_s: float) -> list[dict[str, Any]]:
    tokens = {f"{tier}/{cls}": 0.0 for tier in ("device", "host") for cls in CLASSES}
    samples = []
    for i in range(int(until_s / 0.1)):
        for tier, capacity in (("device", 10_240), ("host", 30_720)):
            for cls, share in zip(CLASSES, (0.4, 0.3, 0.12, 0.1, 0.08), strict=True):
                goal = capacity * share * (0.7 + 0.6 * chance.random())
                tokens[f"{tier}/{cls}"] += (goal - tokens[f"{tier}/{cls}"]) * 0.12
            total = sum(tokens[f"{tier}/{cls}"] for cls in CLASSES)
            for cls in CLASSES:
                tokens[f"{tier}/{cls}"] *= min(1.0, capacity / total)
        samples.append({"at_s": 0.1 * i, "tokens": {key: int(value) for key, value in tokens.items()}})
    return samples


def make_document(*, rounds: int = 3, workflows: int = 4) -> dict[str, Any]:
    return {
        "kind": "demo",
        "created": "2026-11-20T17:00:00Z",
        "command": "kvflow demo",
        "git": {"commit": "4f2c91ab", "dirty": False},
        "machine": {"cpu": "AMD EPYC 7B13", "cores": 2, "memory_gib": 24.0},
        "versions": {"kvflow": "0.1.0", "sglang": "0.5.23", "torch": "2.13.0", "python": "3.11.7"},
        "settings": {
            "device_tokens": 10_240, "host_tokens": 30_720, "workflows_at_once": workflows, "link_bytes_per_s": 1e8,
            "page_tokens": 16, "rounds": rounds, "seed": 7,
        },
        "seams_hold": True,
        "identical_tokens": True,
        "graph": GRAPH,
        "arms": [
            arm_of("sglang hicache lru", kvflow=False, rounds=rounds, workflows=workflows, seed=1),
            arm_of("kvflow steps", kvflow=True, rounds=rounds, workflows=workflows, seed=2),
        ],
        "comparison": [
            {
                "metric": name, "unit": unit, "baseline": baseline, "kvflow": kvflow,
                "ratio": kvflow / baseline if baseline else None, "lower_is_better": lower,
            }
            for name, unit, baseline, kvflow, lower in METRICS
        ],
    }  # fmt: skip


@pytest.fixture
def document() -> dict[str, Any]:
    return make_document()


@pytest.fixture
def make() -> Callable[..., dict[str, Any]]:
    return make_document
