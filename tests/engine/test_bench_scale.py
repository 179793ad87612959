"""The benchmark of large trees, in its smallest form."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from argparse import Namespace
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def test_every_workflow_a_line_names_lives_while_its_steps_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scale.json"
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    options = Namespace(nodes=[64], workflows=[1, 256], steps=4, json=out)
    try:
        importlib.import_module("bench_scale").run(options)
    finally:
        logging.disable(logging.NOTSET)
    points = json.loads(out.read_text())["points"]
    found = [(point["core"], point["workflows"], point["live"]) for point in points]
    assert found == [("rust", 1, 0), ("python", 1, 0), ("kvflow", 1, 1), ("kvflow", 256, 256)]
    assert min(point["median_us"] for point in points) > 0
    told = capsys.readouterr().out
    assert "256 workflows live" in told
    assert "1.0x the Rust core" in told
