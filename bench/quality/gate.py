"""Whether the quality gate lets good reuse pass, and how soon it catches a broken anchor pool.

The programs of :mod:`run`, with the gate as it is by default. After half of them a plugin of this bench breaks what is
read of all anchors: the order of their tokens (``tokens``) or of their layers (``layers``), their sign (``sign``) or
their size (``scale``: eight times what it should be). After how many questions each slot closes that was open is noted.
Servers are started anew for each break, and once for none, which shows what closes without a reason: only what closes
where that run's slot stays open, or earlier than it, has been caught.

Usage: python bench/quality/gate.py MODEL_FOLDER [--programs 120] [--mode kvcomm] [--breaks tokens …] [--json FILE]
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
        if not switch.exists():
            return sum_
        damaged = eval("lambda kv: " + switch.read_text())
        return type(sum_)(damaged(sum_.keys), damaged(sum_.values))

    correct.combined = broken
"""
BREAKS = {"none": "kv", "tokens": "kv.flip(1)", "layers": "kv.flip(0)", "sign": "-kv", "scale": "8 * kv"}
"""What becomes of keys and values, [layers, tokens, heads, dim]."""
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


def run(client: httpx.Client, programs: int, switch: Path, mode: str, broken_as: str) -> dict[str, Any]:
    """Ask half of the programs of a sound pool, and the others of a broken one."""
    arm = Arm("gate", mode)
    sound: dict[str, Any] = {}
    closed: dict[str, int] = {}
    last: dict[tuple[str, str], str] = {}
    asked = 0
    marks: dict[bool, list[bool]] = {False: [], True: []}
    for item in questions(programs, references=0.5, seed=3):
        broken = item.program >= programs // 2
        if broken and not sound:
            last = doors(client)
            sound = {"doors": counted(last), "checks": reuse_stats(client)["checks"]}
            switch.write_text(BREAKS[broken_as])
        right = answer(client, arm, item)
        if item.agent != "reader" or item.question.kind not in PUZZLE_KINDS:
            continue
        marks[broken].append(right)
        settle(client)
        if broken:
            asked += 1
            before, last = last, doors(client)
            shut = [slot for slot, door in before.items() if door == "open" and last.get(slot) == "closed"]
            closed = {" of ".join(reversed(slot)): asked for slot in shut} | closed
    share = {key: sum(each) / len(each) for key, each in marks.items()}
    return {
        "break": broken_as,
        "before": sound | {"right": share[False], "questions": len(marks[False])},
        "after": {"closed_after": closed, "doors": counted(doors(client)), "right": share[True]},
    }


def measure(model: Path, programs: int, mode: str, broken_as: str) -> dict[str, Any]:
    """Start a server, and run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder)
        env = {
            "KVFLOW_STRICT": "1",
            "KVFLOW_REUSE__MODE": mode,
            "KVFLOW_REUSE__MIN_TOKENS": "32",
            "KVFLOW_REUSE__REPAIR_TOKENS": "4",
            "KVFLOW_REUSE__REPAIR_LAYER": "2",
            "BREAKER_SWITCH": str(folder / "broken"),
        }
        flags = ["--page-size", "1", "--max-total-tokens", "16384", "--enable-kvflow", "--sleep-on-idle"]
        server = launch_server(model, log_path=folder / "log", extra_args=flags, env=env, python_path=[folder])
        with server as started, httpx.Client(base_url=started.url, timeout=120) as client:
            return run(client, programs, folder / "broken", mode, broken_as)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--programs", type=int, default=120)
    parser.add_argument("--mode", default="kvcomm")
    parser.add_argument("--breaks", nargs="+", choices=BREAKS, default=BREAKS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    for broken_as in options.breaks:
        results.append(measure(options.model, options.programs, options.mode, broken_as))
        print(json.dumps(results[-1], indent=1))
    if options.json:
        what = {"programs": options.programs, "mode": options.mode, "results": results}
        options.json.write_text(json.dumps({"bench": "quality gate", **circumstances(), **what}, indent=1) + "\n")


if __name__ == "__main__":
    main()
