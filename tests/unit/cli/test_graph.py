"""``kvflow graph``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvflow.cli import app


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "graph.yaml"
    path.write_text("name: review\nedges: [[START, writer], [writer, critic], [critic, END]]\n")
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["graph", *map(str, words)], env={"COLUMNS": "300", "TERM": "dumb"})


def test_a_graph_is_drawn(file: Path) -> None:
    assert run("draw", file).output.startswith("flowchart")
    dot = run("draw", file, "--dot").output
    assert dot.startswith("digraph")
    assert "critic" in dot


def test_steps_until_each_agent_are_told(file: Path) -> None:
    assert json.loads(run("steps", file, "--json").output)["critic"] == 2
    assert json.loads(run("steps", file, "--json", "--active", "writer").output) == {"writer": 0, "critic": 1, "END": 2}
    assert "   -  writer" in run("steps", file, "--active", "critic").output


@pytest.mark.parametrize(
    ("text", "told"),
    [("edges: [[START]]", "edges"), ("edges: [[START, a], [a, END]]", "nobody")],
    ids=["no graph", "no agent of it"],
)
def test_what_cannot_be_done_is_told(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(text)
    result = run("steps", path, "--active", "nobody")
    assert result.exit_code == 2
    assert told in result.output
