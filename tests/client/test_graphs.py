"""Declaring the agent step graph of a workflow."""

from __future__ import annotations

import json
import os
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvflow
from kvflow import graph as graphs
from kvflow.client.server import MAX_GRAPHS, MOST_DECLARING, REDECLARE_S, GraphDeclaration, Server

if TYPE_CHECKING:
    from tests.client.conftest import Peer

GRAPH = {"name": "review", "agents": {"a": {}}, "edges": [["START", "a"], ["a", "END"]]}


def test_a_graph_is_declared_once_before_the_first_hint(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    for _ in range(3):
        with kvflow.workflow("code review/x", graph=GRAPH):
            ask(client)
    (put,) = (request for request in peer.received if request.method == "PUT")
    assert put.path == "/kvflow/v1/graphs/code%20review%2Fx"
    assert put.body == GRAPH
    assert peer.received.index(put) < peer.received.index(peer.llm[0])
    assert all(request.actions for request in peer.llm)


def test_a_run_with_another_content_declares_its_own_again(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    for graph in (GRAPH, GRAPH | {"edges": [["START", "a"]]}, GRAPH):
        with kvflow.workflow("review", graph=graph):
            ask(client)
            await_puts()
    assert len(peer.to("/review")) == 3


def test_runs_of_one_type_at_once_whose_graphs_differ_wait_for_each_of_them_once(peer: Peer) -> None:
    server = Server(peer.url)
    graphs = [GraphDeclaration(workflow_type="review", body=body) for body in ("{}", '{"edges": []}')]
    for graph in graphs:
        assert server.declare(graph, begins=True).wait() is True
    peer.delays_s["/kvflow/v1/graphs/review"] = 60
    for graph in graphs * 20:
        assert server.declare(graph).known is True
    assert len(peer.to("/review")) == 2
    server.close()


def test_only_so_many_graphs_are_remembered(peer: Peer) -> None:
    peer.speaks = False
    server = Server(peer.url)
    assert server.speaks().wait() is False
    for number in range(MAX_GRAPHS + 10):
        server.declare(GraphDeclaration(workflow_type="plan", body=str(number))).wait()
    assert len(server._graphs) == MAX_GRAPHS
    server.close()


def test_every_server_gets_the_graph(peer: Peer, make_peer: Any, sdk: Any, ask: Any) -> None:
    other = make_peer()
    first, second = kvflow.instrument(sdk(peer)), kvflow.instrument(sdk(other))
    with kvflow.workflow("review", graph=GRAPH):
        ask(first)
        ask(second)
    for one in (peer, other):
        order = [request.method for request in one.received if request.method == "PUT" or request in one.llm]
        assert order == ["PUT", "POST"]


def test_the_first_request_waits_for_the_graph(peer: Peer, sdk: Any, ask: Any) -> None:
    peer.delays_s["/kvflow/v1/graphs/review"] = 0.1
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow("review", graph=GRAPH):
        ask(client)
    assert peer.llm[0].at_s - peer.to("/review")[0].at_s > 0.09


async def test_the_first_async_request_waits_for_the_graph(peer: Peer, async_sdk: Any) -> None:
    peer.delays_s["/kvflow/v1/graphs/review"] = 0.1
    client = kvflow.instrument(async_sdk(peer))
    async with kvflow.workflow("review", graph=GRAPH):
        await client.chat.completions.create(model="m", messages=[])
    assert peer.llm[0].at_s - peer.to("/review")[0].at_s > 0.09


async def test_async_and_as_a_decorator(peer: Peer, async_sdk: Any) -> None:
    client = kvflow.instrument(async_sdk(peer))

    @kvflow.workflow("review", graph=GRAPH)
    async def job() -> None:
        await client.chat.completions.create(model="m", messages=[])

    await job()
    await job()
    methods = [request.method for request in peer.received if request.method == "PUT" or request in peer.llm]
    assert methods == ["PUT", "POST", "POST"]


def test_a_server_without_kvflow_gets_no_graph(plain: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(plain))
    for _ in range(2):
        with kvflow.workflow("review", graph=GRAPH):
            ask(client)
    assert {request.method for request in plain.received} == {"GET", "POST"}
    assert len(plain.to("/graphs")) == 1


def test_a_graph_the_server_refuses_is_no_reason_not_to_hint(peer: Peer, sdk: Any, ask: Any, caplog: Any) -> None:
    peer.statuses["/kvflow/v1/graphs/review"] = 422
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow("review", graph=GRAPH):
        ask(client)
    assert peer.llm[0].actions
    assert "refuses" in caplog.text


def test_a_graph_whose_path_a_front_end_does_not_know_is_no_reason_either(
    peer: Peer, sdk: Any, ask: Any, caplog: Any
) -> None:
    peer.statuses["/kvflow/v1/graphs/code%2Freview"] = 404
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow("code/review", graph=GRAPH):
        ask(client)
        ask(client)
    assert [bool(request.actions) for request in peer.llm] == [True, True]
    assert peer.told()[-1] == ("END", "start")
    assert "refuses" in caplog.text


def test_a_graph_is_declared_again_after_a_while_and_nobody_waits(peer: Peer) -> None:
    now_s = 0.0
    server = Server(peer.url, clock=lambda: now_s)
    graph = GraphDeclaration(workflow_type="review", body="{}")
    first = server.declare(graph)
    assert first.wait() is True
    now_s = REDECLARE_S - 1
    assert server.declare(graph) is first
    assert len(peer.to("/review")) == 1
    now_s = REDECLARE_S
    peer.statuses["/kvflow/v1/graphs/review"] = 422
    for _ in range(3):
        assert server.declare(graph) is first, "the old answer stands"
    await_puts()
    assert len(peer.to("/review")) == 2
    now_s = 2 * REDECLARE_S
    server.declare(graph)
    await_puts()
    assert len(peer.to("/review")) == 3
    server.close()


def test_a_graph_that_could_not_be_declared_in_time_is_declared_next_time(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvflow.client.server.ASK_TIMEOUT_S", 0.05)
    server = Server(peer.url)

    def slowly() -> bool:
        time.sleep(0.2)
        server._settle(True)
        return True

    monkeypatch.setattr(server, "_probe", slowly)
    graph = GraphDeclaration(workflow_type="review", body="{}")
    assert server.declare(graph).wait() is False
    await_puts()
    monkeypatch.undo()
    assert server.declare(graph).known is False, "nobody waits for it twice"
    await_puts()
    assert server.declare(graph).known is True
    assert len(peer.to("/review")) == 1
    server.close()


def await_puts() -> None:
    """Wait until every graph that is on its way has arrived."""
    for thread in threading.enumerate():
        if thread.name == "kvflow-ask":
            thread.join(10)


def test_a_graph_that_cannot_be_read_is_logged(peer: Peer, sdk: Any, ask: Any, caplog: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow("review", graph="no/such/file.yaml"):
        ask(client)
    assert peer.llm[0].actions
    assert "'review' could not be read" in caplog.text


def test_graph_objects_and_files(peer: Peer, sdk: Any, ask: Any, tmp_path: Any) -> None:
    from kvflow import graph

    client = kvflow.instrument(sdk(peer))
    flow = kvflow.AgentStepGraph("review").edge(kvflow.START, "a").edge("a", kvflow.END)
    path = tmp_path / "review.json"
    path.write_text(graph.dumps_json(flow))
    with kvflow.workflow("one", graph=flow):
        ask(client)
    with kvflow.workflow("two", graph=path):
        ask(client)
    puts = [request.body for request in peer.received if request.method == "PUT"]
    assert puts == [graph.to_dict(flow)] * 2


def test_a_file_is_read_again_only_once_it_has_changed(
    peer: Peer, sdk: Any, ask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    load = graphs.load
    monkeypatch.setattr(graphs, "load", lambda path: reads.append(path) or load(path))
    path, client = tmp_path / "review.json", kvflow.instrument(sdk(peer))
    for nodes in (["a"], ["a"], ["a", "b"]):
        path.write_text(json.dumps(GRAPH | {"agents": {name: {} for name in nodes}, "edges": _chain(nodes)}))
        os.utime(path, ns=(0, len(nodes)))
        with kvflow.workflow(graph=path):
            ask(client)
        await_puts()
    assert len(reads) == 2
    assert [list(put.body["agents"]) for put in peer.to("/review")] == [["a"], ["a", "b"]]


def _chain(nodes: list[str]) -> list[list[str]]:
    return [list(edge) for edge in pairwise(["START", *nodes, "END"])]


def test_graphs_that_a_slow_server_takes_do_not_pile_up(peer: Peer) -> None:
    slow = Server(peer.url)
    assert slow.speaks().wait() is True
    peer.delays_s["/kvflow/v1/graphs/review"] = 60
    declared = [
        GraphDeclaration(workflow_type="review", body=f'{{"edges": [], "n": {number}}}') for number in range(50)
    ]
    answers = [slow.declare(graph, begins=True) for graph in declared]
    assert [answer.known for answer in answers] == [None] * MOST_DECLARING + [False] * (50 - MOST_DECLARING)
    peer.closing.set()
    assert [answer.wait() for answer in answers[:MOST_DECLARING]] == [True] * MOST_DECLARING
    assert slow.declare(declared[-1], begins=True).wait() is True, "there is room again"
    slow.close()
