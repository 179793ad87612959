"""Context that is told to leave the device: what goes at once, what once it has been copied, and what stays."""

from __future__ import annotations

from typing import Any

import pytest

from kvflow.engine import Answer, KvCommand
from tests.unit.engine.load_table import Node
from tests.unit.engine.test_commands import Server, server

__all__ = ["server"]


def test_demotion_lets_go_of_what_nobody_else_uses(server: Server) -> None:
    answer = server("kv.demote")
    assert (answer.status, answer.tokens) == ("clipped", 60)
    assert server.own["a"].evicted
    assert not server.shared.evicted
    assert server("kv.demote", None) == Answer(status="accepted", tokens=160)


def test_what_is_in_use_stays(server: Server) -> None:
    server.locked = {id(server.own["a"])}
    assert server("kv.demote").status == "rejected"
    assert not server.own["a"].evicted


def test_what_is_being_copied_leaves_afterwards(server: Server) -> None:
    server.copying = {id(server.own["a"])}
    assert server("kv.demote", ttl_s=5.0).status == "deferred"
    assert server.commands.tick() == []
    server.copying.clear()
    ((command, answer),) = server.commands.tick()
    assert (command.verb, answer.status, answer.tokens) == ("kv.demote", "clipped", 60)
    assert server.commands.tick() == []
    server.copying = {id(server.own["b"])}
    server("kv.demote", "b", ttl_s=5.0)
    server.time(5.1)
    assert [answer.status for _, answer in server.commands.tick()] == ["rejected"]


def test_what_has_no_copy_is_copied_and_leaves_afterwards(server: Server) -> None:
    server.own["a"].backuped = server.shared.backuped = False
    assert server("kv.demote", ttl_s=5.0).status == "deferred"
    assert server.backups.next(lambda node: False) is server.own["a"]
    server.own["a"].backuped = True
    ((command, answer),) = server.commands.tick()
    assert (command.verb, answer.status, answer.tokens) == ("kv.demote", "clipped", 60)
    server.coordinator.claims.clock.version += 1
    assert server.backups.next(lambda node: False) is None, "what others use as well stays anyway"


def test_a_copy_that_cannot_be_made_is_not_waited_for_longer_than_was_said(server: Server) -> None:
    server.own["a"].backuped = False
    assert server("kv.demote", ttl_s=5.0).status == "deferred"
    server.time(5.1)
    assert [answer.status for _, answer in server.commands.tick()] == ["rejected"]
    assert server.backups.next(lambda node: False) is None


def test_not_everything_that_is_to_leave_is_waited_for(server: Server) -> None:
    server.copying = {id(server.own["a"])}
    answers = [server("kv.demote", ttl_s=5.0).status for _ in range(300)]
    assert answers == ["deferred"] * 256 + ["rejected"] * 44


def test_what_another_tenant_has_pinned_is_not_demoted(server: Server) -> None:
    server("kv.pin", tenant="one", ttl_s=5.0)
    assert server("kv.demote", tenant="two").status == "rejected"
    server.time(5.1)
    assert server("kv.demote", tenant="two").tokens == 60


def test_a_request_demotes_its_own_prompt_and_what_no_other_workflow_expects(server: Server) -> None:
    path: list[tuple[Node, int]] = [(server.own["a"], 160), (server.shared, 100)]
    demote = KvCommand(verb="kv.demote", workflow_id="w", agent="a")
    assert server.commands.on_prompt(demote, path).tokens == 60, "agent b expects to use what they share"
    assert server.commands.on_prompt(demote, []).status == "missing"


def test_one_that_fails_to_leave_takes_no_other_with_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.copying = {id(node) for node in server.own.values()}
    for agent in "ab":
        assert server("kv.demote", agent, ttl_s=5.0).status == "deferred"
    server.copying.clear()
    leave, failures = server.commands._leave, [ArithmeticError]

    def failing(leaving: Any) -> Answer:
        if failures:
            raise failures.pop()
        return leave(leaving)

    monkeypatch.setattr(server.commands, "_leave", failing)
    with pytest.raises(ArithmeticError):
        server.commands.tick()
    ((command, answer),) = server.commands.tick()
    assert (command.agent, answer.tokens) == ("b", 60)


def test_of_many_that_wait_some_are_looked_at_in_a_tick_and_all_have_their_turn(server: Server) -> None:
    nodes = [Node(1, server.root) for _ in range(100)]
    server.copying = {id(node) for node in nodes}
    demote = KvCommand(verb="kv.demote", ttl_s=5.0)
    assert {server.commands.on_prompt(demote, [(node, 1)]).status for node in nodes} == {"deferred"}
    server.copying = {id(node) for node in nodes[:20]}
    told = [len(server.commands.tick()) for _ in range(7)]
    assert max(told) <= 16
    assert sum(told) == 80
    assert [node.evicted for node in nodes] == [False] * 20 + [True] * 80
    server.time(5.1)
    assert [answer.status for _ in range(2) for _, answer in server.commands.tick()] == ["rejected"] * 20
