"""What a tool is told to do: a word, or read off a call's arguments."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

import kvflow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.client.conftest import Peer


def first_word(command: str, **options: Any) -> str:
    return command.split(maxsplit=1)[0]


class Shell:
    @kvflow.tool("shell", verb=first_word)
    def run(self, command: str, **options: Any) -> str:
        return command.upper()


def verbs(peer: Peer) -> list[tuple[str, str | None]]:
    """(event, verb) of every fact about a tool."""
    assert kvflow.flush()
    return [(fact["event"], fact.get("verb")) for fact in peer.facts if "tool" in fact]


def test_a_verb_is_read_off_the_arguments_of_each_call(peer: Peer) -> None:
    kvflow.configure(url=peer.url)
    with kvflow.workflow():
        assert Shell().run("pytest -q") == "PYTEST -Q"
        Shell().run(command="ls", timeout_s=3)
    assert verbs(peer) == [("start", "pytest"), ("end", None), ("start", "ls"), ("end", None)]


def test_a_verb_that_is_no_unicode_text_loses_no_fact(peer: Peer) -> None:
    kvflow.configure(url=peer.url)
    with kvflow.workflow(id=os.fsdecode(b"run \xff")) as run:
        Shell().run(os.fsdecode(b"\xff.sh -x"))
    assert verbs(peer) == [("start", "?.sh"), ("end", None)]
    assert {fact["workflow_id"] for fact in peer.facts} == {run.id}
    assert run.id.isascii()


def test_a_word_stands_for_every_call_and_without_one_nothing_is_sent(peer: Peer) -> None:
    kvflow.configure(url=peer.url)

    @kvflow.tool("files", verb="list")
    def listing(path: str) -> None: ...

    @kvflow.tool
    def plain(path: str) -> None: ...

    with kvflow.workflow():
        listing("/")
        plain("/")
    assert verbs(peer) == [("start", "list"), ("end", None), ("start", None), ("end", None)]


def test_coroutines_and_generators_tell_their_verb_too(peer: Peer) -> None:
    kvflow.configure(url=peer.url)

    @kvflow.tool("shell", verb=first_word)
    async def run(command: str) -> None: ...

    @kvflow.tool("shell", verb=first_word)
    def lines(command: str) -> Iterator[str]:
        yield command

    with kvflow.workflow():
        asyncio.run(run("make all"))
        assert list(lines("cat file")) == ["cat file"]
    assert [verb for event, verb in verbs(peer) if event == "start"] == ["make", "cat"]


@pytest.mark.parametrize("told", [None, "", "x" * 1000, 3])
def test_odd_verbs_are_left_out_or_cut_and_the_fact_is_told(peer: Peer, told: Any) -> None:
    kvflow.configure(url=peer.url)

    @kvflow.tool("odd", verb=lambda: told)
    def odd() -> None: ...

    with kvflow.workflow():
        odd()
    assert verbs(peer)[0] == ("start", str(told)[:128] if told else None)


def test_a_verb_that_cannot_be_told_costs_nothing_but_itself(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    kvflow.configure(url=peer.url)
    shell = Shell()
    with kvflow.workflow():
        assert shell.run("") == ""
    assert verbs(peer) == [("start", None), ("end", None)]
    assert "the verb of a tool call could not be told" in caplog.text


def test_outside_every_workflow_nobody_asks_for_the_verb() -> None:
    @kvflow.tool("never", verb=lambda: pytest.fail("asked"))
    def never() -> None: ...

    never()


def test_a_wrong_word_is_an_error_where_it_is_written() -> None:
    with pytest.raises(ValueError, match=r"^tool\(\): verb: String should have at most 128 characters$"):
        kvflow.tool("files", verb="x" * 200)(print)


def test_a_verb_that_had_to_be_awaited_is_an_error_where_it_is_written() -> None:
    async def verb(command: str) -> str:
        return command

    with pytest.raises(TypeError, match="verb must be a plain function"):
        kvflow.tool("shell", verb=verb)  # type: ignore[arg-type]
