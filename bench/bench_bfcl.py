"""BFCL's multi-turn tasks as agents: the official tool schemas, true calls, and results of the official simulators.

With the package `bfcl-eval` (pip install --no-deps bfcl-eval mpmath) the true calls of its tasks are executed on its
own simulators, turn by turn, and become programs: a turn is a call of the model that asks for its tools, which run one
after another since they share state, and one that closes it. Without the package give files of the format that
`kvflow trace` imports (docs/traces.md), among them tasks that call several tools at once.

Simulators answer at once; --tool-s says how long tools take instead.

Usage: python bench/bench_bfcl.py [--tasks FILE…] [--category multi_turn_base] [options of kvflow replay]
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from replaying import Preset, parser, read, run  # noqa: E402

OPTIONS: dict[str, dict[str, str | int | float]] = {
    "cpu": {"programs": 24, "scale": 0.25, "tool-s": 0.5, "rounds": 2},
    "gpu": {"programs": 128, "concurrency": 64, "tool-s": 2, "rounds": 1, "page-tokens": 64},
}
CATEGORIES = ("multi_turn_base", "multi_turn_long_context")


def rows(category: str, data: Path) -> Iterator[dict[str, Any]]:
    """Tasks with what the simulators answer to the true calls."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import (  # pyright: ignore[reportMissingImports]
        execute_multi_turn_func_call,
    )

    truth = {row["id"]: row["ground_truth"] for row in lines(data / "possible_answer" / f"BFCL_v4_{category}.json")}
    for task in lines(data / f"BFCL_v4_{category}.json"):
        turns: list[dict[str, Any]] = []
        for user, calls in zip(task["question"], truth[task["id"]], strict=True):
            results, _ = execute_multi_turn_func_call(
                func_call_list=calls,
                initial_config=task["initial_config"],
                involved_classes=task["involved_classes"],
                model_name="truth",
                test_entry_id=task["id"],
                long_context="long_context" in category,
            )
            done = zip(calls, results, strict=True)
            asked = [{"call": call, "name": call.partition("(")[0], "result": result} for call, result in done]
            turns.append({"user": user, "ground_truth": asked})
        yield {
            "session_id": task["id"],
            "category": category,
            "involved_classes": task["involved_classes"],
            "excluded_function": task.get("excluded_function", []),
            "turns": turns,
        }


def docs(data: Path) -> Iterator[dict[str, Any]]:
    """The tool schemas of every class."""
    from bfcl_eval.constants.executable_backend_config import (  # pyright: ignore[reportMissingImports]
        MULTI_TURN_FUNC_DOC_FILE_MAPPING,
    )

    for name, file in MULTI_TURN_FUNC_DOC_FILE_MAPPING.items():
        yield {"class": name, "functions": lines(data / "multi_turn_func_doc" / file)}


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def made_by_package(category: str, folder: Path) -> Path:
    """Execute a category's true calls; returns the file with the tasks, beside one with the schemas."""
    found = find_spec("bfcl_eval")
    if found is None or found.origin is None:
        sys.exit("give files with tasks, or install the package: pip install --no-deps bfcl-eval mpmath")
    data = Path(found.origin).parent / "data"
    for name, content in (("func_docs.jsonl", docs(data)), ("tasks.jsonl", rows(category, data))):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in content))
    return folder / "tasks.jsonl"


def main() -> None:
    """Read options and run."""
    made = parser(__doc__)
    made.add_argument("--tasks", nargs="+", type=Path, default=[], help="files with tasks; default: the package's")
    made.add_argument("--category", choices=CATEGORIES, default=CATEGORIES[0], help="of the package's tasks")
    options, further = read(made)
    with tempfile.TemporaryDirectory() as name:
        traces = tuple(options.tasks) or (made_by_package(options.category, Path(name)),)
        sys.exit(run(Preset(traces=traces, options=OPTIONS[options.profile]), options, further))


if __name__ == "__main__":
    main()
