"""What simulations do not depend on."""

from __future__ import annotations

import pytest

from kvflow.sim import SimSettings, load_profile, simulate
from kvflow.trace import SynthOptions, programs, synthetic_trace


def recomputed_tokens(**settings: int | str) -> tuple[int, int]:
    work = list(programs(synthetic_trace("react", SynthOptions(workflows=12, turns=6, task_tokens=2048, seed=1))[1]))
    profile = load_profile("h200").model_copy(update={"chunk_tokens": 256})
    given = SimSettings(policy="cost", device_tokens=8192, host_tokens=8192, concurrency=8, **settings)  # type: ignore[arg-type]
    counters = simulate(work, profile, given).counters
    return counters.recomputed_tokens, sum(counters.evicted_tokens.values())


def test_the_servers_variables_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = recomputed_tokens()
    monkeypatch.setenv("KVFLOW_GRAPH__LEARN", "maybe")
    monkeypatch.setenv("KVFLOW_CONFIG", "/there/is/no.yaml")
    assert recomputed_tokens() == before


def test_with_a_storage_tier_the_host_keeps_its_copies_as_on_a_server() -> None:
    assert recomputed_tokens(storage_tokens=100_000) == recomputed_tokens(storage_tokens=100_000, exclusive="never")
    assert recomputed_tokens() != recomputed_tokens(exclusive="never"), "else this shows nothing"
