"""Who is current in a generator, and in who consumes it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import subprocess
import sys
import threading
import types
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import kvflow


def agent_now() -> str | None:
    now = kvflow.current()
    return now.agent if now else None


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The agents whose steps have ended."""
    told: list[str] = []
    monkeypatch.setattr("kvflow.client.scopes.tell", lambda action, **fields: told.append(fields["agent"]))
    return told


def test_a_generator_does_not_leak_into_its_consumer() -> None:
    inside: list[str | None] = []

    @kvflow.agent
    def stream() -> Iterator[int]:
        inside.append(agent_now())
        yield 1
        with kvflow.step("deeper"):
            inside.append(agent_now())
            yield 2
            inside.append(agent_now())
        inside.append(agent_now())
        yield 3

    outside: list[str | None] = []
    with kvflow.workflow():
        for _ in stream():
            outside.append(agent_now())
    assert inside == ["stream", "deeper", "deeper", "stream"]
    assert outside == ["main"] * 3


def test_interleaved_generators_keep_their_own() -> None:
    @kvflow.agent
    def one() -> Iterator[str | None]:
        while True:
            yield agent_now()

    @kvflow.agent
    def two() -> Iterator[str | None]:
        while True:
            yield agent_now()

    with kvflow.workflow():
        seen = [pair for pair, _ in zip(zip(one(), two(), strict=False), range(3), strict=False)]
    assert seen == [("one", "two")] * 3


def test_a_generator_is_still_a_full_generator() -> None:
    log: list[Any] = []

    @kvflow.agent
    def talk() -> Generator[str, Any, str]:
        try:
            got = yield "first"
            log.append(got)
            try:
                yield "second"
            except KeyError as error:
                log.append((error, agent_now()))
            yield "third"
        finally:
            log.append(("closed", agent_now()))
        return "result"

    generator = talk()
    assert inspect.isgenerator(generator)
    assert next(generator) == "first"
    assert generator.send("sent") == "second"
    error = KeyError("thrown")
    assert generator.throw(error) == "third"
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == "result"
    assert log == ["sent", (error, "talk"), ("closed", "talk")]

    log.clear()
    generator = talk()
    next(generator)
    generator.close()
    assert log == [("closed", "talk")]

    def delegating() -> Any:
        return (yield from talk())

    assert list(delegating()) == ["first", "second", "third"]


def test_a_generator_that_raises_passes_it_on() -> None:
    @kvflow.agent
    def stream() -> Iterator[int]:
        yield 1
        raise LookupError("mine")

    generator = stream()
    next(generator)
    with pytest.raises(LookupError, match="mine"):
        next(generator)
    assert kvflow.current() is None


def test_an_abandoned_generator_disturbs_nobody() -> None:
    @kvflow.agent
    def stream() -> Iterator[int]:
        yield from range(10)

    with kvflow.workflow("first"):
        generator = stream()
        next(generator)
    with kvflow.workflow("second") as run:
        del generator
        gc.collect()
        now = kvflow.current()
        assert now is not None
        assert now.workflow_id == run.id


def test_a_plain_generator_with_a_workflow_inside_closed_elsewhere() -> None:
    def undecorated() -> Generator[int, None, None]:
        with kvflow.workflow("inner"):
            yield 1

    generator = undecorated()
    next(generator)
    with kvflow.workflow("second") as run:
        generator.close()
        now = kvflow.current()
        assert now is not None
        assert now.workflow_id == run.id
    assert kvflow.current() is None


def test_a_generator_consumed_by_several_threads() -> None:
    @kvflow.agent
    def stream() -> Iterator[str | None]:
        with kvflow.step("deeper"):
            yield agent_now()
            yield agent_now()
        yield agent_now()

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        generator = stream()
        seen = [pool.submit(next, generator).result() for pool in (one, two, one)]
        assert seen == ["deeper", "deeper", "stream"]
        assert [pool.submit(agent_now).result() for pool in (one, two)] == [None, None]


async def test_an_async_generator_does_not_leak_into_its_consumer() -> None:
    @kvflow.agent
    async def stream() -> AsyncIterator[str | None]:
        for _ in range(2):
            await asyncio.sleep(0)
            yield agent_now()

    outside: list[str | None] = []
    with kvflow.workflow():
        generator = stream()
        assert isinstance(generator, types.AsyncGeneratorType)
        inside = []
        async for item in generator:
            inside.append(item)
            outside.append(agent_now())
    assert (inside, outside) == (["stream"] * 2, ["main"] * 2)


async def test_an_async_generator_is_still_a_full_one() -> None:
    log: list[Any] = []

    @kvflow.agent
    async def talk() -> AsyncGenerator[str, Any]:
        try:
            log.append((yield "first"))
            try:
                yield "second"
            except KeyError:
                log.append(agent_now())
            yield "third"
        finally:
            await asyncio.sleep(0)
            log.append("closed")

    generator = talk()
    assert await anext(generator) == "first"
    assert await generator.asend("sent") == "second"
    assert await generator.athrow(KeyError("x")) == "third"
    await generator.aclose()
    assert log == ["sent", "talk", "closed"]
    assert agent_now() is None


def lazily(fn: Any) -> Any:
    """A plain function around another one, of whatever kind."""

    def call(*args: Any) -> Any:
        return fn(*args)

    return call


def test_a_plain_wrapper_around_a_generator_function_does_not_end_its_step_early() -> None:
    @kvflow.agent("writer")
    @lazily
    def stream() -> Generator[Any, Any, str]:
        got = yield kvflow.current()
        assert got == "sent"
        yield kvflow.current()
        return "result"

    with kvflow.workflow():
        generator = stream()
        steps = [next(generator)]
        assert agent_now() == "main"
        steps.append(generator.send("sent"))
        with pytest.raises(StopIteration, match="result"):
            next(generator)
        assert agent_now() == "main"
    assert [step.agent for step in steps] == ["writer"] * 2
    assert len({step.step_id for step in steps}) == 1


async def test_a_plain_wrapper_around_an_async_generator_function_does_not_either() -> None:
    @kvflow.agent("writer")
    @lazily
    async def stream() -> AsyncIterator[str | None]:
        for _ in range(2):
            await asyncio.sleep(0)
            yield agent_now()

    with kvflow.workflow():
        seen = [(item, agent_now()) async for item in stream()]
    assert seen == [("writer", "main")] * 2


@pytest.mark.parametrize("cancel", [False, True])
async def test_a_task_that_a_function_returns_is_part_of_its_step(told: list[str], cancel: bool) -> None:
    async def write() -> str | None:
        await asyncio.sleep(0.01)
        return agent_now()

    @kvflow.agent("writer")
    def start() -> asyncio.Task[str | None]:
        return asyncio.create_task(write())

    with kvflow.workflow():
        task = start()
        assert isinstance(task, asyncio.Task)
        assert (agent_now(), told) == ("main", [])
        if cancel:
            task.cancel()
        assert await asyncio.gather(task, return_exceptions=True) == ["writer"] or cancel
        assert told == ["writer"]


def test_a_future_that_a_function_returns_is_part_of_its_step(told: list[str]) -> None:
    ready = threading.Event()

    @kvflow.agent("writer")
    def start() -> Future[str | None]:
        return pool.submit(kvflow.carry(lambda: agent_now() if ready.wait() else None))

    with ThreadPoolExecutor(1) as pool, kvflow.workflow():
        future = start()
        assert (agent_now(), told) == ("main", [])
        ready.set()
        assert future.result() == "writer"
        pool.shutdown()
        assert told == ["writer"]


def test_a_task_of_an_event_loop_that_is_closed_is_no_error(told: list[str]) -> None:
    async def start() -> asyncio.Task[None]:
        task = asyncio.create_task(asyncio.sleep(0))
        await task
        return task

    done = asyncio.run(start())
    with kvflow.workflow():
        assert kvflow.agent("writer")(lambda: done)() is done
        assert (agent_now(), told) == ("main", ["writer"])


def test_a_wrapped_generator_that_is_never_started_leaves_no_step_open(told: list[str]) -> None:
    @kvflow.agent("writer")
    def stream() -> Iterator[int]:
        return (number for number in range(3))

    with kvflow.workflow():
        items = stream()
        assert (agent_now(), told) == ("main", [])
        del items
        gc.collect()
        assert (agent_now(), told) == ("main", ["writer"])


def test_a_wrapped_generator_function_that_raises_at_once_ends_its_step(told: list[str]) -> None:
    @kvflow.agent("writer")
    def stream() -> Iterator[int]:
        raise LookupError("mine")

    with kvflow.workflow():
        with pytest.raises(LookupError, match="mine"):
            stream()
        assert (agent_now(), told) == ("main", ["writer"])


GIVEN_UP = """
import kvflow

@kvflow.agent("reader")
def lines():
    yield 1
    yield 2

def use():
    given_up = lines()
    next(given_up)
    cycle = [given_up]
    cycle.append(cycle)  # as the traceback of an exception makes one

for _ in range(30_000):
    with kvflow.workflow("w"), kvflow.step("s"):
        use()
"""


def test_what_the_garbage_collector_closes_does_not_crash_the_program() -> None:
    """CPython 3.11 collects while it sets a context variable, and dies if the context is changed meanwhile."""
    done = subprocess.run([sys.executable, "-c", GIVEN_UP], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]


def test_a_generator_that_is_closed_ends_its_step_and_changes_nothing_outside(told: list[str]) -> None:
    inside: list[str | None] = []

    @kvflow.agent("stream")
    def stream() -> Iterator[int]:
        try:
            yield 1
        finally:
            inside.append(agent_now())

    with kvflow.workflow(), kvflow.step("reader"):
        items = stream()
        next(items)
        items.close()
        assert agent_now() == "reader"
    assert inside == ["stream"]
    assert told[:2] == ["stream", "reader"]
