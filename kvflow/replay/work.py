"""What a round plays: which programs, and when they arrive."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from kvflow.replay.scaling import scaled
from kvflow.sim.workload import Workload
from kvflow.trace import LLMCall, Program, ToolEnd

Arrivals = list[tuple[float, Program, str]]
"""Seconds since the round began, the program, and its workflow id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long tools and pauses take.

    Attributes:
        max_gap_s: none takes longer; people go home.
        tool_s: a tool whose time is not recorded.
    """

    max_gap_s: float = 600.0
    tool_s: float = 1.0

    def of_tool(self, end: ToolEnd) -> float:
        """Seconds a tool takes."""
        return min(self.tool_s if end.seconds is None else end.seconds, self.max_gap_s)

    def of_pause(self, call: LLMCall) -> float:
        """Seconds a client pauses before a call."""
        return min(call.delay_s or 0.0, self.max_gap_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much is played, and how fast.

    Attributes:
        programs: per round; None for all.
        at_once: how many run at a time; None for all.
        per_min: programs that arrive a minute (a Poisson process); None for all at the start.
        tokens: factor of contexts and answers.
        time: factor of tools and pauses.
    """

    programs: int | None = None
    at_once: int | None = None
    per_min: float | None = None
    tokens: float = 1.0
    time: float = 1.0

    def drawn(self, workload: Workload, seed: int) -> list[Program]:
        """The programs of a round, scaled."""
        return [scaled(program, self.tokens, self.time) for program in workload.drawn(seed, self.programs)]

    def arrivals(self, programs: Sequence[Program], seed: int) -> Arrivals:
        """When they arrive. Equal seeds give equal arrivals."""
        draw = random.Random(f"arrivals {seed}")
        at_s = 0.0
        found: Arrivals = []
        for number, program in enumerate(programs):
            if self.per_min is not None:
                at_s += draw.expovariate(self.per_min / 60)
            found.append((at_s, program, f"{seed}.{number}:{program.start.workflow}"[:256]))
        return found
