"""Facts on their way: full queues, servers that fail or are slow."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import kvflow
from kvflow.client import outbox
from kvflow.client.server import SLOW_S, Server
from kvflow.client.settings import ClientSettings
from kvflow.hints.models import MAX_ACTIONS

if TYPE_CHECKING:
    from tests.client.conftest import Peer

PROBE = "/kvflow/v1/graphs"


def test_a_full_queue_drops_the_oldest_and_says_so_once(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox, "MAX_PENDING", 10)
    peer.delays_s["/kvflow/v1/graphs"] = 0.1
    kvflow.configure(url=peer.url)
    with kvflow.workflow():
        for i in range(20):
            with kvflow.step(str(i)):
                pass
    assert kvflow.flush()
    assert [fact["agent"] for fact in peer.facts] == [str(i) for i in range(11, 20)] + ["END"]
    assert outbox.outbox().dropped_facts == 11
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [f"facts are lost: {peer.url} takes them more slowly than they come"]


def test_a_server_that_swallows_facts_costs_nothing(peer: Peer) -> None:
    peer.delays_s["/kvflow/v1/events"] = 60
    kvflow.configure(url=peer.url)
    began = time.monotonic()
    with kvflow.workflow():
        for _ in range(200):
            with kvflow.step("a"):
                pass
    assert time.monotonic() - began < 4
    assert kvflow.flush(0.1) is False


def test_a_server_that_fails_is_left_alone_for_a_while(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    peer.statuses["/kvflow/v1/events"] = [404]
    with kvflow.workflow():
        ask(client)
    assert kvflow.flush()
    with kvflow.workflow():
        ask(client)
    assert kvflow.flush()
    assert "kv_hints" not in peer.llm[1].body
    assert len(peer.to("/events")) == 1
    server = outbox.outbox().server(peer.url)
    server._ask_at_s = 0  # half a minute later
    while server.speaks().known is False:
        time.sleep(0.005)
    with kvflow.workflow():
        ask(client)
    assert peer.told()[-1] == ("END", "start")
    assert peer.llm[2].actions


def test_what_comes_behind_facts_that_a_request_has_taken_along_is_posted_soon(peer: Peer) -> None:
    kvflow.configure(url=peer.url)
    for _ in range(3):
        with kvflow.workflow():
            with kvflow.step("one"):
                pass
            with kvflow.step("two"):
                kvflow.extra_body()
                time.sleep(2 * outbox.LINGER_S)  # the thread looks, and finds nothing
        began = time.monotonic()
        assert kvflow.flush(5)
        assert time.monotonic() - began < 0.5


@pytest.mark.usefixtures("lingering")
def test_as_many_facts_as_fill_a_batch_wait_for_no_request(peer: Peer) -> None:
    kvflow.configure(url=peer.url)
    with kvflow.workflow():
        for _ in range(MAX_ACTIONS + 10):
            with kvflow.step("one"):
                pass
        deadline_s = time.monotonic() + 20
        while not peer.facts:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        assert len(peer.facts) == MAX_ACTIONS, "the rest waits"


def test_a_server_that_takes_nothing_holds_up_no_other(peer: Peer, plain: Peer) -> None:
    kvflow.configure(url=peer.url)
    plain.speaks = True
    outbox.outbox().server(plain.url)
    peer.statuses["/kvflow/v1/events"] = 500
    with kvflow.workflow(id="first"):
        pass
    kvflow.flush()
    with kvflow.workflow(id="second"):
        pass
    kvflow.flush()
    assert [fact["workflow_id"] for fact in plain.facts] == ["first", "second"]


def test_facts_wait_for_a_server_that_says_late_that_it_speaks(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvflow.client.server.ASK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(outbox, "_POLL_S", 0.01)
    kvflow.configure(url=peer.url)
    server, late = outbox.outbox().server(peer.url), threading.Event()

    def slowly() -> bool:
        assert late.wait(20)
        server._settle(True)
        return True

    monkeypatch.setattr(server, "_probe", slowly)
    with kvflow.workflow(id="w"):
        pass
    assert not kvflow.flush(0.3)
    late.set()
    assert kvflow.flush(20)
    assert [fact["workflow_id"] for fact in peer.facts] == ["w"]


def test_a_server_that_is_slow_holds_up_no_other(peer: Peer, make_peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, going_on = make_peer(), threading.Event()
    respond = slow.respond

    def later(handler: Any, path: str, body: dict[str, Any]) -> None:
        if path.endswith("/events"):
            assert going_on.wait(20)
        respond(handler, path, body)

    monkeypatch.setattr(slow, "respond", later)
    try:
        for each in (slow, peer):
            kvflow.configure(url=each.url, hints="always")
        with kvflow.workflow(id="first"):
            pass
        deadline_s = time.monotonic() + 20
        while [fact["agent"] for fact in peer.facts] != ["END"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        assert not kvflow.flush(0.1), "the slow one has not been told"
    finally:
        going_on.set()
    assert kvflow.flush(10)
    assert [fact["agent"] for fact in slow.facts] == ["END"]


def test_nor_do_facts_for_another_wait_until_it_is_looked_at_again(
    peer: Peer, make_peer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_POLL_S", 60)
    other = make_peer()
    kvflow.configure(url=peer.url, hints="always")
    kvflow.configure(url=other.url)
    outbox.outbox().server(peer.url)._send_at_s = math.inf
    for told in (["first"], ["first", "second"]):
        with kvflow.workflow(id=told[-1]):
            pass
        deadline_s = time.monotonic() + 20
        while [fact["workflow_id"] for fact in other.facts] != told:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        time.sleep(2 * outbox.LINGER_S)  # the thread looks again, and finds nothing that it could post


@pytest.mark.parametrize(("error", "speaks"), [(httpx.ConnectError, False), (httpx.ReadTimeout, True)])
def test_a_server_that_has_gone_is_not_hinted_and_a_slow_one_is(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, error: type[Exception], speaks: bool
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error("as told")

    kvflow.configure(url=peer.url)
    server = outbox.outbox().server(peer.url)
    assert server.speaks().wait()
    monkeypatch.setattr(server._http, "request", fail)
    with kvflow.workflow():
        pass
    kvflow.flush()
    assert server.speaks().known is speaks
    assert server.takes_facts is not speaks


@pytest.mark.parametrize("status", [429, 500, 502])
def test_what_a_server_cannot_take_for_a_moment_it_is_told_later(peer: Peer, sdk: Any, ask: Any, status: int) -> None:
    client = kvflow.instrument(sdk(peer))
    peer.statuses["/kvflow/v1/events"] = [status]
    with kvflow.workflow(id="first"):
        ask(client)
    assert not kvflow.flush(0.3)
    with kvflow.workflow(id="second"):
        ask(client)
    assert peer.llm[1].actions, "requests are hinted all the same"
    server = outbox.outbox().server(peer.url)
    assert len(peer.to("/events")) == 1
    assert server._ask_at_s == server._send_at_s, "by then it may be another server"
    server._send_at_s = 0  # half a minute later
    assert kvflow.flush()
    ends = [fact["workflow_id"] for fact in peer.facts if fact["agent"] == "END"]
    assert ends == ["first", "first", "second"], "refused, told again, and told"
    assert outbox.outbox().dropped_facts == 0


def test_behind_a_gateway_that_knows_no_kvflow_facts_ride_on_requests(peer: Peer, sdk: Any, ask: Any) -> None:
    kvflow.configure(hints="always")
    client = kvflow.instrument(sdk(peer))
    peer.statuses["/kvflow/v1/events"] = 404
    with kvflow.workflow():
        with kvflow.step("one"):
            ask(client)
        assert not kvflow.flush(0.2)
        with kvflow.step("two"):
            ask(client)
    ends = [action["payload"] for action in peer.llm[1].actions]
    assert [(payload["agent"], payload.get("event")) for payload in ends] == [("one", "end"), ("two", None)]


def test_what_a_hand_made_request_is_told_along_comes_in_order(peer: Peer) -> None:
    kvflow.configure(url=peer.url)
    with kvflow.workflow():
        with kvflow.step("one"):
            kvflow.extra_body()
        with kvflow.step("two"):
            actions = kvflow.extra_body()["kv_hints"]["actions"]
    told = [(action["payload"]["agent"], action["payload"].get("event")) for action in actions]
    assert told == [("one", "end"), ("two", None)]


def test_hand_made_requests_without_a_server_to_tell_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with kvflow.workflow():
        assert kvflow.extra_body()
    assert "KVFLOW_URL" in caplog.text


def test_facts_put_back_do_not_outgrow_the_queue(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_PENDING", 4)
    box = outbox.Outbox(ClientSettings(url=peer.url))
    (server,) = box._servers.values()
    box._pending[server].extend([{"n": 3}, {"n": 4}])
    box._put_back(server, [{"n": 0}, {"n": 1}, {"n": 2}])
    assert [action["n"] for action in box._pending[server]] == [1, 2, 3, 4]
    assert box.dropped_facts == 1
    box.close()


def test_facts_the_server_refuses_do_not_silence_it(peer: Peer, sdk: Any, ask: Any, caplog: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    peer.statuses["/kvflow/v1/events"] = [400, 400]
    for _ in range(2):
        with kvflow.workflow():
            ask(client)
        assert kvflow.flush()
    with kvflow.workflow():
        ask(client)
    assert peer.llm[2].actions
    assert [record.levelname for record in caplog.records if "refuses" in record.message].count("WARNING") == 1


def test_no_server_no_thread() -> None:
    before = set(threading.enumerate())
    with kvflow.workflow(), kvflow.step("a"):
        pass
    assert kvflow.flush()
    assert set(threading.enumerate()) <= before


def test_a_fact_that_cannot_be_built_is_no_error(peer: Peer, caplog: Any) -> None:
    kvflow.configure(url=peer.url)
    for name in ("\ud800", "\ud800", "good"):
        with kvflow.workflow() as run:
            run.type = name
    assert peer.told() == [("END", "start")]
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 1


def test_a_finalizer_may_end_a_step_while_our_locks_are_held(peer: Peer) -> None:
    kvflow.configure(url=peer.url)

    def finalize() -> None:
        with box._changed, server._lock, kvflow.step("a"):
            pass

    box = outbox.outbox()
    server = box.server(peer.url)
    thread = threading.Thread(target=finalize, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_a_server_closes_its_connections(peer: Peer) -> None:
    server = Server(peer.url)
    assert server.speaks().wait()
    server.close()


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_server_that_is_busy_when_it_is_asked_is_asked_again_soon(peer: Peer, status: int) -> None:
    now_s = 0.0
    peer.statuses[PROBE] = [status]
    asked = Server(peer.url, clock=lambda: now_s)
    assert asked.speaks().wait() is False
    now_s = SLOW_S
    while asked.speaks().known is False:
        time.sleep(0.005)
    assert asked.speaks().known is True
    asked.close()


def test_facts_for_a_server_that_is_overloaded_for_long_are_kept(peer: Peer) -> None:
    box = outbox.outbox()
    kvflow.configure(url=peer.url)
    asked = box.server(peer.url)
    assert asked.speaks().wait() is True
    peer.statuses["/kvflow/v1/events"] = [503]
    peer.statuses[PROBE] = [503, 503]
    with kvflow.workflow(), kvflow.step("a"):
        pass
    while asked.takes_facts:
        time.sleep(0.005)
    asked._send_at_s = asked._ask_at_s = 0
    assert peer.told() == [("a", "end"), ("END", "start")] * 2, "refused once, and then taken"
    assert asked.speaks().known is True


def test_a_key_that_was_set_for_a_server_is_not_replaced_by_one_that_a_client_makes_up(
    peer: Peer, sdk: Any, ask: Any
) -> None:
    kvflow.configure(url=peer.url, api_key="real")
    with httpx.Client(headers={"Authorization": "Bearer none"}) as client, kvflow.workflow():
        kvflow.instrument(client).post(f"{peer.url}/v1/completions", json={"prompt": "hi"})
        ask(kvflow.instrument(sdk(peer, api_key="none")))
    assert kvflow.flush()
    assert [request.headers["authorization"] for request in peer.llm] == ["Bearer none"] * 2
    others = [request for request in peer.received if request not in peer.llm]
    assert {request.headers["authorization"] for request in others} == {"Bearer real"}
