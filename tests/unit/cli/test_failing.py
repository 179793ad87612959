"""What goes wrong while a command runs is told in a line, and what it has done is not lost."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from kvflow.cli import app, doctor


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300", "TERM": "dumb"})


def test_a_server_that_dies_while_it_is_measured_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measure(*_: object) -> None:
        await asyncio.sleep(0)
        raise httpx.ReadError("gone")

    monkeypatch.setattr("kvflow.sim.measure.measure", measure)
    result = run("sim", "measure", "--url", "http://here:1", "--out", tmp_path / "samples.json")
    assert result.exit_code == 1
    assert "error: the server does not answer any more: ReadError('gone')" in result.output


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvflow.sim.measure.measure", pytest.fail)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    result = run("sim", "measure", "--url", "http://here:1", "--out", tmp_path / "samples.json")
    assert result.exit_code == 2
    assert f"{tmp_path} cannot be written to" in result.output


def test_a_file_of_settings_that_is_none_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kvflow.yaml"
    file.write_text("guard: [1, 2")
    monkeypatch.setenv("KVFLOW_CONFIG", str(file))
    monkeypatch.setattr(doctor, "check_seams", lambda: ([], ""))
    result = run("doctor", "--json")
    assert result.exit_code == 1
    problems = [finding["problem"] for finding in json.loads(result.output)["findings"]]
    assert any(f"KVFLOW_CONFIG names {file}, which cannot be read" in problem for problem in problems)
    assert "expected ',' or ']'" in run("doctor").output


def problems_found(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(doctor, "check_seams", lambda: ([], ""))
    result = run("doctor", "--json")
    assert result.exit_code == 1
    return [finding["problem"] for finding in json.loads(result.output)["findings"]]


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("KVFLOW_EVICTION__POLICY", "lruu", "'lruu' does not exist"),
        ("KVFLOW_GUARD", "off", "is a section"),
    ],
)
def test_settings_a_server_would_refuse_are_findings(
    variable: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert any(told in problem for problem in problems_found(monkeypatch))


def test_what_is_needed_and_not_installed_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("wrapt", "jinja2") else version(name))
    told = problems_found(monkeypatch)
    assert any(problem.startswith("wrapt is not installed") for problem in told)
    assert not any("jinja2" in problem for problem in told), "an extra is not needed"


def test_a_server_without_sglang_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvflow.errors.find_spec", lambda name: None)
    monkeypatch.setattr(os, "execve", pytest.fail)
    result = run("serve", "some/model")
    assert result.exit_code == 2
    assert '.[sglang]"' in result.output


@pytest.mark.parametrize("command", ["simulate", "replay"])
def test_a_report_that_could_not_be_made_is_refused_before_the_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvflow.errors.find_spec", lambda name: None)
    trace = tmp_path / "fan.jsonl"
    assert run("trace", "synth", "fan", trace).exit_code == 0
    result = run(command, trace, "--html", tmp_path / "report.html")
    assert result.exit_code == 2
    assert '.[report]"' in result.output
    assert "programs" not in result.output, "traces are not even read"
