"""The result document of a replay as records."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from kvflow.report.result import Document, Record, present
from kvflow.report.verdict import INDISTINCT, Verdict


class Against(Record):
    """An arm against the first one, on the same workflows."""

    ratio: float = 1.0
    ratio_low: float = 1.0
    ratio_high: float = 1.0
    worst_ratio: float = 1.0
    pairs: int = 0
    distinct: bool = False
    tells: bool = True

    @property
    def verdict(self) -> Verdict:
        """Better or worse by more than 1 %, and by more than chance."""
        if not self.distinct or abs(self.ratio - 1) <= INDISTINCT:
            return Verdict.SAME
        return Verdict.BETTER if self.ratio < 1 else Verdict.WORSE


class Event(Record):
    """A call or a tool of the workflow that is shown."""

    what: str = "call"
    name: str = "?"
    thread: str = ""
    start_s: float = 0.0
    run_s: float = 0.0
    first_s: float = 0.0
    end_s: float = 0.0
    prompt_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    recomputed_tokens: int = 0
    output_tokens: int = 0


class Timeline(Record):
    """One workflow."""

    workflow: str = ""
    start_s: float = 0.0
    end_s: float = 0.0
    events: tuple[Event, ...] = ()
    left_out: int = 0


class ReplayArm(Record):
    """One arm at one load.

    Attributes:
        measures: by name, the name ending in the unit.
        against_first: by name of what was paired; empty for the first arm.
        errors: why calls failed.
        degraded: how often parts of kvflow failed, and SGLang went on without them.
    """

    name: str = "unnamed arm"
    hints: bool = False
    measures: Annotated[dict[str, float], BeforeValidator(present)] = Field(default_factory=dict)
    against_first: Annotated[dict[str, Against], BeforeValidator(present)] = Field(default_factory=dict)
    timeline: Timeline | None = None
    errors: tuple[str, ...] = ()
    degraded: dict[str, int] = Field(default_factory=dict)


class LoadRecord(Record):
    """All arms at one load."""

    at_once: int = 0
    per_min: float | None = None
    programs: int = 0
    rounds: int = 0
    kept: tuple[str, ...] = ()
    calls: int = 0
    sizes: dict[str, float] = Field(default_factory=dict)
    live_tokens: int = 0
    identical_tokens: bool | None = None
    arms: tuple[ReplayArm, ...] = ()

    @property
    def title(self) -> str:
        """The load in words."""
        arrivals = f", {self.per_min:g} arriving a minute" if self.per_min else ""
        return f"{self.programs} programs, {self.at_once} at once{arrivals}"

    @property
    def memory(self) -> str:
        """What there was to hold contexts in, in words; empty if that is not known."""
        tiers = [(tier, self.sizes.get(f"{tier}_tokens")) for tier in ("device", "host")]
        told = [f"{tokens:,.0f} tokens on the {tier}" for tier, tokens in tiers if tokens is not None]
        return f"of {self.live_tokens:,} tokens live, there was room for {' and '.join(told)}" if told else ""

    @property
    def apart(self) -> tuple[str, ...]:
        """Rounds that an earlier run had played, and not in turns with those of all other arms."""
        everyone = {arm.name for arm in self.arms}
        of_round: defaultdict[str, set[str]] = defaultdict(set)
        for arm, _, index in (one.rpartition(", round ") for one in self.kept):
            of_round[index].add(arm)
        alone = {index: arms for index, arms in of_round.items() if arms != everyone}
        return tuple(f"{arm}, round {index}" for index, arms in alone.items() for arm in sorted(arms))


class ReplayRecord(Document):
    """A whole replay."""

    seams_hold: bool | None = None
    broken_off: bool | None = None
    traces: tuple[dict[str, Any], ...] = ()
    loads: tuple[LoadRecord, ...] = ()

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of all arms, in order."""
        return tuple(dict.fromkeys(arm.name for load in self.loads for arm in load.arms))
