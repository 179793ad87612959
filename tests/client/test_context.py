"""Who is current where: nesting, tasks, threads, methods."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import re
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import kvflow
from kvflow.hints import decode_envelope


def agent_now() -> str | None:
    now = kvflow.current()
    return now.agent if now else None


@kvflow.agent
def module_level(x: int) -> int:
    return x + 1


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


class Crew:
    """Methods of every kind, decorated in both orders where there are two."""

    tag = "crew"

    @kvflow.agent("method")
    def method(self) -> tuple[Any, str | None]:
        return self.tag, agent_now()

    @kvflow.agent("a_method")
    async def a_method(self) -> tuple[Any, str | None]:
        return self.tag, agent_now()

    @kvflow.agent("static")
    @staticmethod
    def static(x: int) -> tuple[Any, str | None]:
        return x, agent_now()

    @staticmethod
    @kvflow.agent("static2")
    def static2(x: int) -> tuple[Any, str | None]:
        return x, agent_now()

    @kvflow.agent("klass")
    @classmethod
    def klass(cls) -> tuple[Any, str | None]:
        return cls.tag, agent_now()

    @classmethod
    @kvflow.agent("klass2")
    async def klass2(cls) -> tuple[Any, str | None]:
        return cls.tag, agent_now()

    @kvflow.agent("called")
    def __call__(self) -> str | None:
        return agent_now()


async def test_methods_of_every_kind() -> None:
    crew = Crew()
    assert inspect.iscoroutinefunction(crew.a_method)
    assert inspect.iscoroutinefunction(Crew.klass2)
    assert inspect.ismethod(crew.method)
    assert crew.method() == ("crew", "method")
    assert Crew.method(crew) == ("crew", "method")
    assert await crew.a_method() == ("crew", "a_method")
    assert Crew.static(1) == crew.static(1) == (1, "static")
    assert Crew.static2(2) == crew.static2(2) == (2, "static2")
    assert Crew.klass() == crew.klass() == ("crew", "klass")
    assert await Crew.klass2() == await crew.klass2() == ("crew", "klass2")
    assert crew() == "called"


async def test_callable_objects_and_partials() -> None:
    class Runner:
        async def __call__(self, x: int) -> tuple[int, str | None]:
            await asyncio.sleep(0)
            return x, agent_now()

    assert await kvflow.agent(Runner())(1) == (1, "Runner")
    assert kvflow.agent("p")(functools.partial(lambda x: (x, agent_now()), 2))() == (2, "p")


@pytest.mark.parametrize(
    "decorate", [kvflow.agent, kvflow.agent("x"), kvflow.tool, kvflow.tool("x"), kvflow.workflow()]
)
def test_decorators_change_nothing_but_the_context(decorate: Any) -> None:
    def plain(a: int, *, b: str = "b") -> str:
        """Doc."""
        return f"{a}{b}"

    async def coroutine() -> None: ...
    def generator() -> Iterator[int]:
        yield 1

    async def agenerator() -> AsyncIterator[int]:
        yield 1

    wrapped = decorate(plain)
    assert wrapped(1, b="c") == "1c"
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__wrapped__) == ("plain", "Doc.", plain)
    assert inspect.signature(wrapped) == inspect.signature(plain)
    assert inspect.getfullargspec(wrapped).kwonlyargs == ["b"]
    assert inspect.isfunction(wrapped)
    assert inspect.iscoroutinefunction(decorate(coroutine))
    assert inspect.isgeneratorfunction(decorate(generator))
    assert inspect.isasyncgenfunction(decorate(agenerator))
    assert copy.deepcopy(wrapped) is copy.copy(wrapped) is wrapped
    with pytest.raises(TypeError):
        wrapped()


def test_a_decorated_function_pickles_by_reference() -> None:
    assert pickle.loads(pickle.dumps(module_level)) is module_level


def test_misuse_is_told_at_once() -> None:
    with pytest.raises(TypeError, match="decorate the method"):
        kvflow.agent(Crew)
    with pytest.raises(TypeError, match=r"@kvflow\.workflow\(\)"):
        kvflow.workflow(agent_now)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="list of names"):
        kvflow.agent("a", tools="search")(agent_now)
    with pytest.raises(ValueError, match="reserved"):
        kvflow.agent("END")(agent_now)


LONG = "String should have at most 128 characters"
EMPTY = "String should have at least 1 character"


@pytest.mark.parametrize(
    ("use", "problem"),
    [
        (lambda: kvflow.agent("x" * 200)(agent_now), f"agent(): agent: {LONG}"),
        (
            lambda: kvflow.agent("a", fixed_prompt_messages=-1)(agent_now),
            "agent(): fixed_prompt_messages: Input should be greater than or equal to 0",
        ),
        (lambda: kvflow.agent("a", tools=["t", ""])(agent_now), f"agent(): tools.1: {EMPTY}"),
        (lambda: kvflow.tool("t", expected_s=0)(agent_now), "tool(): expected_s: Input should be greater than 0"),
        (lambda: kvflow.tool(verb="")(agent_now), f"tool(): verb: {EMPTY}"),
        (lambda: kvflow.tool("x" * 200)(agent_now), f"tool(): tool: {LONG}"),
        (lambda: kvflow.step("x" * 200), f"step(): agent: {LONG}"),
        (lambda: kvflow.step(""), f"step(): agent: {EMPTY}"),
        (lambda: kvflow.workflow(""), f"workflow(): type: {EMPTY}"),
        (lambda: kvflow.workflow("x" * 129), f"workflow(): type: {LONG}"),
    ],
)
def test_an_option_out_of_range_is_told_by_the_names_the_program_uses(use: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}$") as raised:
        use()
    assert type(raised.value) is ValueError


def test_an_id_or_a_tenant_too_long_is_no_error_but_known_by_a_digest(caplog: pytest.LogCaptureFixture) -> None:
    runs = [kvflow.workflow("t", id=run_id * 300, tenant="x" * 200) for run_id in "aab"]
    for run in runs:
        with run:
            assert decode_envelope(kvflow.extra_body()["kv_hints"]).facts
    assert runs[0].id == runs[1].id != runs[2].id, "the same run, and another one"
    assert [record.getMessage().split(";")[0] for record in caplog.records if record.levelname == "WARNING"] == [
        "a workflow id is longer than 256 characters",
        "a tenant is longer than 128 characters",
    ]


async def test_a_plain_wrapper_around_an_async_function_does_not_end_its_step_early() -> None:
    def retrying(fn: Any) -> Any:
        @functools.wraps(fn)
        def again(*args: Any) -> Any:
            return fn(*args)

        again.__wrapped__ = None  # type: ignore[attr-defined]
        return again

    @kvflow.agent("outer")
    @retrying
    async def outer() -> str | None:
        await asyncio.sleep(0.01)
        return agent_now()

    with kvflow.workflow("review"):
        waiting = outer()
        assert agent_now() == "main"
        assert await waiting == "outer"
        assert agent_now() == "main"
        assert await asyncio.gather(outer(), outer()) == ["outer", "outer"]
        assert agent_now() == "main"


def test_an_id_is_of_one_run() -> None:
    with pytest.raises(TypeError, match="names one run"):
        kvflow.workflow("review", id="w")(agent_now)


def test_a_generator_cannot_be_carried() -> None:
    def generator() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="plain function"):
        kvflow.carry(generator)
