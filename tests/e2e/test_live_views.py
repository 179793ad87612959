"""``kvflow explain`` and ``kvflow top`` against the real server."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from kvflow.cli import app
from tests.e2e.conftest import Server
from tests.e2e.test_eviction import FIXED_TOKENS, flood, settle, text

pytestmark = [pytest.mark.server, pytest.mark.slow]


def run(server: Server, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--url", server.url], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_an_eviction_is_explained_to_whose_it_was(server: Server) -> None:
    server.step("mine", "worker", text("mine"), workflow_type="explained")
    server.end("mine")
    settle(server)
    flood(server, 2400, "other")
    (replica,) = json.loads(run(server, "explain", "mine", "--json"))["replicas"]
    entry = replica["entries"][-1]
    assert (entry["event"], entry["owners"]) == ("evicted", [["mine", "worker"]])
    assert entry["tokens"] >= FIXED_TOKENS - 16
    assert entry["reason"].startswith("from the device, as retired")
    told = run(server, "explain", "mine")
    assert "mine / worker" in told
    assert "from the device, as retired; no further use is expected" in " ".join(told.split())
    assert "nothing was evicted" in run(server, "explain", "somebody else")


def test_a_look_at_the_server(server: Server) -> None:
    server.step("mine", "worker", text("mine"), workflow_type="t")
    settle(server)
    told = run(server, "top", "--once")
    assert "cost, trusts predictions for 100%" in told
    assert "mine" in told
    assert re.search(r"claims: \d+ contexts of 1 workflows", told)
    assert "link: 0 tokens in 0.00 s since start" in told
    row = next(line.split() for line in told.splitlines() if line.strip().startswith("device"))
    assert int(row[-1].replace(",", "")) >= FIXED_TOKENS - 16


def test_a_server_that_is_not_there_is_said_so() -> None:
    result = CliRunner().invoke(app, ["explain", "--url", "http://127.0.0.1:9"])
    assert result.exit_code == 2
    assert "does not answer" in " ".join(result.output.split())
