"""Who is current where: nesting, tasks, threads."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import kvflow
from kvflow.client.scopes import Step


def agent_now() -> str | None:
    now = kvflow.current()
    return now.agent if now else None


def test_outside_a_workflow_nothing_is_current() -> None:
    assert kvflow.current() is None


def test_a_workflow_is_current_inside_and_gone_after() -> None:
    with kvflow.workflow("review", id="w1") as run:
        now = kvflow.current()
        assert now is not None
        assert (now.workflow_id, now.workflow_type, now.agent) == ("w1", "review", "main")
        assert (run.id, run.type, run.parent_id) == ("w1", "review", None)
    assert kvflow.current() is None


def test_ids_are_fresh() -> None:
    ids = set()
    for _ in range(3):
        with kvflow.workflow() as run, kvflow.step("a") as step:
            ids |= {run.id, step.step_id}
    assert len(ids) == 6


def test_the_view_is_read_only() -> None:
    with kvflow.step("a") as step, pytest.raises(AttributeError):
        step.agent = "b"  # type: ignore[misc]


async def test_workflow_and_step_as_async_context_managers() -> None:
    async with kvflow.workflow("review"):
        async with kvflow.step("a") as step:
            assert kvflow.current() == step
        assert agent_now() == "main"
    assert kvflow.current() is None


def test_nested_agents_restore_the_outer_one() -> None:
    seen: list[str | None] = []

    @kvflow.agent
    def inner() -> None:
        seen.append(agent_now())

    @kvflow.agent("boss")
    def outer() -> None:
        inner()
        seen.append(agent_now())

    with kvflow.workflow():
        outer()
        seen.append(agent_now())
    assert seen == ["inner", "boss", "main"]


def test_recursion_makes_a_step_per_call() -> None:
    steps: list[str] = []

    @kvflow.agent
    def down(n: int) -> int:
        mine = kvflow.current()
        assert mine
        steps.append(mine.step_id)
        result = n and 1 + down(n - 1)
        assert kvflow.current() == mine
        return result

    with kvflow.workflow():
        assert down(3) == 3
    assert len(set(steps)) == 4


def test_an_agent_outside_a_workflow_is_one() -> None:
    @kvflow.agent("solo")
    def solo() -> Any:
        return kvflow.current()

    now = solo()
    assert (now.workflow_type, now.agent) == ("solo", "solo")
    assert kvflow.current() is None


def test_an_exception_restores_and_passes_unchanged() -> None:
    error = ValueError("mine")

    @kvflow.agent
    def fails() -> None:
        raise error

    with pytest.raises(ValueError, match="mine") as caught, kvflow.workflow():
        fails()
    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert kvflow.current() is None


def test_a_scope_is_for_one_use() -> None:
    run = kvflow.workflow()
    with run:
        pass
    with pytest.raises(RuntimeError, match="only once"), run:
        pass


def test_a_decorated_workflow_is_a_new_run_per_call() -> None:
    @kvflow.workflow("daily")
    def job() -> Any:
        return kvflow.current()

    first, second = job(), job()
    assert first.workflow_type == "daily"
    assert first.workflow_id != second.workflow_id


async def test_gathered_agents_do_not_see_each_other() -> None:
    @kvflow.agent
    async def left() -> list[str | None]:
        return [agent_now() for _ in range(5) if await asyncio.sleep(0) is None]

    @kvflow.agent
    async def right() -> list[str | None]:
        return [agent_now() for _ in range(5) if await asyncio.sleep(0) is None]

    with kvflow.workflow() as run:
        lefts, rights = await asyncio.gather(left(), right())
        now = kvflow.current()
    assert (set(lefts), set(rights)) == ({"left"}, {"right"})
    assert now is not None
    assert now.workflow_id == run.id


async def test_a_task_that_outlives_its_agent_and_its_workflow() -> None:
    go = asyncio.Event()
    seen: list[str | None] = []

    async def straggler() -> None:
        for _ in range(3):
            seen.append(agent_now())
            await go.wait()
            go.clear()

    with kvflow.workflow():
        with kvflow.step("a"):
            task = asyncio.create_task(straggler())
            await asyncio.sleep(0)
        go.set()
        await asyncio.sleep(0.01)
    go.set()
    await asyncio.sleep(0.01)
    go.set()
    await task
    assert seen == ["a", "main", None]


async def test_tasks_that_start_each_other_do_not_keep_all_their_steps_in_memory() -> None:
    kept: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @kvflow.agent
    async def relay(left: int) -> None:
        if left:
            later.append(asyncio.create_task(relay(left - 1)))
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(0.01)
            kept.set_result(steps())

    def steps() -> int:
        return sum(type(each) is Step for each in gc.get_objects())

    before = steps()
    later: deque[asyncio.Task[None]] = deque(maxlen=1)
    with kvflow.workflow():
        await relay(100)
        assert await kept - before < 10


async def test_a_task_made_after_the_workflow_has_none() -> None:
    async def late() -> str | None:
        return agent_now()

    with kvflow.workflow():
        pass
    assert await asyncio.create_task(late()) is None


def test_threads_get_the_context_by_carry_only() -> None:
    with ThreadPoolExecutor(2) as pool, kvflow.workflow(), kvflow.step("a"):
        assert pool.submit(agent_now).result() is None
        assert pool.submit(kvflow.carry(agent_now)).result() == "a"


def test_a_carried_function_runs_many_times_at_once() -> None:
    barrier = threading.Barrier(4)

    @kvflow.agent
    def worker(i: int) -> tuple[int, str | None]:
        barrier.wait(5)
        return i, agent_now()

    with ThreadPoolExecutor(4) as pool, kvflow.workflow():
        carried = kvflow.carry(worker)
        assert list(pool.map(carried, range(4))) == [(i, "worker") for i in range(4)]
        assert agent_now() == "main"


def test_carry_keeps_the_name_and_refuses_coroutines() -> None:
    async def coroutine() -> None: ...

    assert kvflow.carry(agent_now).__name__ == "agent_now"
    with pytest.raises(TypeError, match="tasks inherit"):
        kvflow.carry(coroutine)


async def test_cancelling_an_agent_passes_through() -> None:
    @kvflow.agent
    async def sleeper() -> None:
        await asyncio.sleep(10)

    with kvflow.workflow():
        task = asyncio.create_task(sleeper())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert agent_now() == "main"


def test_an_id_is_of_one_run() -> None:
    with pytest.raises(TypeError, match="names one run"):
        kvflow.workflow("review", id="w")(agent_now)


def test_a_generator_cannot_be_carried() -> None:
    def generator() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="plain function"):
        kvflow.carry(generator)
