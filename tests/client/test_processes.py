"""Facts of processes that end, fork, or start others."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kvflow

if TYPE_CHECKING:
    from tests.client.conftest import Peer


def run(program: str | Path, **variables: str) -> None:
    """Run a program in a process of its own; its servers are trusted, for a busy machine may answer late."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(kvflow.__file__).parents[1]),
        "KVFLOW_HINTS": "always",
        **variables,
    }
    code = [str(program)] if isinstance(program, Path) else ["-c", program]
    subprocess.run([sys.executable, "-W", "ignore", *code], env=environment, check=True, timeout=60)


def test_the_last_facts_leave_with_the_process(peer: Peer) -> None:
    program = "import kvflow\nwith kvflow.workflow(id='last'): pass"
    run(program, KVFLOW_URL=peer.url, KVFLOW_API_KEY="sk-env")
    assert [fact["workflow_id"] for fact in peer.facts] == ["last"]
    assert {request.headers["authorization"] for request in peer.received} == {"Bearer sk-env"}


def test_a_process_ends_in_time_though_the_server_does_not_answer(peer: Peer) -> None:
    peer.delays_s["/kvflow/v1/events"] = 60
    program = "import kvflow\nwith kvflow.workflow(): pass\nkvflow.flush(0.3)"  # by now it is being posted
    began = time.monotonic()
    run(program, KVFLOW_URL=peer.url)
    assert time.monotonic() - began < 15
    assert peer.to("/events")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_tells_its_own_facts(peer: Peer) -> None:
    program = """
import os, kvflow
with kvflow.workflow(id="parent"):
    kvflow.flush()
    with kvflow.step("before"):
        pass
    child = os.fork()
    if child == 0:
        with kvflow.workflow(id="child"):
            pass
        os._exit(0 if kvflow.flush() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert kvflow.flush()
"""
    run(program, KVFLOW_URL=peer.url)
    ends = [(fact["workflow_id"], fact["agent"], fact.get("parent_workflow_id")) for fact in peer.facts]
    assert sorted(ends) == [("child", "END", None), ("parent", "END", None), ("parent", "before", None)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_that_leaves_its_parents_blocks_does_not_end_them(peer: Peer) -> None:
    program = """
import os, sys, kvflow

@kvflow.tool
def spawn():
    if (child := os.fork()) == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0

with kvflow.workflow(id="parent"), kvflow.step("a"):
    spawn()
"""
    run(program, KVFLOW_URL=peer.url)
    told = [(fact["agent"], fact.get("event")) for fact in peer.facts]
    assert told == [("a", "start"), ("a", "end"), ("a", "end"), ("END", None)]


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_the_last_facts_leave_with_a_child_of_multiprocessing(peer: Peer, tmp_path: Path, method: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
import multiprocessing, kvflow
kvflow.configure()  # a child that imports this does not know yet that it is one

def work():
    with kvflow.workflow(id="child"):
        pass

if __name__ == "__main__":
    with kvflow.workflow(id="parent"):
        kvflow.flush()
    child = multiprocessing.get_context({method!r}).Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0
""")
    run(program, KVFLOW_URL=peer.url)
    assert sorted((fact["workflow_id"], fact["agent"]) for fact in peer.facts) == [("child", "END"), ("parent", "END")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_declares_texts_whatever_its_parents_threads_were_at() -> None:
    program = """
import os, signal, threading, kvflow
from kvflow.client import scopes
held = threading.Event()

def hold():
    with scopes._declaring:
        held.set()
        threading.Event().wait()

with kvflow.workflow() as run:
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        run.declare("text", None)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    run(program)
