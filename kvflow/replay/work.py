"""What a round plays: which programs, when they arrive, and how much memory they are given."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from kvflow.replay.scaling import scaled
from kvflow.sim.workload import Workload
from kvflow.trace import MAIN_THREAD, Join, LLMCall, Program, Spawn, ToolEnd

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


def live_tokens(programs: Sequence[Program], at_once: int | None = None) -> float:
    """What programs hold that they will use again, each when that is most; fixed prompts of a role count once.

    Args:
        programs: all of them.
        at_once: how many run at a time.
    """
    fixed: dict[tuple[str, str], int] = {}
    for program in programs:
        for call in program.calls:
            role = (program.start.type, call.agent)
            fixed[role] = max(fixed.get(role, 0), call.fixed_tokens or 0)
    own_tokens = fmean(map(_most_live_tokens, programs)) if programs else 0.0
    return sum(fixed.values()) + own_tokens * min(at_once or len(programs), len(programs))


def _most_live_tokens(program: Program, thread: str = MAIN_THREAD) -> int:
    """Contexts behind fixed prompts, from an agent's first call to its last, when they are longest together.

    Of a thread and those it has spawned, until they have been joined.
    """
    events = program.threads.get(thread, [])
    last = {event.agent: number for number, event in enumerate(events) if isinstance(event, LLMCall)}
    live: dict[str, int] = {}
    beside: dict[str, int] = {}
    most_tokens = 0
    for number, event in enumerate(events):
        if isinstance(event, Spawn):
            beside[event.child] = _most_live_tokens(program, event.child)
        elif isinstance(event, Join):
            beside.pop(event.child, None)
        elif isinstance(event, LLMCall):
            live[event.agent] = event.prompt.tokens + event.output_tokens - (event.fixed_tokens or 0)
        most_tokens = max(most_tokens, sum(live.values()) + sum(beside.values()))
        if isinstance(event, LLMCall) and last[event.agent] == number:
            del live[event.agent]
    return most_tokens


def longest_request(programs: Sequence[Program]) -> int:
    """Tokens of the longest prompt with its answer."""
    return max((call.prompt.tokens + call.output_tokens for program in programs for call in program.calls), default=0)
