"""``kvflow compare`` says what it can tell, and that it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvflow.cli import app
from tests.unit.replay.test_compare import result


def fewer(document: dict[str, Any], workflows: int) -> dict[str, Any]:
    """Leave so many workflows to each of the three rounds of a result's last arm."""
    for each in document["loads"][0]["arms"][-1]["workflows"]:
        for name, of in each.items():
            if isinstance(of, dict):
                each[name] = dict(list(of.items())[:workflows])
    return document


def compared(folder: Path, before: dict[str, Any], after: dict[str, Any]) -> Result:
    paths = [folder / "before.json", folder / "after.json"]
    for path, document in zip(paths, (before, after), strict=True):
        path.write_text(json.dumps(document))
    return CliRunner().invoke(app, ["compare", *map(str, paths)], env={"COLUMNS": "300", "TERM": "dumb"})


@pytest.mark.parametrize(("workflows", "status"), [(1, 4), (2, 0)])
def test_too_few_pairs_are_not_passed_off_as_no_change(tmp_path: Path, workflows: int, status: int) -> None:
    told = compared(tmp_path, fewer(result(1.0), workflows), fewer(result(1.0), workflows))
    assert told.exit_code == status, told.output
    assert ("too few pairs or rounds to tell" in told.output) == (status == 4)
    assert ("Nothing can be told: it takes 6 workflows in 3 rounds" in told.output) == (status == 4)


def test_one_arm_that_tells_is_enough(tmp_path: Path) -> None:
    arms = ("lru", "kvflow")
    told = compared(tmp_path, fewer(result(1.0, arms=arms), 1), fewer(result(1.0, arms=arms), 1))
    assert told.exit_code == 0, told.output
    assert told.output.count("too few pairs or rounds to tell") == 1


def test_an_arm_that_is_worse_is_worse_however_few_pairs_there_are(tmp_path: Path) -> None:
    told = compared(tmp_path, fewer(result(1.0), 1), fewer(result(1.0, failed=3), 1))
    assert told.exit_code == 3, told.output
    assert "too few pairs" not in told.output


def test_a_replay_that_was_broken_off_is_told_of(tmp_path: Path) -> None:
    told = compared(tmp_path, result(1.0), result(1.0) | {"broken_off": True})
    assert told.exit_code == 0, told.output
    assert f"{tmp_path / 'after.json'} is of a replay that was broken off." in told.output
    assert "before.json" not in told.output


def test_what_cannot_be_excluded_is_said(tmp_path: Path) -> None:
    told = compared(tmp_path, result(1.0), result(1.018))
    assert told.exit_code == 0, told.output
    assert "may take 1.0" in told.output
