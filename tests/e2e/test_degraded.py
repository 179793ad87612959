"""Parts of kvflow that fail on the real server: everything else goes on, and whoever looks is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Server
from tests.e2e.test_commands import with_prompt
from tests.e2e.test_eviction import text
from tests.e2e.test_hints import eventually
from tests.e2e.test_live_views import run
from tests.plugins import write_plugin

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.beside]

FAILING = """
def once(owner, name):
    whole = getattr(owner, name)

    def fails(*arguments):
        setattr(owner, name, whole)
        raise ArithmeticError("once")

    setattr(owner, name, fails)

def register():
    from kvflow.control import ControlPlane
    from kvflow.engine import Commands

    once(Commands, "on_prompt")
    once(ControlPlane, "finish")
"""


@pytest.fixture
def failing(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose scheduler fails at its first command, and whose HTTP process at the first final answer."""
    folder = tmp_path_factory.mktemp("failing")
    write_plugin(folder, "failing", FAILING)
    with start("--enable-kvflow", "--max-total-tokens", "2048", python_path=[folder]) as server:
        yield server


def told(server: Server) -> tuple[dict[str, int], list[dict[str, int]], list[float], bool]:
    """What has failed, as the status says of all and of each replica, as a series, and whether `kvflow top` warns."""
    status = server.get("status")
    lines = server.client.get("/metrics").text.splitlines()
    series = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("kvflow_degraded{")]
    warns = "something is degraded" in run(server, "top", "--once")
    return status["degraded"], [replica["degraded"] for replica in status["replicas"]], series, warns


def test_what_fails_is_told_wherever_one_looks_and_the_rest_goes_on(failing: Server) -> None:
    failing.step("w", "worker", text("before"))
    assert told(failing) == ({}, [{}], [0.0], False)
    outcome = with_prompt(failing, "w", text("first"), "kv.pin")
    assert outcome == ("rejected", "kvflow failed; see the server's log")
    assert told(failing) == ({"commands": 1}, [{"commands": 1}], [1.0], True)
    assert with_prompt(failing, "w", text("second"), "kv.pin") == ("accepted", "")
    failing.step("ends", "worker", text("last"), final=True)
    assert eventually(lambda: len(failing.get("status")["degraded"]) == 2)
    both = {"commands": 1, "taking answers": 1}
    assert told(failing) == (both, [{"commands": 1}], [1.0], True), "of the HTTP process no replica says anything"
    failing.step("ends too", "worker", text("last"), final=True)
    assert eventually(lambda: "ends too" not in failing.workflows())
    log = failing.log.read_text()
    for component in both:
        assert log.count(f"kvflow: {component} failed; SGLang goes on without it") == 1
