"""A simulated comparison in cells and sentences. Losses are worded exactly like gains."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvflow.report.amounts import NBSP, NOTHING
from kvflow.report.simulation_record import Interval, PolicyRecord, SetupRecord, Simulation
from kvflow.report.verdict import INDISTINCT, Verdict

MEASURES = (
    ("lost_s", "time lost", "s"),
    ("recomputed_s", "recomputed", "s"),
    ("reloaded_s", "loaded back", "s"),
    ("fetched_s", "fetched from storage", "s"),
    ("stalled_s", "stalled on loads", "s"),
    ("recomputed_tokens", "recomputed", "tokens"),
    ("reloaded_tokens", "loaded back", "tokens"),
    ("ttft_p50_s", "TTFT p50", "s"),
    ("ttft_p95_s", "TTFT p95", "s"),
    ("ttft_p99_s", "TTFT p99", "s"),
    ("queue_mean_s", "queueing mean", "s"),
    ("queue_p95_s", "queueing p95", "s"),
    ("completion_mean_s", "completion mean", "s"),
    ("completion_p95_s", "completion p95", "s"),
    ("span_s", "all done after", "s"),
)
GUARD = (
    ("guard_share", "guard share at end", ""),
    ("guard_mistakes", "guard mistakes", ""),
    ("guard_fallbacks", "guard fallbacks", ""),
    ("guard_recoveries", "guard recoveries", ""),
    ("guard_lost_s", "guard lost to LRU", "s"),
    ("guard_gained_s", "guard won from LRU", "s"),
)
COUNTS = (
    ("retractions", "retractions", ""),
    ("rejected", "calls rejected", ""),
    ("calls", "calls", ""),
    ("wall_s", "real time", "s"),
    ("calls_per_min", "calls simulated/min", ""),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A text, and how it compares with LRU's if it was compared."""

    text: str
    verdict: Verdict = Verdict.UNKNOWN


@dataclass(frozen=True, slots=True)
class Row:
    """One measure of all policies."""

    label: str
    unit: str
    cells: tuple[Cell, ...]


def full_rows(setup: SetupRecord) -> tuple[Row, ...]:
    """Return everything that was measured on one server, a column per policy; what nobody measured is left out."""
    found = [_row(setup, *measure) for measure in MEASURES]
    found[1:1] = [
        Row("relative to LRU", "", tuple(relative_cell(policy) for policy in setup.policies)),
        Row("gap closed", "", tuple(Cell(share(policy.gap_closed)) for policy in setup.policies)),
    ]
    places = sorted({place for policy in setup.policies for place in policy.evicted_tokens})
    found += [_evicted(setup, place) for place in places]
    found += [_row(setup, *measure) for measure in (*GUARD, *COUNTS)]
    return tuple(row for row in found if any(cell.text != NOTHING for cell in row.cells))


def brief_cells(setup: SetupRecord) -> tuple[tuple[Cell, ...], ...]:
    """Return a line per policy under ``BRIEF``."""
    measures = ("lost_s", "recomputed_s", "reloaded_s", "stalled_s", "ttft_p95_s", "completion_mean_s")
    columns = {measure: _row(setup, measure, "", "s").cells for measure in measures}
    return tuple(
        (
            columns["lost_s"][index],
            relative_cell(policy),
            Cell(share(policy.gap_closed)),
            *(columns[measure][index] for measure in measures[1:]),
        )
        for index, policy in enumerate(setup.policies)
    )


BRIEF = (
    "lost s",
    "of LRU's",
    "gap closed",
    "recomputed s",
    "loaded s",
    "stalled s",
    "TTFT p95 s",
    "completion s",
)


def relative_cell(policy: PolicyRecord, measure: str = "lost_s") -> Cell:
    """Write a measure as a multiple of LRU's: ``0.93 ±0.04``."""
    found = policy.relative.get(measure)
    return Cell(NOTHING) if found is None else Cell(interval(found, 2), policy.verdict(measure))


def share(value: float | None) -> str:
    """Write a share, whole percents."""
    return NOTHING if value is None else f"{100 * value:.0f}{NBSP}%"


def interval(found: Interval, decimals: int) -> str:
    """Write a mean with half the width of its interval, if it has one."""
    half = "" if not found.half else f"{NBSP}±{found.half:,.{decimals}f}"
    return f"{found.mean:,.{decimals}f}{half}"


def _row(setup: SetupRecord, measure: str, label: str, unit: str) -> Row:
    intervals = [policy.measures.get(measure) for policy in setup.policies]
    decimals = _decimals([abs(found.mean) for found in intervals if found is not None])
    judged = any(measure in policy.relative for policy in setup.policies)
    cells = (
        Cell(NOTHING)
        if found is None
        else Cell(interval(found, decimals) if judged else f"{found.mean:,.{decimals}f}", policy.verdict(measure))
        for found, policy in zip(intervals, setup.policies, strict=True)
    )
    return Row(label, unit, tuple(cells))


def _evicted(setup: SetupRecord, place: str) -> Row:
    tier, _, kind = place.partition("/")
    values = (policy.evicted_tokens.get(place) for policy in setup.policies)
    return Row(f"evicted {tier}/{kind}", "tokens", tuple(Cell(f"{value or 0:,.0f}") for value in values))


def _decimals(values: list[float]) -> int:
    """Return the decimals that show three digits of the largest value; none if all are whole."""
    if not values or all(value.is_integer() for value in values):
        return 0
    return min(max(2 - math.floor(math.log10(max(values))), 0), 4)


def headline(result: Simulation) -> str:
    """Say how the candidate did against LRU, over all servers."""
    name = result.candidate
    if name is None:
        return "No policy was compared with LRU"
    found = [(setup, record) for setup in result.setups if (record := setup.policy(name))]
    if len(found) == 1:
        return _one_server(name, found[0][1])
    count = {verdict: sum(record.verdict() is verdict for _, record in found) for verdict in Verdict}
    return (
        f"{name} lost less time than LRU on {count[Verdict.BETTER]} of {len(found)} simulated servers, "
        f"more on {count[Verdict.WORSE]}, with no clear difference on {count[Verdict.SAME] + count[Verdict.UNKNOWN]}"
    )


def _one_server(name: str, record: PolicyRecord) -> str:
    found = record.relative.get("lost_s")
    if found is None:
        return f"LRU lost no time, so there was nothing for {name} to gain"
    change = f"{name} lost {abs(1 - found.mean):.0%} {'less' if found.mean < 1 else 'more'} time than LRU"
    if record.verdict() is Verdict.SAME:
        if abs(1 - found.mean) <= INDISTINCT:
            return f"{name} lost as much time as LRU, within 1 %"
        seeds = f"over {found.n} seeds" if found.n > 1 else "of one seed"
        return f"{change}, but {seeds} that may be chance ({interval(found, 2)} of LRU's)"
    worse = ", which is worse" if found.mean > 1 else ""
    return f"{change}{worse}: {interval(found, 2)} of it"


def cautions(result: Simulation) -> tuple[str, ...]:
    """Return what must be known before any number is believed."""
    found = []
    rejected = [setup for setup in result.setups if setup.too_long]
    if rejected:
        where = f"On {len(rejected)} of {len(result.setups)} servers the" if len(result.setups) > 1 else "The"
        found.append(
            f"{where} device is smaller than the longest request "
            f"({result.longest_request_tokens:,} tokens): such calls are rejected, and cost nothing."
        )
    if result.seeds == 1:
        found.append("There is one seed only, so nothing is known of how much chance has to do with it.")
    if any(file.bad_rows for file in result.traces):
        found.append(f"{sum(file.bad_rows for file in result.traces)} rows of the traces could not be used.")
    return tuple(found)
