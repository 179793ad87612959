"""A scheduler of the CPU engine that has nothing but copies to wait for, with SGLang's own way to sleep."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from sglang.srt.managers.scheduler_components.idle_sleeper import IdleSleeper

from kvflow.patches.cpu.idle import let_copies_run

pytestmark = [pytest.mark.engine]


@pytest.fixture
def sockets() -> Iterator[tuple[Any, Any]]:
    with zmq.Context() as context, context.socket(zmq.PULL) as incoming, context.socket(zmq.PUSH) as outgoing:
        incoming.bind("inproc://requests")
        outgoing.connect("inproc://requests")
        yield incoming, outgoing


def pause_s(sleeper: Any, *, copies: int = 0, loads: int = 0, waiting: int = 0) -> float:
    """Seconds that fifty passes pause, with so many copies and loads under way and requests in the queue."""
    tree_cache = SimpleNamespace(ongoing_write_through=[None] * copies, ongoing_load_back=[None] * loads)
    scheduler = SimpleNamespace(waiting_queue=[None] * waiting, tree_cache=tree_cache, idle_sleeper=sleeper)
    began_s = time.perf_counter()
    for _ in range(50):
        let_copies_run(None, scheduler)
    return time.perf_counter() - began_s


def least_pause_s(sleeper: Any, **scheduler: int) -> float:
    """The least of several: the machine may have other things to do."""
    return min(pause_s(sleeper, **scheduler) for _ in range(5))


def test_it_pauses_while_copies_are_all_there_is(sockets: tuple[Any, Any]) -> None:
    sleeper = IdleSleeper([sockets[0]])
    assert pause_s(sleeper, copies=1) > 0.04
    assert pause_s(sleeper, loads=1) > 0.04
    assert least_pause_s(sleeper) < 0.02
    assert least_pause_s(sleeper, loads=1, waiting=1) < 0.02, "a load that a request waits for may arrive"
    assert least_pause_s(None, copies=1) < 0.02, "nothing tells it of new requests"


def test_what_comes_in_ends_the_pause(sockets: tuple[Any, Any]) -> None:
    incoming, outgoing = sockets
    outgoing.send(b"a request")
    assert least_pause_s(IdleSleeper([incoming]), copies=1) < 0.02
