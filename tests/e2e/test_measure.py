"""Measuring the real server, as ``kvflow sim measure`` does, and fitting a profile to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kvflow.sim.fit import fit
from kvflow.sim.measure import MeasureSettings, measure

pytestmark = [pytest.mark.server, pytest.mark.slow]

SETTINGS = MeasureSettings(
    lengths=(64, 256, 1000, 100_000),
    shares=(0.0, 0.5),
    concurrencies=(1, 3, 500),
    contexts=(64, 400, 100_000),
    decode_tokens=24,
    load_lengths=(256,),
    repeats=1,
)


def test_a_profile_is_fitted_to_what_the_server_does(server: Any) -> None:
    told: list[str] = []
    measured = asyncio.run(measure(server.url, "here", SETTINGS, told.append))
    cached = {(sample.tokens, sample.cached_tokens) for sample in measured.prefill}
    assert cached == {(64, 0), (64, 32), (256, 0), (256, 128), (1000, 0), (1000, 496)}
    assert [(sample.sequences, sample.context_tokens) for sample in measured.decode] == [
        (count, count * (context + 12)) for count in (1, 3) for context in (64, 400)
    ]
    assert [sample.tokens for sample in measured.load] == [240]  # the last page is computed
    assert measured.max_running == 8
    assert told == ["prefill, 1 of 1", "decode, 1 of 1", "loads, 1 of 1"]
    found = fit(measured)
    assert found.profile.compute_s(0, 1000) > found.profile.compute_s(500, 1000) > 0
    assert found.profile.decode_s(3, 1000) > 0
    assert found.errors["prefill"].median_error < 1


def test_loads_are_left_out_where_the_device_is_too_large_to_fill(server: Any) -> None:
    settings = replace(SETTINGS, lengths=(64,), concurrencies=(1,), contexts=(64,), max_fill_tokens=1000)
    told: list[str] = []
    measured = asyncio.run(measure(server.url, "here", settings, told.append))
    assert measured.load == ()
    assert told[-1] == "loads: not measured"
