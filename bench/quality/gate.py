"""Whether the quality gate lets good reuse pass, and how soon it catches a broken anchor pool.

The programs of :mod:`run`, with the gate as it is by default. After half of them the offsets of all anchors are read in
the wrong order (a plugin of this bench does that); what counts is how many questions it takes until a slot closes that
was open.

Usage: python bench/quality/gate.py MODEL_FOLDER [--programs 120] [--mode kvcomm] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from run import Arm, answer, questions, reuse_stats
from tasks import PUZZLE_KINDS

from kvflow.cli.circumstances import circumstances
from kvflow.patches.cpu.launch import launch_server

BREAKER = """
import os, pathlib
switch = pathlib.Path(os.environ["BREAKER_SWITCH"])

def register():
    from kvflow.reuse import correct
    combined = correct.combined

    def broken(parts):
        sum_ = combined(parts)
        return type(sum_)(sum_.keys.flip(1), sum_.values.flip(1)) if switch.exists() else sum_

    correct.combined = broken
"""
LONGEST_CHECK_S = 5.0
"""Checks are waited for so long."""


def install(folder: Path) -> None:
    """Make the breaker a plugin of SGLang."""
    (folder / "breaker.py").write_text(BREAKER)
    info = folder / "breaker-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: breaker\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nbreaker = breaker:register\n")


def doors(client: httpx.Client) -> dict[tuple[str, str], str]:
    """The state of every slot."""
    return {(slot["workflow_type"], slot["slot"]): slot["door"] for slot in reuse_stats(client)["gate"]}


def counted(states: dict[tuple[str, str], str]) -> dict[str, int]:
    """How many slots are in which state."""
    return dict(Counter(states.values()))


def settle(client: httpx.Client) -> None:
    """Wait for the checks of what has been asked."""
    deadline_s = time.monotonic() + LONGEST_CHECK_S
    while reuse_stats(client)["checks_under_way"] and time.monotonic() < deadline_s:
        time.sleep(0.01)


def run(client: httpx.Client, programs: int, switch: Path, mode: str) -> dict[str, Any]:
    """Ask half of the programs of a sound pool, and the others of a broken one."""
    arm = Arm("gate", mode)
    healthy: dict[str, Any] = {}
    caught: int | None = None
    last: dict[tuple[str, str], str] = {}
    asked = 0
    marks: dict[bool, list[bool]] = {False: [], True: []}
    for item in questions(programs, references=0.5, seed=3):
        broken = item.program >= programs // 2
        if broken and not healthy:
            last = doors(client)
            healthy = {"doors": counted(last), "checks": reuse_stats(client)["checks"]}
            switch.touch()
        right = answer(client, arm, item)
        if item.agent != "reader" or item.question.kind not in PUZZLE_KINDS:
            continue
        marks[broken].append(right)
        settle(client)
        if broken and caught is None:
            asked += 1
            before, last = last, doors(client)
            if any(door == "open" and last.get(slot) == "closed" for slot, door in before.items()):
                caught = asked
    share = {key: sum(each) / len(each) for key, each in marks.items()}
    return {
        "mode": mode,
        "healthy": healthy | {"right": share[False], "questions": len(marks[False])},
        "broken": {"first_closed_after": caught, "doors": counted(doors(client)), "right": share[True]},
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--programs", type=int, default=120)
    parser.add_argument("--mode", default="kvcomm")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder)
        env = {
            "KVFLOW_STRICT": "1",
            "KVFLOW_REUSE__MODE": options.mode,
            "KVFLOW_REUSE__MIN_TOKENS": "32",
            "KVFLOW_REUSE__REPAIR_TOKENS": "4",
            "KVFLOW_REUSE__REPAIR_LAYER": "2",
            "BREAKER_SWITCH": str(folder / "broken"),
        }
        flags = ["--page-size", "1", "--max-total-tokens", "16384", "--enable-kvflow", "--sleep-on-idle"]
        server = launch_server(options.model, log_path=folder / "log", extra_args=flags, env=env, python_path=[folder])
        with server as started, httpx.Client(base_url=started.url, timeout=120) as client:
            result = run(client, options.programs, folder / "broken", options.mode)
    print(json.dumps(result, indent=1))
    if options.json:
        record = {"bench": "quality gate", **circumstances(), "programs": options.programs, "result": result}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
