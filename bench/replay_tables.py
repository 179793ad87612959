"""Render results of replays as the tables of bench/README.md.

Usage: python bench/replay_tables.py          print them, of the files that the page names
       python bench/replay_tables.py --write  put them into the page
       python bench/replay_tables.py --again  say how rounds of two servers of one kind differ, of all result files
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvflow.replay.metrics import Difference, difference

PAGE = Path(__file__).parent / "README.md"
BLOCK = re.compile(r"<!-- replays: (.*?) -->\n(.*?)<!-- end -->", re.S)
"""Names of result files, and the tables made of them."""

NAMES = {
    "SWE-agent/mini-swe-agent": "mini-swe-agent",
    "eunomia-bpf/agentcgroup": "Claude Code",
    "OpenHands/benchmarks": "OpenHands",
    "ShishirPatil/gorilla": "BFCL, multi-turn",
    "sierra-research/tau2-bench": "tau2-bench",
    "ag2ai/Agents_Failure_Attribution": "Who&When",
    "FSoft-AI4Code/HyperAgent": "HyperAgent",
}
"""What the sources of traces are called here."""

ARMS = {"kvflow": "kvflow", "kvflow-infer": "without hints", "kvflow-fcfs": "without admission", "lpm": "SGLang `lpm`"}
"""Those that are compared with `lru`, as tables call them."""
WORK = {
    "stall_s": "stall",
    "queue_mean_s": "queueing, mean",
    "recomputed_tokens": "recomputed tokens",
    "latency_p99_s": "step p99",
    "ttft_p99_s": "first token p99",
}
"""What servers spent, by its name among the measures."""
TOTALS = ("stall_s", "recomputed_tokens")
"""Of all rounds together, and told of one."""


def render(names: list[str]) -> str:
    """Two tables of the results with these names: how long programs take, and what the server did for them."""
    results = [(name, json.loads((PAGE.parent / "results" / name).read_text())) for name in names]
    return "\n".join([*_times(results), "", *_work(results), ""])


def _times(results: list[tuple[str, dict[str, Any]]]) -> list[str]:
    lines = [
        f"| | `lru`, mean | {' | '.join(ARMS.values())} | all fits | against `lpm` | from its start | p95 | worst |",
        "|---|" + "---:|" * (len(ARMS) + 6),
    ]
    for name, result in results:
        for load in result["loads"]:
            arms = {arm["name"]: arm for arm in load["arms"]}
            lru, ours = arms["lru"]["measures"], arms["kvflow"]
            p95 = ours["measures"]["completion_p95_s"] / lru["completion_p95_s"]
            worst = ours["against_first"]["completion_s"]["worst_ratio"]
            cells = [
                f"{_title(result, load)}, [`{name}`](results/{name})",
                f"{lru['completion_mean_s']:.0f} s",
                *(_ratio(arms.get(arm)) for arm in (*ARMS, "fits")),
                _between(arms.get("lpm"), arms["kvflow"]),
                _ratio(arms["kvflow"], "run_s"),
                f"{p95:.2f}x",
                f"{worst:.2f}x",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _work(results: list[tuple[str, dict[str, Any]]]) -> list[str]:
    arms = {"lru": "`lru`", **{name: ARMS[name] for name in ("kvflow", "kvflow-infer", "lpm")}}
    lines = [
        "| " + ", ".join(arms.values()) + " | " + " | ".join(WORK.values()) + " | on the device | of |",
        "|---|" + "---:|" * (len(WORK) + 1) + "---|",
    ]
    for _, result in results:
        for load in result["loads"]:
            measures = {arm["name"]: arm["measures"] for arm in load["arms"]}
            shares = {key: load["rounds"] if key in TOTALS else 1 for key in WORK}
            amounts = [
                ", ".join(_amount(measures[arm][key] / share, key) for arm in arms if arm in measures)
                for key, share in shares.items()
            ]
            share = f"{load['sizes']['device_tokens'] / load['live_tokens']:.0%}"
            cells = [_title(result, load), *amounts, share, result["git"]["commit"][:8]]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _title(result: dict[str, Any], load: dict[str, Any]) -> str:
    source = result["traces"][0]["source"]
    many = "all" if load["at_once"] >= load["programs"] else load["at_once"]
    rounds = "" if load["rounds"] == 1 else f", {load['rounds']} rounds"
    rounds += " with servers that stay up" if result["settings"].get("keep_servers") else ""
    return f"{NAMES.get(source, source)}, {load['programs']} programs, {many} at once{rounds}"


def _ratio(arm: dict[str, Any] | None, measure: str = "completion_s") -> str:
    found = arm["against_first"].get(measure) if arm is not None else None
    return "" if found is None else f"{found['ratio']:.2f}x [{found['ratio_low']:.2f}, {found['ratio_high']:.2f}]"


def _between(before: dict[str, Any] | None, after: dict[str, Any]) -> str:
    """Completion with an arm against another one that is not the first."""
    if before is None:
        return ""
    old, new = ({each["round"]: each["completion_s"] for each in arm["workflows"]} for arm in (before, after))
    found = difference(old, new)
    return "" if found is None else f"{found.ratio:.2f}x [{found.ratio_low:.2f}, {found.ratio_high:.2f}]"


def _amount(value: float, key: str) -> str:
    return f"{value:.1f} s" if key.endswith("_s") else f"{value:,.0f}"


def again() -> str:
    """How far apart rounds of servers of one kind are, and how many intervals leave out that they are alike."""
    found = [each for path in sorted((PAGE.parent / "results").glob("replay-*.json")) for each in _again(path)]
    apart = sum(not each.ratio_low <= 1 <= each.ratio_high for each in found)
    ratios = [each.ratio for each in found]
    return f"{len(found)} rounds, {apart} with an interval without 1; {min(ratios):.2f}x to {max(ratios):.2f}x"


def _again(path: Path) -> Iterator[Difference]:
    for load in json.loads(path.read_text())["loads"]:
        arms = {arm["name"]: arm for arm in load["arms"]}
        for name in (name for name in arms if "again" in name):
            like = arms["kvflow"] if "--enable-kvflow" in arms[name]["flags"] else load["arms"][0]
            both = (like["workflows"], arms[name]["workflows"])
            one, other = ({each["round"]: each["completion_s"] for each in rounds} for rounds in both)
            found = (difference({index: one[index]}, {index: other[index]}) for index in one if index in other)
            yield from filter(None, found)


def main(arguments: list[str]) -> None:
    """Print the tables, or write them."""
    page = PAGE.read_text()
    if "--again" in arguments:
        print(again())
        return
    if "--write" in arguments:
        PAGE.write_text(BLOCK.sub(lambda m: f"<!-- replays: {m[1]} -->\n{render(m[1].split())}<!-- end -->", page))
        return
    for block in BLOCK.finditer(page):
        print(render(block[1].split()))


if __name__ == "__main__":
    main(sys.argv[1:])
