"""README and examples are executed against the real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.server, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
FRAMEWORKS = os.environ.get("KVFLOW_TEST_FRAMEWORKS")
"""Folder with what programs are written with, beside the environment."""


def run(code: list[str], server: Any, python_path: str = "") -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KVFLOW_")} | {"PYTHONPATH": python_path}
    done = subprocess.run(
        [sys.executable, *code, server.url], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def outcomes(server: Any) -> int:
    return sum(server.get("stats")["hints"]["outcomes"].get("kvflow.step", {}).values())


@pytest.mark.parametrize(
    ("example", "workflow_type", "agents"),
    [
        ("quickstart.py", "feature", {"planner", "coder"}),
        ("fan_out.py", "research", {"planner", "web", "papers", "writer"}),
        ("raw_http.py", "translate", {"translator", "proofreader"}),
        ("tool_ttls.py", "operations", {"operator"}),
    ],
)
def test_examples_run_and_their_hints_arrive(server: Any, example: str, workflow_type: str, agents: set[str]) -> None:
    before = outcomes(server)
    assert run([str(ROOT / "examples" / example)], server).strip()
    assert outcomes(server) - before >= len(agents)
    graph = server.get(f"graphs/{workflow_type}")["graph"]
    assert set(graph["agents"]) == agents
    assert server.workflows() == {}  # every workflow said when it ended


@pytest.mark.skipif(FRAMEWORKS is None, reason="KVFLOW_TEST_FRAMEWORKS names no folder with LangGraph and others")
@pytest.mark.parametrize(
    ("example", "workflow_type", "agents"),
    [
        ("langgraph_app.py", "answering", {"researcher", "writer", "critic"}),
        ("openai_agents_team.py", "support", {"triage", "clerk"}),
    ],
)
def test_frameworks_programs_run_and_their_hints_arrive(
    server: Any, example: str, workflow_type: str, agents: set[str]
) -> None:
    assert run([str(ROOT / "examples" / example)], server, str(FRAMEWORKS)).strip()
    assert set(server.get(f"graphs/{workflow_type}")["graph"]["agents"]) == agents
    assert server.workflows() == {}


def test_what_is_recorded_can_be_replayed(server: Any) -> None:
    told = run([str(ROOT / "examples" / "record_and_replay.py")], server)
    assert "workflow completion mean" in told
    assert "calls failed" not in told


def test_the_program_in_the_readme_runs(server: Any, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    program = tmp_path / "program.py"
    program.write_text(blocks[0].replace("http://localhost:30000", server.url))
    before = outcomes(server)
    assert run([str(program)], server).strip()
    assert outcomes(server) - before >= 2
    assert "planner" in server.get("graphs/feature")["graph"]["agents"]
