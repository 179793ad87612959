"""``kvflow explain`` and ``kvflow top`` against the real server."""

from __future__ import annotations

import io
import json
import re

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from kvflow.cli import app
from kvflow.cli.top import looks
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


def test_looks_go_on_when_the_server_is_away_for_a_while_or_counts_anew(server: Server) -> None:
    server.step("mine", "worker", text("mine"), workflow_type="t")
    documents = {name: server.get(name) for name in ("status", "stats", "cache", "workflows")}
    away = False

    def answer(request: httpx.Request) -> httpx.Response:
        if away:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json=documents[request.url.path.rsplit("/", 1)[-1]])

    def told() -> str:
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(next(views))
        return console.export_text()

    with httpx.Client(base_url="http://server/kvflow/v1", transport=httpx.MockTransport(answer)) as client:
        views = looks(client)
        assert "since start" in told()
        assert "link: taken 0% of the time" in told()
        away = True
        seen = told()
        assert "no answer for" in seen
        assert "claims:" in seen, "what was seen last is still there"
        away = False
        assert "link: taken" not in told(), "it may be another server"
        assert "link: taken" in told()
        documents["stats"]["total"]["requests"] -= 1
        assert "link: taken" not in told(), "counters were set back"


def test_a_server_that_is_not_there_is_said_so() -> None:
    result = CliRunner().invoke(app, ["explain", "--url", "http://127.0.0.1:9"])
    assert result.exit_code == 2
    assert "does not answer" in " ".join(result.output.split())
