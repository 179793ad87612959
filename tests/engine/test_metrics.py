"""The series of ``/metrics``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import prometheus_client
import pytest

from kvflow.engine import Counters, Regret
from kvflow.patches import metrics

pytestmark = [pytest.mark.engine, pytest.mark.beside]

DOCS = Path(__file__).parents[2] / "docs"
RANK = {"model_name": "m", "tp_rank": "0"}
DECLARED = {f"kvflow_{name}_total" for name, _ in metrics.COUNTERS}
Series = dict[tuple[str, str, str], float]
"""Values by name, tier and order class."""


@pytest.fixture
def exporter() -> Iterator[metrics.Exporter]:
    registry = cast("Any", prometheus_client.REGISTRY)
    before = {*registry._collector_to_names}
    yield metrics.Exporter(RANK)
    for collector in {*registry._collector_to_names} - before:
        registry.unregister(collector)


def numbered(kind: type[Any], numbers: Iterator[int]) -> Any:
    """Counters of which no two have the same value."""
    made = kind()
    for field in fields(kind):
        value = getattr(made, field.name)
        new = dict(zip(value, numbers, strict=False)) if isinstance(value, dict) else type(value)(next(numbers))
        setattr(made, field.name, new)
    return made


def expected(counters: Counters, regret: Regret) -> Series:
    """The series that stand for them: seconds are spelled out, and what the guard did bears its name."""
    found: Series = {}
    values = {("", name): value for name, value in asdict(counters).items()}
    did = ("mistakes", "fallbacks", "recoveries")
    values |= {("guard_" if name in did else "regret_", name): value for name, value in asdict(regret).items()}
    for (part, name), value in values.items():
        series = f"kvflow_{part}{re.sub('_s$', '_seconds', name)}_total"
        for place, one in value.items() if isinstance(value, dict) else [("", value)]:
            tier, _, cls = place.partition("/")
            found[series, tier, cls] = one
    return found


def published() -> Series:
    samples = [sample for family in prometheus_client.REGISTRY.collect() for sample in family.samples]
    ours = [sample for sample in samples if sample.name.startswith("kvflow_") and sample.name.endswith("_total")]
    assert all(sample.labels.items() >= RANK.items() for sample in ours)
    return {(each.name, each.labels["tier"], each.labels["eviction_class"]): each.value for each in ours}


def publish(exporter: metrics.Exporter, counters: Counters, regret: Regret, **trust: Any) -> None:
    exporter.publish(counters, cast("Any", SimpleNamespace(regret=regret, **{"share": 1.0, **trust})), None)


def test_series_that_documents_name_exist() -> None:
    gauges = {f"kvflow_{name}" for name, _ in metrics.GAUGES}
    named = set(re.findall(r"kvflow_[a-z_]+", (DOCS / "operating.md").read_text()))
    assert named
    assert named <= DECLARED | gauges


def test_every_counter_is_the_series_of_its_name(exporter: metrics.Exporter) -> None:
    numbers = count(1)
    counters, regret = numbered(Counters, numbers), numbered(Regret, numbers)
    for _ in range(2):
        publish(exporter, counters, regret)
        assert published() == expected(counters, regret)
    assert {name for name, _, _ in published()} == DECLARED


def test_series_go_on_when_counters_are_set_to_zero(exporter: metrics.Exporter) -> None:
    publish(exporter, Counters(requests=7, load_back_s=0.5), Regret(lost_s=0.25))
    publish(exporter, Counters(requests=9, load_back_s=0.75), Regret(lost_s=0.25))
    exporter.restart()
    publish(exporter, Counters(requests=2), Regret(lost_s=1.0))
    found = {name: value for (name, _, _), value in published().items()}
    assert found == {
        "kvflow_requests_total": 11.0,
        "kvflow_load_back_seconds_total": 0.75,
        "kvflow_regret_lost_seconds_total": 1.25,
    }


def test_every_gauge_is_the_state_of_its_name(exporter: metrics.Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    def gauges() -> dict[str, float | None]:
        value = prometheus_client.REGISTRY.get_sample_value
        return {name: value(f"kvflow_{name}", RANK) for name, _ in metrics.GAUGES}

    monkeypatch.setattr(metrics, "degraded", Counter(claims=2, commands=5))
    trust = cast("Any", SimpleNamespace(share=0.25, regret=Regret()))
    for known, held in ((9, 3), (4, 0)):
        exporter.publish(Counters(), trust, cast("Any", SimpleNamespace(known=known, held=held)))
        assert gauges() == {"guard_share": 0.25, "degraded": 7.0, "programs": known, "held_requests": held}
    publish(exporter, Counters(), Regret(), share=0.5)
    assert gauges()["guard_share"] == 0.5
