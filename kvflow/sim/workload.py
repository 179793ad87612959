"""What is simulated: the programs of some traces, and memory sizes relative to the contexts they keep alive."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from statistics import fmean

from kvflow.errors import ConfigError, TraceError
from kvflow.trace import BadEvent, BadRow, Program, open_trace, programs, repeated

_SUFFIXES = {"": 1, "k": 1_000, "M": 1_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """What was read from a file.

    Attributes:
        name: of the file, without its folder.
        source: where the trace comes from, as its header says.
        token_counts: ``counted``, ``estimated`` or ``mixed``.
        bad_rows: rows and events that could not be used.
    """

    name: str
    source: str
    token_counts: str
    programs: int
    calls: int
    bad_rows: int


@dataclass(frozen=True)
class Workload:
    """Programs to run, in the order of their files; ``times`` as many as the files have."""

    programs: Sequence[Program]
    files: Sequence[TraceFile] = ()
    times: int = 1

    @cached_property
    def request_tokens(self) -> list[int]:
        """Prompt and answer of every call, smallest first: what the device must hold to answer it."""
        return sorted(call.prompt.tokens + call.output_tokens for program in self.programs for call in program.calls)

    @cached_property
    def context_tokens(self) -> float:
        """Longest context of a program, on average; 0 without programs that call an LLM."""
        longest = [
            max(call.prompt.tokens + call.output_tokens for call in program.calls)
            for program in self.programs
            if program.calls
        ]
        return fmean(longest) if longest else 0.0

    def live_tokens(self, concurrency: int, limit: int | None = None) -> float:
        """Tokens of so many programs' longest contexts: what a size in percent is a share of."""
        programs = len(self.programs) if limit is None else min(limit, len(self.programs))
        return min(concurrency, programs) * self.context_tokens

    def too_long(self, device_tokens: int, page_tokens: int = 1) -> int:
        """How many calls a device of this size could never answer."""
        pages = device_tokens // page_tokens
        return sum(-(-tokens // page_tokens) > pages for tokens in self.request_tokens)

    def up_to(self, tokens: int) -> Workload:
        """Only the programs of which every request fits into so many tokens."""
        kept = [
            program
            for program in self.programs
            if all(call.prompt.tokens + call.output_tokens <= tokens for call in program.calls)
        ]
        return Workload(kept, self.files, self.times)

    def repeated(self, times: int) -> Workload:
        """The same kinds of programs several times over, each time as new workflows."""
        return Workload(repeated(self.programs, times), self.files, self.times * times)

    def drawn(self, seed: int, limit: int | None = None) -> list[Program]:
        """Shuffle the programs, and keep the first ``limit`` of them: every seed draws others."""
        order = list(self.programs)
        random.Random(seed).shuffle(order)
        return order[:limit]


@dataclass(frozen=True, slots=True)
class Size:
    """A memory size as asked for: tokens, or a share of the live contexts.

    Attributes:
        text: as it was written.
        tokens: None for a share.
        share: of 1; None for tokens.
    """

    text: str
    tokens: int | None = None
    share: float | None = None

    def resolve(self, live_tokens: float) -> int:
        """Say it in tokens."""
        return self.tokens if self.tokens is not None else round((self.share or 0.0) * live_tokens)


def read_workload(paths: Sequence[Path], on_bad: Callable[[BadRow | BadEvent], None] = lambda bad: None) -> Workload:
    """Read the programs of traces, of kvflow's own format or any it can import.

    Args:
        paths: the files.
        on_bad: told of every row and event that is left out; programs that call no LLM are left out, too.

    Raises:
        TraceError: a file cannot be read or is of no known format, or none of them has a program that calls an LLM.
    """
    found: list[Program] = []
    files: list[TraceFile] = []
    for path in paths:
        rows: list[BadRow] = []
        events: list[BadEvent] = []
        header, read = open_trace(path, rows.append)
        own = [program for program in programs(read, events) if program.calls]
        for bad in (*rows, *events):
            on_bad(bad)
        files.append(
            TraceFile(
                name=path.name,
                source=header.source,
                token_counts=header.token_counts,
                programs=len(own),
                calls=sum(len(program.calls) for program in own),
                bad_rows=len(rows) + len(events),
            )
        )
        found += own
    if not any(file.calls for file in files):
        raise TraceError(f"no LLM call to simulate in {', '.join(str(path) for path in paths)}")
    return Workload(found, files)


def parse_size(text: str) -> Size:
    """Read a memory size: ``400000``, ``400k``, ``1.5M`` tokens, ``50%`` of the live contexts, ``0`` or ``none``.

    Raises:
        ConfigError: it is none of these.
    """
    word = text.strip()
    if word.lower() == "none":
        return Size(word, tokens=0)
    match = re.fullmatch(r"(\d[\d_]*(?:\.\d+)?)\s*(%|k|K|M|m|)", word, re.ASCII)
    if match is None:
        raise ConfigError(f"{text!r} is no size: give tokens (400000, 400k, 1.5M), a share (50%) or none")
    number, suffix = match[1].replace("_", ""), match[2]
    if suffix == "%":
        return Size(word, share=float(number) / 100)
    suffix = {"K": "k", "m": "M"}.get(suffix, suffix)
    tokens = Decimal(number) * _SUFFIXES[suffix]
    if tokens != int(tokens):
        raise ConfigError(f"{text!r} is no size: tokens come whole")
    return Size(word, tokens=int(tokens))
