"""How true the workflows are that kvflow finds in the prompts of clients that say nothing (``--kvflow-infer``).

Plays recorded programs side by side, a call of each in turn, without a server: prompts and answers as token ids, as a
replay has them. Says into how many workflows with their sub-workflows the calls of each program went, how many of
those have calls of several programs, and what telling them apart took.

Usage: python bench/bench_infer.py SESSIONS… --name NAME [--scale 0.1] [--programs 40] [--at-once 10] [--json FILE]
       A file that is there keeps what it has of other names.
"""

from __future__ import annotations

import argparse
import json
from array import array
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from kvflow.cli.circumstances import circumstances
from kvflow.control import Quotes
from kvflow.control.threads import Threads
from kvflow.replay.contents import Contents
from kvflow.replay.work import Load
from kvflow.reuse.fingerprints import marks_of
from kvflow.sim.workload import read_workload
from kvflow.trace import Piece, Program

_MOST = 4096
"""Contexts remembered: the default of ``intake.max_workflows``."""


class Client:
    """Sends the calls of one program, thread by thread, as a gateway sees them."""

    def __init__(self, program: Program, contents: Contents) -> None:
        self.workflows: set[str] = set()
        self.unattributed = 0
        self._calls = program.calls
        self._contents = contents
        self._contexts: dict[str, array[int]] = {}

    def play(self, threads: Threads) -> Iterator[float]:
        """Make a call at a time; yields the seconds that it took to tell whose it is, and what it says."""
        for call in self._calls:
            base = self._contexts.get(call.prompt.base or "", array("q"))
            prompt = self._contents.prompt(base[: call.prompt.keep_tokens], call.prompt.add)
            answer: array[int] = array("q")
            if call.output_tokens:
                answer = self._contents.tokens(Piece(content=call.output, tokens=call.output_tokens))
            self._contexts[call.call] = prompt + answer
            asked = list(prompt), list(answer)
            began_s = perf_counter()
            step = threads.asks(asked[0], "")
            if step is None:
                self.unattributed += 1
            else:
                threads.answered(step.workflow_id, step.agent)
                threads.said(step.workflow_id, step.agent, asked[1])
                self.workflows.add(step.parent_workflow_id or step.workflow_id)
            yield perf_counter() - began_s


def main() -> None:
    """Run, tell and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path, help="traces, or what can be imported")
    parser.add_argument("--name", required=True, help="what the programs are called in the result")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of contexts and answers")
    parser.add_argument("--programs", type=int, default=40)
    parser.add_argument("--at-once", type=int, default=10, help="programs that run at a time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measured(options)
    print(f"{options.name}: {json.dumps(found)}")
    if options.json is not None:
        before = json.loads(options.json.read_text())["sources"] if options.json.is_file() else {}
        about = circumstances()
        found |= {"commit": about["git"]["commit"], "machine": about["machine"]}
        result = {**about, "sources": before | {options.name: found}}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Play them."""
    programs = Load(programs=options.programs, tokens=options.scale).drawn(read_workload(options.traces), seed=0)
    threads, contents = Threads(_MOST, quotes=Quotes(marks_of)), Contents()
    clients = [Client(program, contents) for program in programs]
    times_s = sorted(_side_by_side(clients, threads, options.at_once))
    programs_of: defaultdict[str, int] = defaultdict(int)
    for client in clients:
        for workflow in client.workflows:
            programs_of[workflow] += 1
    return {
        "scale": options.scale,
        "programs": len(clients),
        "at_once": options.at_once,
        "calls": len(times_s),
        "in_one_workflow": sum(len(client.workflows) == 1 and not client.unattributed for client in clients),
        "calls_of_none": sum(client.unattributed for client in clients),
        "workflows": len(programs_of),
        "of_several_programs": sum(count > 1 for count in programs_of.values()),
        "median_ms": round(1000 * times_s[len(times_s) // 2], 3),
        "p99_ms": round(1000 * times_s[int(0.99 * len(times_s))], 3),
    }


def _side_by_side(clients: list[Client], threads: Threads, at_once: int) -> Iterator[float]:
    """A call of each program that runs, in turn; the next one begins when one has ended."""
    waiting = [client.play(threads) for client in clients]
    running, waiting = waiting[:at_once], waiting[at_once:]
    while running:
        for play in list(running):
            took_s = next(play, None)
            if took_s is not None:
                yield took_s
                continue
            running.remove(play)
            running += waiting[:1]
            del waiting[:1]


if __name__ == "__main__":
    main()
