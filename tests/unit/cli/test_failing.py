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
