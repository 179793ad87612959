"""Fitting: what made the samples is found again, noise does little, and what cannot be known is said."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvflow.errors import ConfigError
from kvflow.sim import Profile
from kvflow.sim.fit import DecodeSample, Measurements, PrefillSample, TransferSample, fit, non_negative_least_squares

TRUE = Profile(
    name="true",
    prefill_step_s=0.004,
    prefill_token_s=1.1e-4,
    attention_token_s=3e-9,
    decode_step_s=0.005,
    decode_sequence_s=7e-4,
    decode_context_token_s=2e-7,
    load_token_s=4e-5,
    backup_token_s=6e-5,
    storage_token_s=2e-4,
    chunk_tokens=2048,
    max_running=8,
)


def samples(noise: float = 0.0, repeats: int = 1) -> Measurements:
    rng = random.Random(0)

    def noisy(seconds: float) -> float:
        return seconds * (1 + noise * rng.expovariate(1.0))

    prefill = [
        PrefillSample(
            tokens=tokens,
            cached_tokens=cached,
            seconds=noisy(-(-(tokens - cached) // 2048) * TRUE.prefill_step_s + TRUE.compute_s(cached, tokens)),
        )
        for tokens in (128, 512, 2048, 6000)
        for cached in (0, tokens // 32 * 16)
        for _ in range(repeats)
    ]
    decode = [
        DecodeSample(sequences=count, context_tokens=count * each, seconds=noisy(TRUE.decode_s(count, count * each)))
        for count in (1, 2, 8)
        for each in (128, 4096)
        for _ in range(repeats)
    ]
    load = [TransferSample(tokens=t, seconds=noisy(t * TRUE.load_token_s)) for t in (512, 4096)]
    backup = [TransferSample(tokens=t, seconds=noisy(t * TRUE.backup_token_s)) for t in (512, 4096)]
    storage = [TransferSample(tokens=t, seconds=noisy(t * TRUE.storage_token_s)) for t in (512, 4096)]
    return Measurements(
        name="true",
        chunk_tokens=2048,
        max_running=8,
        prefill=tuple(prefill),
        decode=tuple(decode),
        load=tuple(load),
        backup=tuple(backup),
        storage=tuple(storage),
    )


def test_exact_samples_give_the_profile_that_made_them() -> None:
    found = fit(samples())
    plain, true = found.profile.model_dump(exclude={"name", "notes"}), TRUE.model_dump(exclude={"name", "notes"})
    assert plain == pytest.approx(true, rel=1e-6)
    assert set(found.errors) == {"prefill", "decode", "load", "backup", "storage"}
    assert all(error.worst_error < 1e-6 for error in found.errors.values())
    assert found.assumed == ()


def test_the_minimum_of_repetitions_sees_through_what_others_do_on_the_machine() -> None:
    noisy = samples(noise=0.5, repeats=9)
    by_minimum, by_median = fit(noisy, reduction="minimum").profile, fit(noisy).profile
    assert by_minimum.prefill_token_s == pytest.approx(TRUE.prefill_token_s, rel=0.15)
    assert by_minimum.decode_s(4, 4000) == pytest.approx(TRUE.decode_s(4, 4000), rel=0.15)
    assert by_median.prefill_token_s > by_minimum.prefill_token_s


def test_errors_are_relative_and_count_settings_not_repetitions() -> None:
    found = fit(samples(noise=0.1, repeats=3))
    assert found.errors["prefill"].samples == 8
    assert found.errors["decode"].samples == 6
    assert 0 < found.errors["prefill"].median_error < found.errors["prefill"].worst_error < 0.3


def test_what_was_not_measured_comes_from_elsewhere_and_is_named() -> None:
    measured = samples().model_copy(update={"backup": (), "storage": ()})
    found = fit(measured)
    assert found.profile.backup_token_s == found.profile.storage_token_s == found.profile.load_token_s
    assert found.assumed == ("backup_token_s: as fast as a load", "storage_token_s: as fast as a load")
    none = measured.model_copy(update={"load": ()})
    based = fit(none, base=TRUE)
    assert (based.profile.load_token_s, based.profile.storage_token_s) == (TRUE.load_token_s, TRUE.storage_token_s)
    assert len(based.assumed) == 3
    with pytest.raises(ConfigError, match="no load samples"):
        fit(none)


def test_too_few_settings_are_refused() -> None:
    measured = samples()
    few = measured.model_copy(update={"decode": measured.decode[:2]})
    with pytest.raises(ConfigError, match="decode: 2 different settings were measured, 3 are needed"):
        fit(few)
    with pytest.raises(ConfigError, match="prefill: 0 different settings"):
        fit(measured.model_copy(update={"prefill": ()}))


def test_measurements_survive_a_file_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    path.write_text(samples().model_dump_json())
    assert Measurements.read(path) == samples()
    path.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        Measurements.read(path)
    path.write_bytes(gzip.compress(samples().model_dump_json().encode()))
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        Measurements.read(path)
    path.write_text(json.dumps({"name": "x", "load": [{"tokens": 0, "seconds": 1}]}))
    with pytest.raises(ConfigError, match=r"load\.0\.tokens"):
        Measurements.read(path)


numbers = st.integers(0, 20).map(float)


@given(st.integers(1, 3), st.data())
def test_no_other_coefficients_fit_better(unknowns: int, data: st.DataObject) -> None:
    """Karush, Kuhn, Tucker: the gradient is zero where a coefficient is positive, not negative where it is zero."""
    rows = data.draw(st.lists(st.tuples(*[numbers] * unknowns), min_size=unknowns, max_size=8))
    goals = data.draw(st.lists(st.integers(-20, 20).map(float), min_size=len(rows), max_size=len(rows)))
    found = non_negative_least_squares(rows, goals)
    missed = [sum(c * v for c, v in zip(found, row, strict=True)) - goal for row, goal in zip(rows, goals, strict=True)]
    for index, value in enumerate(found):
        gradient = sum(row[index] * miss for row, miss in zip(rows, missed, strict=True))
        assert value >= 0
        assert gradient >= -1e-6
        assert gradient <= 1e-6 or value == 0
