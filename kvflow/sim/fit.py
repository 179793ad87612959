"""Fitting a profile to what a server was seen to take, by least squares with non-negative coefficients.

Errors are relative: a sample counts by how many percent it is missed, not by how many seconds. Unknowns are few (three
at most), so every set of them that could be positive is solved for and the best one taken, which is exact (Lawson and
Hanson, *Solving Least Squares Problems*, 1974, chapter 23, find the set by search; with three there are eight).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import ceil, sqrt
from pathlib import Path
from statistics import median
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvflow.errors import ConfigError
from kvflow.sim.profile import Profile

Reduction = Literal["median", "minimum"]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
_LEAST_S = 1e-12
"""A fit may find that something takes no time at all; a profile must say that it takes some."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PrefillSample(_Record):
    """Time to first token of a prompt, alone on the server.

    Attributes:
        tokens: length of the prompt.
        cached_tokens: its beginning that was found on the device.
    """

    tokens: Annotated[int, Field(ge=1)]
    cached_tokens: Count = 0
    seconds: Positive


class DecodeSample(_Record):
    """Time of one decode step.

    Attributes:
        sequences: requests that ran.
        context_tokens: length of their contexts, summed.
    """

    sequences: Annotated[int, Field(ge=1)]
    context_tokens: Count
    seconds: Positive


class TransferSample(_Record):
    """Time to move the KV of some tokens."""

    tokens: Annotated[int, Field(ge=1)]
    seconds: Positive


class Measurements(_Record):
    """What was measured on one server, and what it says of itself; the JSON that ``kvflow sim fit`` reads.

    Attributes:
        load: host to device.
        backup: device to host.
        storage: storage to host.
    """

    name: str
    notes: str = ""
    chunk_tokens: Annotated[int, Field(ge=1)] = 8192
    max_running: Annotated[int, Field(ge=1)] = 256
    prefill: tuple[PrefillSample, ...] = ()
    decode: tuple[DecodeSample, ...] = ()
    load: tuple[TransferSample, ...] = ()
    backup: tuple[TransferSample, ...] = ()
    storage: tuple[TransferSample, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Measurements:
        """Read a file.

        Raises:
            ConfigError: it cannot be read, or is not one of measurements.
        """
        try:
            return cls.model_validate(json.loads(path.read_text()))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"{path}: {where}: {first['msg']}") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as JSON: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """How well a profile meets samples of one kind.

    Attributes:
        samples: how many settings were measured, repetitions apart.
        median_error: median of |predicted - measured| / measured.
        worst_error: the largest.
    """

    samples: int
    median_error: float
    worst_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A profile and how well it fits.

    Attributes:
        errors: by kind of sample.
        assumed: what there were no samples for, and where it comes from instead.
    """

    profile: Profile
    errors: dict[str, FitError] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()


def fit(measured: Measurements, *, base: Profile | None = None, reduction: Reduction = "median") -> Fit:
    """Fit a profile.

    Args:
        measured: samples; prefill and decode must be among them.
        base: where times come from that were not measured. Without one, backups take as long as loads, and storage too.
        reduction: what becomes of repetitions of one setting; ``minimum`` suits a machine that others use as well.
            Transfers are always taken by their median.

    Raises:
        ConfigError: there are too few samples, or none of a kind that nothing else can stand in for.
    """
    best = _Reduced(measured, reduction)
    step_s, token_s, attention_s = best.solve("prefill")
    decode_step_s, sequence_s, context_s = best.solve("decode")
    load_s, assumed = _transfers(best, base)
    profile = Profile(
        name=measured.name,
        notes=measured.notes,
        prefill_step_s=step_s,
        prefill_token_s=max(token_s, _LEAST_S),
        attention_token_s=attention_s,
        decode_step_s=decode_step_s,
        decode_sequence_s=sequence_s,
        decode_context_token_s=context_s,
        load_token_s=load_s["load"],
        backup_token_s=load_s["backup"],
        storage_token_s=load_s["storage"],
        chunk_tokens=measured.chunk_tokens,
        max_running=measured.max_running,
    )
    return Fit(profile=profile, errors=best.errors, assumed=assumed)


def _transfers(best: _Reduced, base: Profile | None) -> tuple[dict[str, float], tuple[str, ...]]:
    """Seconds per token of every kind of transfer, and what of that is assumed."""
    seconds: dict[str, float] = {}
    assumed = []
    for kind in ("load", "backup", "storage"):
        if best.samples[kind]:
            seconds[kind] = max(best.solve(kind)[0], _LEAST_S)
        elif base is not None:
            seconds[kind] = getattr(base, f"{kind}_token_s")
            assumed.append(f"{kind}_token_s: from profile {base.name}")
        elif kind == "load":
            raise ConfigError("there are no load samples; give a base profile that has load times (--base)")
        else:
            seconds[kind] = seconds["load"]
            assumed.append(f"{kind}_token_s: as fast as a load")
    return seconds, tuple(assumed)


Features = tuple[float, ...]
Sample = TypeVar("Sample", PrefillSample, DecodeSample, TransferSample)


class _Reduced:
    """Samples by kind, repetitions reduced to one, as rows of a linear system."""

    def __init__(self, measured: Measurements, reduction: Reduction) -> None:
        chunk = measured.chunk_tokens

        def prefill(sample: PrefillSample) -> Features:
            computed = sample.tokens - sample.cached_tokens
            attended = computed * (sample.cached_tokens + sample.tokens) / 2
            return (float(max(1, ceil(computed / chunk))), float(computed), attended)

        self.errors: dict[str, FitError] = {}
        self.samples: dict[str, dict[Features, float]] = {
            "prefill": _group(measured.prefill, prefill, reduction),
            "decode": _group(measured.decode, lambda s: (1.0, float(s.sequences), float(s.context_tokens)), reduction),
        }
        for kind in ("load", "backup", "storage"):
            # a busy machine can stamp either end of a transfer late, so the shortest is not the truest
            self.samples[kind] = _group(getattr(measured, kind), lambda s: (float(s.tokens),), "median")

    def solve(self, kind: str) -> list[float]:
        """Coefficients of a kind; notes how well they fit.

        Raises:
            ConfigError: there are fewer settings than coefficients.
        """
        rows = self.samples[kind]
        unknowns = len(next(iter(rows), (0.0, 0.0, 0.0)))
        if len(rows) < unknowns:
            raise ConfigError(f"{kind}: {len(rows)} different settings were measured, {unknowns} are needed at least")
        weighted = [tuple(value / seconds for value in features) for features, seconds in rows.items()]
        found = non_negative_least_squares(weighted, [1.0] * len(weighted))
        errors = [abs(sum(c * value for c, value in zip(found, row, strict=True)) - 1.0) for row in weighted]
        self.errors[kind] = FitError(samples=len(rows), median_error=median(errors), worst_error=max(errors))
        return found


def _group(samples: Sequence[Sample], features: Callable[[Sample], Features], how: Reduction) -> dict[Features, float]:
    groups: dict[Features, list[float]] = {}
    for sample in samples:
        groups.setdefault(features(sample), []).append(sample.seconds)
    reduce: Callable[[list[float]], float] = min if how == "minimum" else median
    return {setting: reduce(seconds) for setting, seconds in groups.items()}


def non_negative_least_squares(rows: Sequence[Features], goals: Sequence[float]) -> list[float]:
    """Minimize ``Σ (row · x - goal)²`` over ``x ≥ 0``.

    Cost: O(2ⁿ (n² rows + n³)) for n unknowns; meant for three.
    """
    unknowns = len(rows[0])
    scale = [sqrt(sum(row[index] ** 2 for row in rows)) or 1.0 for index in range(unknowns)]
    scaled = [[value / one for value, one in zip(row, scale, strict=True)] for row in rows]
    best, least = [0.0] * unknowns, sum(goal**2 for goal in goals)
    for size in range(1, unknowns + 1):
        for chosen in combinations(range(unknowns), size):
            solution = _solve([[row[index] for index in chosen] for row in scaled], goals)
            if solution is None or min(solution) < 0:
                continue
            candidate = [0.0] * unknowns
            for index, value in zip(chosen, solution, strict=True):
                candidate[index] = value
            missed = (sum(c * value for c, value in zip(candidate, row, strict=True)) for row in scaled)
            residual = sum((goal - got) ** 2 for goal, got in zip(goals, missed, strict=True))
            if residual < least:
                best, least = candidate, residual
    return [value / one for value, one in zip(best, scale, strict=True)]


def _solve(rows: Sequence[Sequence[float]], goals: Sequence[float]) -> list[float] | None:
    """Solve the normal equations by elimination with pivoting; None if they do not determine the unknowns."""
    size = len(rows[0])
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(size)]
        + [sum(row[i] * goal for row, goal in zip(rows, goals, strict=True))]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda index: abs(matrix[index][column]))
        if abs(matrix[pivot][column]) < 1e-12:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for index in range(size):
            if index != column:
                factor = matrix[index][column] / matrix[column][column]
                matrix[index] = [a - factor * b for a, b in zip(matrix[index], matrix[column], strict=True)]
    return [matrix[index][size] / matrix[index][index] for index in range(size)]
