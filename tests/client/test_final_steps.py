"""A final step that raises is not the last one, whatever it returns: its program may try again."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import kvflow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator

    from tests.client.conftest import Peer


@pytest.fixture(params=[True, False], ids=["raises", "returns"])
def raises(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
def work(raises: bool) -> Callable[[], None]:
    def do() -> None:
        if raises:
            raise LookupError

    return do


@pytest.fixture(autouse=True)
def server(peer: Peer) -> None:
    kvflow.configure(url=peer.url)


def was_told(peer: Peer, *, raises: bool) -> bool:
    assert [event for _, event in peer.told()] == ["end", "start"]
    return [fact.get("final") for fact in peer.facts] == [not raises, True]


def test_a_generator(peer: Peer, work: Callable[[], None], raises: bool) -> None:
    @kvflow.agent(final=True)
    def write() -> Generator[str, None, None]:
        yield "a part"
        work()

    with kvflow.workflow("report"), suppress(LookupError):
        list(write())
    assert was_told(peer, raises=raises)


def test_a_generator_that_is_given_up_is_as_good_as_done(peer: Peer) -> None:
    @kvflow.agent(final=True)
    def write() -> Generator[str, None, None]:
        yield "all that is wanted"
        yield "more"

    with kvflow.workflow("report"):
        parts = write()
        next(parts)
        parts.close()
    assert was_told(peer, raises=False)


def test_an_async_generator(peer: Peer, work: Callable[[], None], raises: bool) -> None:
    @kvflow.agent(final=True)
    async def write() -> AsyncIterator[str]:
        yield "a part"
        work()

    async def run() -> None:
        with kvflow.workflow("report"), suppress(LookupError):
            [part async for part in write()]

    asyncio.run(run())
    assert was_told(peer, raises=raises)


@pytest.mark.parametrize("done", [True, False])
def test_a_future(peer: Peer, work: Callable[[], None], raises: bool, done: bool) -> None:
    async def settle(future: asyncio.Future[None]) -> None:
        try:
            future.set_result(work())
        except LookupError as error:
            future.set_exception(error)

    @kvflow.agent(final=True)
    def write(future: asyncio.Future[None]) -> asyncio.Future[None]:
        return future

    async def run() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with kvflow.workflow("report"), suppress(LookupError):
            if done:
                await settle(future)
                await write(future)
            else:
                await asyncio.gather(write(future), settle(future))

    asyncio.run(run())
    assert was_told(peer, raises=raises)


def test_a_task_that_is_cancelled(peer: Peer) -> None:
    @kvflow.agent(final=True)
    def write() -> asyncio.Task[None]:
        return asyncio.create_task(asyncio.sleep(60))

    async def run() -> None:
        with kvflow.workflow("report"):
            task = write()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert was_told(peer, raises=True)


def test_work_of_a_pool(peer: Peer, work: Callable[[], None], raises: bool) -> None:
    @kvflow.agent(final=True)
    def write() -> Future[None]:
        return pool.submit(work)

    with ThreadPoolExecutor() as pool, kvflow.workflow("report"), suppress(LookupError):
        write().result()
    assert was_told(peer, raises=raises)
