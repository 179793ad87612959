"""What decorators decorate, what they change of it, and what they refuse."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import re
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

import kvflow
from kvflow.client import degraded
from kvflow.hints import decode_envelope
from tests.client.test_context import agent_now

if TYPE_CHECKING:
    from tests.client.conftest import Peer


def undecorated(*numbers: int) -> tuple[int, ...]:
    return numbers


@kvflow.agent
def module_level(x: int) -> int:
    return x + 1


class Crew:
    """Methods of every kind, decorated in both orders where there are two."""

    tag = "crew"

    def plain(self) -> str:
        return self.tag

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


def test_a_decorated_method_is_copied_with_its_object() -> None:
    class Toolbox:
        def __init__(self) -> None:
            self.tag = "first"
            self.tools = [self.search, self.kind, self.static]

        @kvflow.tool("search")
        def search(self) -> str:
            return self.tag

        @kvflow.tool("kind")
        @classmethod
        def kind(cls) -> str:
            return cls.__name__

        @kvflow.tool("static")
        @staticmethod
        def static() -> str:
            return "static"

    first = Toolbox()
    other = copy.deepcopy(first)
    other.tag = "other"
    assert [tool() for tool in first.tools] == ["first", "Toolbox", "static"]
    assert [tool() for tool in other.tools] == ["other", "Toolbox", "static"]
    assert copy.copy(first.search)() == "first"


@pytest.mark.parametrize("name", ["method", "static", "static2", "klass"])
@pytest.mark.parametrize("owner", [Crew, Crew()])
def test_a_decorated_method_pickles_as_a_method(owner: Any, name: str) -> None:
    arguments = [owner] * (name == "method" and owner is Crew) + [1] * name.startswith("static")
    assert pickle.loads(pickle.dumps(getattr(owner, name)))(*arguments) == getattr(owner, name)(*arguments)


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


@pytest.mark.parametrize("called", [undecorated, functools.partial(undecorated, 1), Crew().plain, len])
def test_what_is_decorated_where_it_is_passed_on_arrives_without_its_scope(called: Any) -> None:
    arrived = pickle.loads(pickle.dumps(kvflow.agent("a")(called)))
    arguments = ["text"] if called is len else []
    assert arrived(*arguments) == called(*arguments)


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
    assert [record.getMessage().split(";")[0] for record in caplog.records if "longer" in record.getMessage()] == [
        "a workflow id is longer than 256 characters",
        "a tenant is longer than 128 characters",
    ]


@pytest.mark.parametrize("run_id", [None, ""])
def test_a_run_that_nobody_can_go_on_with_ends_with_its_block(
    run_id: str | None, peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(degraded, "_told", set())
    kvflow.configure(url=peer.url)
    with kvflow.workflow("t", id=run_id, end=False), kvflow.step("a"):
        pass
    assert "end=False" in caplog.text
    assert peer.told()[-1] == ("END", "start")


def test_a_workflow_in_another_is_its_tenants() -> None:
    with kvflow.workflow("job", tenant="alice"), kvflow.workflow("task"), kvflow.step("solver"):
        (action,) = kvflow.extra_body()["kv_hints"]["actions"]
        assert action["payload"]["tenant"] == "alice"
        with kvflow.workflow("other", tenant="bob"):
            assert kvflow.extra_body()["kv_hints"]["actions"][0]["payload"]["tenant"] == "bob"


def test_ids_and_tenants_may_be_numbers_and_uuids() -> None:
    uuid = UUID(int=7)
    for given, known in ((42, "42"), (uuid, str(uuid)), ("id", "id")):
        with kvflow.workflow("t", id=given, tenant=given) as run:
            payload = kvflow.extra_body()["kv_hints"]["actions"][0]["payload"]
            assert (run.id, payload["workflow_id"], payload["tenant"]) == (known, known, known)


@pytest.mark.parametrize("wrong", [b"id", 1.5, object(), ["id"]])
def test_ids_and_tenants_that_are_no_names_are_told_at_once(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a workflow id must be a text, a number or a UUID, not"):
        kvflow.workflow("t", id=wrong)
    with pytest.raises(TypeError, match="a tenant must be a text, a number or a UUID, not"):
        kvflow.workflow("t", tenant=wrong)
    with pytest.raises(TypeError, match="a workflow id must be"):
        kvflow.feedback(1, wrong)


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
