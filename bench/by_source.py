"""What benches over a folder of traces share: their options, and a result file that grows source by source.

What is in the file already is not simulated again; the bench's page is made from it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvflow.cli.circumstances import circumstances
from kvflow.errors import TraceError
from kvflow.sim.workload import Workload

HERE = Path(__file__).parent
LEAST_PROGRAMS = 32
"""Fewer would leave the closed loop little time in which all places are taken; a source with fewer is repeated."""

Servers = list[dict[str, Any]]


def parser_of(description: str, *, seeds: int, calls: int, result: Path) -> argparse.ArgumentParser:
    """Options of every such bench."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="folder with traces (*.jsonl, *.jsonl.gz) at any depth")
    parser.add_argument("--sources", nargs="*", default=[""], help="only files whose path has one of these in it")
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--calls", type=int, default=calls, help="LLM calls per simulation, about; sets the programs")
    parser.add_argument("--limit", type=int, help="programs per simulation, instead of --calls")
    parser.add_argument("--profile", default="h200")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, default=result)
    parser.add_argument("--page", action="store_true", help="only write the page")
    return parser


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options given; exits if there is nothing to simulate."""
    options = parser.parse_args()
    if not options.page and (options.data is None or not options.data.is_dir()):
        parser.error("give the folder with the traces")
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A bench that simulates each source in one go.

    Attributes:
        measured: what came of the servers of a source; raises TraceError where there is nothing to simulate.
        rows: a table's rows from that.
        render: the page from the whole result.
        switches: further options, with what they do.
    """

    name: str
    description: str
    page: Path
    calls: int
    measured: Callable[[Path, argparse.Namespace], Servers]
    rows: Callable[[Servers], Iterable[list[str]]]
    render: Callable[[dict[str, Any]], str]
    switches: Mapping[str, str] = field(default_factory=dict)

    def main(self) -> None:
        """Run and write."""
        result = HERE / "results" / f"{self.name}.json"
        parser = parser_of(self.description, seeds=2, calls=self.calls, result=result)
        for name, text in self.switches.items():
            parser.add_argument(f"--{name}", action="store_true", help=text)
        options = options_of(parser)
        if not options.page:
            self.run(options)
        page = self.page if options.json == result else options.json.with_suffix(".md")
        page.write_text(self.render(json.loads(options.json.read_text())))
        print(f"written: {page.name}")

    def run(self, options: argparse.Namespace) -> None:
        """Simulate what is missing."""
        settings = {name: getattr(options, name) for name in ("seeds", "calls", "profile")}
        settings |= {name: True for name in self.switches if getattr(options, name)}
        settings |= {"limit": options.limit} if options.limit else {}
        result = begun(options.json, settings)
        result |= {"bench": self.name, **circumstances()}
        write(result, options.json)
        for name, path in sources_of(options):
            if name in result["sources"]:
                continue
            with left_out(name, path):
                servers = self.measured(path, options)
                result["sources"][name] = {"commit": result["git"]["commit"], "servers": servers}
                write(result, options.json)
                print(f"{name}: " + "; ".join(" ".join(cells) for cells in self.rows(servers)), flush=True)


def begun(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The result so far; exits if it was made with other settings."""
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"sources": {}}
    if result.setdefault("settings", settings) != settings:
        sys.exit(f"{path.name} was made with other settings: {result['settings']}; name another file by --json")
    return result


def sources_of(options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Traces that were asked for, by name."""
    for path in sorted(path for path in options.data.rglob("*.jsonl*") if path.suffix in (".jsonl", ".gz")):
        name = str(path.relative_to(options.data)).removesuffix(".gz").removesuffix(".jsonl")
        if any(part in name for part in options.sources):
            yield name, path


@contextmanager
def left_out(name: str, path: Path) -> Iterator[None]:
    """A source that cannot be simulated is reported and left out."""
    try:
        yield
    except TraceError as error:
        print(f"left out: {name}: {str(error).replace(str(path), path.name).partition(' (')[0]}")


def enough(workload: Workload, least: int) -> Workload:
    """The workload, if it has so many different programs; raises TraceError otherwise."""
    if len(workload.programs) < least * workload.times:
        raise TraceError(f"fewer than {least} programs that fit")
    return workload


def programs_of(workload: Workload, options: argparse.Namespace) -> int:
    """How many programs a simulation takes."""
    known = len(workload.programs)
    wanted = options.limit or max(LEAST_PROGRAMS, round(options.calls * known / len(workload.request_tokens)))
    return wanted if known < LEAST_PROGRAMS else min(wanted, known)


def plenty(workload: Workload, programs: int) -> Workload:
    """A workload of at least so many programs: small sources are played more than once, as new workflows."""
    return workload.repeated(-(-programs // len(workload.programs)))


def write(result: dict[str, Any], path: Path) -> None:
    """Replace the file as a whole."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, separators=(",", ":")))
    part.replace(path)
