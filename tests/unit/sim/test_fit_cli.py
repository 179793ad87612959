"""``kvflow sim fit`` and ``costs``: from samples to a profile for ``kvflow simulate``, and a server's settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvflow import config
from kvflow.cli import app
from kvflow.sim import load_profile
from kvflow.sim.measure import step_s


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    prefill = [{"tokens": n, "seconds": 0.01 + n * 1e-4 + n * n / 2 * 1e-8} for n in (100, 1000, 4000)]
    decode = [
        {"sequences": k, "context_tokens": c, "seconds": 0.01 + 0.001 * k + 1e-6 * c}
        for k, c in ((1, 100), (4, 400), (4, 4000))
    ]
    data = {"name": "here", "prefill": prefill, "decode": decode, "load": [{"tokens": 1000, "seconds": 0.05}]}
    path = tmp_path / "samples.json"
    path.write_text(json.dumps(data))
    return path


def test_a_profile_is_written_and_what_it_is_worth_is_said(samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    result = CliRunner().invoke(app, ["sim", "fit", str(samples), "--out", str(out), "--notes", "a desk"])
    assert result.exit_code == 0, result.output
    profile = load_profile(str(out))
    assert (profile.name, profile.notes) == ("here", "a desk")
    assert profile.prefill_token_s == pytest.approx(1e-4)
    assert profile.decode_sequence_s == pytest.approx(1e-3)
    assert profile.load_token_s == pytest.approx(5e-5)
    assert "prefill    3 settings, median error" in result.stderr
    assert "not measured: backup_token_s: as fast as a load" in result.stderr


def test_a_profile_gives_the_settings_of_a_server(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, settings = tmp_path / "profile.json", tmp_path / "costs.yaml"
    assert CliRunner().invoke(app, ["sim", "fit", str(samples), "--out", str(profile)]).exit_code == 0
    result = CliRunner().invoke(app, ["sim", "costs", str(profile)])
    assert result.exit_code == 0, result.output
    settings.write_text(result.stdout)
    monkeypatch.setenv(config.CONFIG_VARIABLE, str(settings))
    costs = config.load().costs
    assert costs.prefill_token_s == pytest.approx(1e-4, rel=1e-3)
    assert costs.decode_sequence_s == pytest.approx(1e-3, rel=1e-3)
    assert costs.load_token_s == pytest.approx(5e-5, rel=1e-3)


def test_without_a_file_the_profile_is_printed_and_can_be_based_on_another(samples: Path) -> None:
    result = CliRunner().invoke(app, ["sim", "fit", str(samples), "--base", "h200"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["storage_token_s"] == load_profile("h200").storage_token_s
    assert "from profile" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["fit", "nothing.json"], ["fit", "{samples}", "--base", "nothing"], ["costs", "nothing"]]
)
def test_what_is_missing_is_an_error_in_words(samples: Path, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["sim", *(a.format(samples=samples) for a in arguments)])
    assert result.exit_code == 1
    assert "nothing" in result.stderr


def test_measuring_needs_a_server_that_answers() -> None:
    result = CliRunner().invoke(app, ["sim", "measure", "--url", "http://127.0.0.1:9"])
    assert result.exit_code == 1
    assert "no SGLang server answers at http://127.0.0.1:9" in result.stderr


def test_what_cannot_be_written_or_asked_is_told_before_anything_is_done(samples: Path, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere" / "out.json")
    for arguments, told in (
        (["fit", str(samples), "--out", nowhere], "there is no folder"),
        (["measure", "--url", "http://127.0.0.1:9", "--out", nowhere], "there is no folder"),
        (["measure", "--url", "http://host:port"], "'http://host:port' is no address of a server"),
    ):
        result = CliRunner().invoke(app, ["sim", *arguments], env={"COLUMNS": "300", "TERM": "dumb"})
        assert result.exit_code == 2, result.output
        assert told in " ".join(result.output.split())


def test_a_step_is_timed_while_all_requests_decode() -> None:
    early = [(0.0, 1), (1.0, 2), (2.0, 3), (3.0, 4), (3.5, 5)]
    late = [(1.0, 1), (2.0, 2), (3.0, 3), (9.0, 4)]
    assert step_s([early, late]) == pytest.approx((2.5 / 3 + 1.0) / 2)
    merged = [(1.0, 1), (3.0, 3)]
    assert step_s([merged]) == pytest.approx(1.0)
    assert step_s([[(0.0, 1), (1.0, 2)], [(5.0, 1), (6.0, 2)]]) is None
