"""How well kvflow predicts what programs do, on every trace of a folder: `kvflow predict eval`, kept and as a page.

The result goes to a JSON file when all sources are evaluated; docs/prediction-results.md is made from it.

Usage: python bench/bench_predict.py DATA [--sources swe tau] [--json FILE]
       python bench/bench_predict.py --page      only write docs/prediction-results.md again
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from by_source import left_out, options_of, sources_of, write  # noqa: E402

from kvflow.cli.circumstances import circumstances  # noqa: E402
from kvflow.predict.evaluate import evaluate  # noqa: E402
from kvflow.trace import BadRow, open_trace  # noqa: E402

RESULT = HERE / "results" / "predict.json"
PAGE = HERE.parent / "docs" / "prediction-results.md"
FORECASTS = {"tools": "tools", "ahead": "steps ahead", "pause": "pauses", "all": "all"}
LEAST_FORECASTS = 30
INTRO = """\
# How good the predictions are

Made by `bench/bench_predict.py` from `bench/results/predict.json`; do not edit. What the columns mean is said in
[prediction.md](prediction.md#evaluation).
"""

Scores = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page: a row, or several, for each source that has something to say."""

    title: str
    columns: tuple[str, ...]
    rows: Callable[[Scores], Iterator[list[str]]]

    def render(self, sources: dict[str, Scores]) -> Iterator[str]:
        """Its lines."""
        yield from ("", f"## {self.title}", "", f"| source | {' | '.join(self.columns)} |")
        yield "|---" * (1 + len(self.columns)) + "|"
        for name, scores in sorted(sources.items()):
            for row in self.rows(scores):
                yield f"| {name} | {' | '.join(row)} |"


def tools(scores: Scores) -> Iterator[list[str]]:
    """How long tools take."""
    found = scores["tools"]
    if found is None or found["left_out"] is None:
        return
    online, others, long = found["online"], found["left_out"], found["long_calls"]
    aucs = [found["by_tool_auc"], found["by_verb_auc"], others["auc"], online["auc"]]
    yield [
        f"{found['calls']:,} ({long['2.0']:,} / {long['10.0']:,})",
        numbers(auc["2.0"] for auc in aucs),
        numbers([others["auc"]["10.0"], online["auc"]["10.0"]]),
        number(online["log_loss"]["2.0"], 3),
        " / ".join(f"{100 * online['coverage'][share]:.0f}" for share in ("0.5", "0.8", "0.95")),
        number(online["error_factor"]),
    ]


def again(scores: Scores) -> Iterator[list[str]]:
    """Whether a context is used again."""
    found = scores["again"]
    if found is None:
        return
    etas = ", ".join(f"{eta:.2f}" for eta in found["eta"].values()) if len(found["eta"]) <= 3 else "–"
    yield [
        f"{found['uses']:,}",
        f"{100 * found['share']:.1f} %",
        f"{found['brier']:.4f} ({found['base_brier']:.4f})",
        f"{found['log_loss']:.3f}",
        etas,
    ]


def agents(scores: Scores) -> Iterator[list[str]]:
    """Who runs next."""
    found = scores["agents"]
    if found is None:
        return
    orders = found["orders"].values()
    yield [
        f"{found['steps']:,}",
        " / ".join(f"{100 * order['accuracy']:.0f}" for order in orders) + " %",
        numbers(order["log_loss"] for order in orders),
    ]


def uses(scores: Scores) -> Iterator[list[str]]:
    """When a context is used next."""
    for kind, told in FORECASTS.items():
        found = scores["uses"].get(kind)
        if found is None or found["timed"] < LEAST_FORECASTS or (kind == "all" and len(scores["uses"]) == 2):
            continue
        yield [
            told,
            f"{found['forecasts']:,}",
            f"{100 * found['covered']:.0f} %",
            f"{100 * found['below_median']:.0f} %",
            numbers(found["auc"].values()),
        ]


def numbers(values: Iterable[float | None]) -> str:
    """Several in a cell."""
    return " / ".join(map(number, values))


def number(value: float | None, digits: int = 2) -> str:
    """A dash for none."""
    return "–" if value is None else f"{value:.{digits}f}"


TABLES = (
    Table(
        "Tool durations",
        (
            "calls (> 2 s / > 10 s)",
            "AUC > 2 s: tool / tool+verb / others / online",
            "AUC > 10 s: others / online",
            "log-loss > 2 s online",
            "in 50 / 80 / 95 % online",
            "factor",
        ),
        tools,
    ),
    Table("Used again", ("uses", "used again", "Brier (a constant's)", "log-loss", "η"), again),
    Table("Who runs next", ("steps", "right: order 0 / 1 / 2", "log-loss: order 0 / 1 / 2"), agents),
    Table(
        "When a context is used next",
        ("forecast by", "cases", "in 80 %", "below the median", "AUC: used within 2 / 10 / 60 s"),
        uses,
    ),
)


def render(result: dict[str, Any]) -> str:
    """The page."""
    git = result["git"]
    made = f"Nothing is learned from one trace for the next. Commit {str(git['commit'])[:8]}, {result['created'][:10]}."
    lines = [INTRO, textwrap.fill(made, 120)]
    for table in TABLES:
        lines += table.render(result["sources"])
    return "\n".join(lines) + "\n"


def told(source: str, row: BadRow) -> None:
    """Say what of a trace could not be used."""
    print(f"left out: {source}:{row.line}: {row.problem}")


def main() -> None:
    """Evaluate, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="folder with traces (*.jsonl, *.jsonl.gz) at any depth")
    parser.add_argument("--sources", nargs="*", default=[""], help="only files whose path has one of these in it")
    parser.add_argument("--json", type=Path, default=RESULT)
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = options_of(parser)
    if options.sources != [""] and options.json == RESULT:
        parser.error("some sources alone would take the place of all: name another file by --json")
    if not options.page:
        result = {"bench": "predict", **circumstances(), "sources": {}}
        for name, path in sources_of(options):
            with left_out(name, path):
                _, events = open_trace(path, partial(told, name))
                result["sources"][name] = evaluate(events).to_dict()
                print(f"{name}: {result['sources'][name]['llm_calls']:,} LLM calls", flush=True)
        write(result, options.json)
    page = PAGE if options.json == RESULT else options.json.with_suffix(".md")
    page.write_text(render(json.loads(options.json.read_text())))
    print(f"written: {page.name}")


if __name__ == "__main__":
    main()
