"""What loading ahead hides, on KVFlow's own shape: a chain of agents whose prompts do not fit the device.

Ten agents in a chain, each with a fixed prompt of 2048 tokens, 32 tokens of its own per step and 32 of output; the
device holds four of them, the host tier all. The link is slowed down until loading one fixed prompt takes about as long
as decoding one step's output, which is the ratio of KVFlow's single-GPU set-up (arXiv 2507.07400, section 5.1). Four
servers run side by side, and the same workflows go to them in turns: SGLang's hierarchical cache with its own order of
requests (first come first served, longest prefix match), kvflow without prefetch, and kvflow.

Then the same agents run in an order that nobody could know, under a graph that says they run in a chain, on the two
servers with kvflow: what prefetch costs where nothing can be known.

Usage: python bench/bench_prefetch.py [--workflows 6] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from serving import require_whole

from kvflow.cli.circumstances import circumstances
from kvflow.cli.ending import ended_by_signals
from kvflow.hints import envelope, step_action
from kvflow.patches.cpu.launch import ServerProcess, launch_server
from kvflow.patches.cpu.link import BANDWIDTH_VARIABLE, Direction
from kvflow.patches.cpu.model import build_model
from kvflow.patches.cpu.publish import FILE_VARIABLE, forget_statistics, read_statistics

AGENTS, FIXED_TOKENS, DYNAMIC_TOKENS, OUTPUT_TOKENS = 10, 2048, 32, 32
CONTEXT_TOKENS = FIXED_TOKENS + DYNAMIC_TOKENS + OUTPUT_TOKENS
DEVICE_TOKENS = 4 * CONTEXT_TOKENS
FLAGS = ("--page-size", "16", "--max-total-tokens", str(DEVICE_TOKENS), "--sleep-on-idle")
FLAGS += ("--enable-hierarchical-cache", "--hicache-ratio", "4", "--hicache-write-policy", "write_through")
KVFLOW = ("--enable-kvflow",)
NAMES = [f"agent-{number}" for number in range(AGENTS)]
GRAPH = {
    "name": "shuffled",
    "agents": {name: {} for name in NAMES},
    "edges": [[one, other] for one, other in zip(["START", *NAMES], [*NAMES, "END"], strict=True)],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One configuration of the comparison."""

    name: str
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


ARMS = (
    Arm(name="sglang, fcfs", flags=("--schedule-policy", "fcfs")),
    Arm(name="sglang, lpm", flags=("--schedule-policy", "lpm")),
    Arm(name="kvflow without prefetch", flags=KVFLOW, env={"KVFLOW_PREFETCH__ENABLED": "0", "KVFLOW_STRICT": "1"}),
    Arm(name="kvflow", flags=KVFLOW, env={"KVFLOW_STRICT": "1"}),
)


@dataclass(slots=True)
class Player:
    """Plays chains against one server."""

    arm: Arm
    client: httpx.Client
    link_path: Path
    prompts: list[list[int]]
    step_s: list[float] = field(default_factory=list)
    workflow_s: list[float] = field(default_factory=list)
    stall_s: list[float] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)

    @property
    def hinted(self) -> bool:
        """Whether the server knows hints."""
        return self.arm.flags[0] == "--enable-kvflow"

    def play(self, number: int, kind: str = "chain") -> None:
        """Run one workflow: its agents in their order, or (``shuffled``) in any."""
        rng = random.Random(1_000_000 + number)
        before_s, began_s = self.stalled_s(), time.perf_counter()
        order = list(range(AGENTS)) if kind == "chain" else rng.sample(range(AGENTS), AGENTS)
        for place, agent in enumerate(order):
            own = [rng.randrange(10, 250) for _ in range(DYNAMIC_TOKENS)]
            workflow = {"workflow_id": f"{kind}-{number}", "workflow_type": kind, "final": place == AGENTS - 1}
            step = step_action(agent=f"agent-{agent}", **workflow)
            asked_s = time.perf_counter()
            self.outputs.append(self.ask(self.prompts[agent] + own, step))
            self.step_s.append(time.perf_counter() - asked_s)
        self.workflow_s.append(time.perf_counter() - began_s)
        self.stall_s.append(self.stalled_s() - before_s)

    def ask(self, ids: list[int], step: dict[str, Any] | None = None, tokens: int = OUTPUT_TOKENS) -> list[int]:
        """Ask for an answer of a fixed length."""
        params = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body: dict[str, Any] = {"input_ids": ids, "sampling_params": params}
        if step is not None and self.hinted:
            body["kv_hints"] = envelope([step])
        return self.client.post("/generate", json=body).raise_for_status().json()["output_ids"]

    def stalled_s(self) -> float:
        """Seconds forward passes have waited for loads so far."""
        time.sleep(0.25)  # the server publishes ten times a second
        return read_statistics(self.link_path)[Direction.HOST_TO_DEVICE].stalled_s

    def forget(self) -> None:
        """What came so far was for warming up."""
        for kept in (self.step_s, self.workflow_s, self.stall_s, self.outputs):
            kept.clear()
        if self.hinted:
            self.client.get("/kvflow/v1/stats", params={"reset": True}).raise_for_status()


def fixed_prompts() -> list[list[int]]:
    """One for each agent."""
    rng = random.Random(0)
    return [[rng.randrange(10, 250) for _ in range(FIXED_TOKENS)] for _ in range(AGENTS)]


def decode_s(model: Path, folder: Path, at_once: int = 1) -> float:
    """Seconds that decoding a step's output takes on this machine, with so many at once."""
    with (
        launch_server(model, log_path=folder / "calibration.log", extra_args=FLAGS) as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        player = Player(ARMS[0], client, folder / "none", fixed_prompts())
        ids = player.prompts[0]
        player.ask(ids)
        times: dict[int, list[float]] = {1: [], OUTPUT_TOKENS: []}
        with ThreadPoolExecutor(at_once) as pool:
            for _ in range(5):
                for tokens, taken in times.items():
                    began_s = time.perf_counter()
                    list(pool.map(partial(player.ask, tokens=tokens), [ids] * at_once))
                    taken.append(time.perf_counter() - began_s)
        return statistics.median(times[OUTPUT_TOKENS]) - statistics.median(times[1])


def token_bytes(model: Path) -> int:
    """Bytes of KV per token."""
    config = json.loads((model / "config.json").read_text())
    head = config["hidden_size"] // config["num_attention_heads"]
    return 2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * head


def started(arm: Arm, model: Path, folder: Path, bytes_s: float) -> contextlib.AbstractContextManager[ServerProcess]:
    """The server of an arm."""
    name = arm.name.replace(" ", "-")
    forget_statistics(folder / f"{name}.json")
    env = {BANDWIDTH_VARIABLE: f"{bytes_s:.0f}", FILE_VARIABLE: str(folder / f"{name}.json"), **arm.env}
    return launch_server(model, log_path=folder / f"{name}.log", extra_args=[*FLAGS, *arm.flags], env=env)


def measure(workflows: int, folder: Path) -> dict[str, Any]:
    """All arms, workflow by workflow in turns."""
    model = build_model(folder / "model")
    decoding_s = decode_s(model, folder)
    bytes_s = FIXED_TOKENS * token_bytes(model) / decoding_s
    print(f"decoding {OUTPUT_TOKENS} tokens takes {decoding_s:.3f} s; link of {bytes_s / 1e6:.1f} MB/s", flush=True)
    with contextlib.ExitStack() as running:
        players = []
        for arm in ARMS:
            server = running.enter_context(started(arm, model, folder, bytes_s))
            client = running.enter_context(httpx.Client(base_url=server.url, timeout=120))
            players.append(Player(arm, client, folder / f"{arm.name.replace(' ', '-')}.json", fixed_prompts()))
            for number in range(2):  # computes all prompts, and lets kvflow learn the chain
                players[-1].play(-1 - number)
            players[-1].forget()
        for number in range(workflows):
            for player in players if number % 2 == 0 else players[::-1]:
                player.play(number)
            print(f"workflow {number + 1}/{workflows}: " + ", ".join(f"{p.workflow_s[-1]:.2f} s" for p in players))
        chain = outcome(players)
        wrong = [player for player in players if player.hinted]
        for player in wrong:
            player.client.put("/kvflow/v1/graphs/shuffled", json=GRAPH).raise_for_status()
            player.forget()  # what it loads in vain until it has learned better counts
        for number in range(workflows):
            for player in wrong if number % 2 == 0 else wrong[::-1]:
                player.play(number, "shuffled")
        shuffled = outcome(wrong)
        for player in players:
            require_whole(str(player.client.base_url))
    return {"decode_s": decoding_s, "link_bytes_per_s": bytes_s, "chain": chain, "shuffled": shuffled}


def outcome(players: list[Player]) -> dict[str, Any]:
    """What came of all arms."""
    identical = all(player.outputs == players[0].outputs for player in players)
    return {"arms": [summed(player) for player in players], "identical_tokens": identical}


def summed(player: Player) -> dict[str, Any]:
    """What came of an arm."""
    stats = player.client.get("/kvflow/v1/stats").raise_for_status().json()["total"] if player.hinted else None
    return {
        "arm": player.arm.name,
        "step_mean_s": statistics.fmean(player.step_s),
        "step_p95_s": statistics.quantiles(player.step_s, n=20)[-1],
        "stall_s": sum(player.stall_s),
        "stats": stats,
    }


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workflows", type=int, default=6)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(options.workflows, Path(folder))
    result = {"bench": "prefetch", **circumstances(), "workflows": options.workflows, **measured}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    for kind in ("chain", "shuffled"):
        arms = measured[kind]["arms"]
        print(f"{kind}: identical tokens: {measured[kind]['identical_tokens']}")
        for arm in arms:
            faster = arms[0]["step_mean_s"] / arm["step_mean_s"]
            print(f"{arm['arm']:26} step {arm['step_mean_s']:.3f} s ({faster:.2f}x), stalled {arm['stall_s']:.2f} s")
        ours = arms[-1]["stats"]
        print({name: ours[name] for name in ours if name.startswith("prefetch")})


if __name__ == "__main__":
    with ended_by_signals():
        main()
