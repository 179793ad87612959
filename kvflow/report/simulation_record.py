"""The result document of a simulation as records; what it did not measure has a neutral default here."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from kvflow.report.amounts import NOTHING
from kvflow.report.result import Document, Record, present
from kvflow.report.verdict import INDISTINCT, Verdict


class Interval(Record):
    """A mean over seeds with its 95 % interval; no interval for a single seed. A number alone is a mean."""

    mean: float = 0.0
    low: float | None = None
    high: float | None = None
    n: int = 1

    @model_validator(mode="before")
    @classmethod
    def _number_is_mean(cls, data: Any) -> Any:
        return {"mean": data} if isinstance(data, int | float) else data

    @property
    def half(self) -> float | None:
        """Half the width of the interval, which lies evenly around the mean."""
        return None if self.high is None else self.high - self.mean


class TraceFile(Record):
    """A file the programs came from."""

    name: str = "?"
    source: str = ""
    token_counts: str = ""
    programs: int = 0
    calls: int = 0
    bad_rows: int = 0


class PolicyRecord(Record):
    """One policy on one server.

    Attributes:
        asked: False for a reference that is there for the comparison only.
        oracle: it has read the trace.
        measures: by name, the name ending in the unit.
        relative: some of them as a share of LRU's.
        evicted_tokens: by ``tier/class``.
        gap_closed: share of the gap between LRU and Belady; None where there is none worth the name.
    """

    policy: str = "?"
    asked: bool = True
    oracle: bool = False
    measures: Annotated[dict[str, Interval], BeforeValidator(present)] = Field(default_factory=dict)
    relative: Annotated[dict[str, Interval], BeforeValidator(present)] = Field(default_factory=dict)
    evicted_tokens: Annotated[dict[str, float], BeforeValidator(present)] = Field(default_factory=dict)
    gap_closed: float | None = None

    def mean(self, measure: str) -> float | None:
        """Return the mean of a measure, None if there is none."""
        found = self.measures.get(measure)
        return None if found is None else found.mean

    def verdict(self, measure: str = "lost_s") -> Verdict:
        """Compare a measure with LRU's: different is what differs by more than 1 % and by more than its interval.

        Without an interval, that is of one seed, nothing is.
        """
        found = self.relative.get(measure)
        if found is None:
            return Verdict.UNKNOWN
        if found.mean < 1 - INDISTINCT and found.high is not None and found.high < 1:
            return Verdict.BETTER
        if found.mean > 1 + INDISTINCT and found.low is not None and found.low > 1:
            return Verdict.WORSE
        return Verdict.SAME


class SetupRecord(Record):
    """One server with the load on it.

    Attributes:
        device_size, host_size, storage_size: as asked for, e.g. ``50%``.
        too_long: requests of the programs that its device can never hold.
        gap_note: why there is no gap to close; empty if there is one.
    """

    device_tokens: int = 0
    host_tokens: int = 0
    storage_tokens: int = 0
    concurrency: int = 0
    device_size: str = ""
    host_size: str = ""
    storage_size: str = ""
    too_long: int = 0
    gap_note: str = ""
    policies: tuple[PolicyRecord, ...] = ()

    @property
    def load(self) -> str:
        """Everything but the device's size, in words."""
        tiers = [
            f"{name} tier {amount(tokens, size)}"
            for name, tokens, size in (
                ("host", self.host_tokens, self.host_size),
                ("storage", self.storage_tokens, self.storage_size),
            )
            if tokens
        ]
        return ", ".join([f"{self.concurrency} programs at a time", *(tiers or ["no host tier"])])

    @property
    def device(self) -> str:
        """The device's size in tokens, and as it was asked for."""
        return amount(self.device_tokens, self.device_size, unit="")

    def policy(self, name: str) -> PolicyRecord | None:
        """Return what a policy did here."""
        return next((record for record in self.policies if record.policy == name), None)


class Simulation(Document):
    """A comparison of policies in simulation."""

    kind: str = "simulation"
    profile: dict[str, Any] = Field(default_factory=dict)
    traces: tuple[TraceFile, ...] = ()
    context_tokens: float = 0.0
    longest_request_tokens: int = 0
    baseline: str = "lru"
    ideal: str = "belady"
    setups: tuple[SetupRecord, ...] = ()

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of all policies, in their order."""
        return tuple(dict.fromkeys(record.policy for setup in self.setups for record in setup.policies))

    @property
    def candidate(self) -> str | None:
        """The policy a headline is about: ``cost`` if it was asked for, else the last one that is no reference."""
        own = [
            record.policy
            for setup in self.setups
            for record in setup.policies
            if record.asked and not record.oracle and record.policy != self.baseline
        ]
        return "cost" if "cost" in own else own[-1] if own else None

    @property
    def seeds(self) -> int:
        """How many seeds were simulated."""
        return max((found.n for s in self.setups for p in s.policies for found in p.measures.values()), default=0)

    def by_load(self) -> dict[str, list[SetupRecord]]:
        """Group the servers that differ by the size of their device only, smallest first."""
        groups: dict[str, list[SetupRecord]] = {}
        for setup in self.setups:
            groups.setdefault(setup.load, []).append(setup)
        return {load: sorted(own, key=lambda setup: setup.device_tokens) for load, own in groups.items()}


def amount(tokens: int, size: str = "", unit: str = " tokens") -> str:
    """Write a size: ``400,000 tokens``, ``399,384 tokens (50%)``, or a dash for none."""
    if not tokens:
        return NOTHING
    return f"{tokens:,}{unit}" + (f" ({size})" if size.endswith("%") else "")
