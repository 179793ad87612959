"""Who is current in a generator, and in who consumes it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import types
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import kvflow


def agent_now() -> str | None:
    now = kvflow.current()
    return now.agent if now else None


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
