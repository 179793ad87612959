"""The public face: what it has, and what importing it costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvflow

SLOW = "networkx torch sglang openai httpx pydantic wrapt"


def run(program: str) -> str:
    return ended(program).stdout.strip()


def ended(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(kvflow.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True, timeout=30
    )


def test_names_are_reachable() -> None:
    for name in set(kvflow.__all__) - {"START", "END", "AgentStepGraph"}:
        assert getattr(kvflow, name) is getattr(kvflow, name)
    assert set(kvflow.__all__) <= set(dir(kvflow))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = kvflow.no_such_name  # type: ignore[attr-defined]


def test_graph_names_are_reachable() -> None:
    from kvflow import graph

    assert (kvflow.START, kvflow.END, kvflow.AgentStepGraph) == (graph.START, graph.END, graph.AgentStepGraph)


def test_importing_is_fast_and_imports_nothing_slow() -> None:
    program = f"""
import sys, time
began = time.process_time()
import kvflow
took = time.process_time() - began
assert not set({SLOW.split()!r}) & set(sys.modules), "kvflow imports something slow"
kvflow.agent
assert not set("networkx torch sglang openai httpx".split()) & set(sys.modules), "kvflow.agent imports something slow"
print(took)
"""
    assert float(run(program)) < 0.15


def test_the_version_is_that_of_the_package() -> None:
    assert kvflow.__version__ == run("import kvflow; print(kvflow.__version__)")


def test_without_logging_set_up_it_warns_once_of_each_thing_and_writes_no_output() -> None:
    program = """
import kvflow
kvflow.configure(url="http://127.0.0.1:9")
for _ in range(3):
    with kvflow.workflow(graph="no/such/file", id="\\ud800", tenant="x" * 1000), kvflow.step("a"):
        kvflow.extra_body()
kvflow.flush()
print("done")
"""
    done = ended(program)
    assert done.stdout.strip() == "done"
    for warning in ("is no Unicode text", "could not be read", "is longer than 128 characters"):
        assert done.stderr.count(warning) == 1
