"""Facts between requests: what is told, and in which order."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import kvflow
from kvflow.client.tools import ToolCall
from kvflow.hints import decode_envelope

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    from tests.client.conftest import Peer


def test_the_life_of_a_workflow_in_order(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))

    @kvflow.tool("search", expected_s=40)
    def search() -> None: ...

    @kvflow.agent
    def planner() -> None:
        ask(client)
        search()
        ask(client)

    @kvflow.agent
    def critic() -> None:
        ask(client)

    with kvflow.workflow("review") as run:
        planner()
        critic()
    assert peer.told() == [
        ("planner", "start"),
        ("search", "start"),
        ("search", "end"),
        ("planner", "start"),
        ("planner", "end"),
        ("critic", "start"),
        ("critic", "end"),
        ("END", "start"),
    ]
    assert peer.facts[-1] == {"workflow_id": run.id, "workflow_type": "review", "agent": "END", "final": True}
    start, end = (fact for fact in peer.facts if "tool" in fact)
    assert 0 <= end.pop("took_s") < 5
    assert start == end | {"event": "start", "expected_s": 40}
    assert (start["workflow_id"], start["agent"]) == (run.id, "planner")
    for request in peer.to("/events"):
        decode_envelope(request.body)


def test_a_conversation_goes_on_in_a_later_block(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    for last in (False, True):
        with kvflow.workflow("chat", id="c", end=last):
            ask(client)
        kvflow.flush()
        assert peer.told() == [("main", "start")] * (1 + last) + [("END", "start")] * last
    assert {fact["workflow_id"] for fact in peer.facts} == {"c"}


@pytest.mark.usefixtures("lingering")
def test_pending_facts_ride_on_the_next_request(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow():
        with kvflow.step("a"):
            ask(client)
        with kvflow.step("b"):
            ask(client)
    riding = [(fact["agent"], fact.get("event")) for fact in peer.llm[1].payloads]
    assert riding == [("a", "end"), ("b", None)]
    assert not peer.to("/events")


@pytest.mark.usefixtures("lingering")
def test_facts_ride_with_their_own_workflow_only(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow("first"):
        with kvflow.workflow("other"), kvflow.step("theirs"):
            pass
        with kvflow.step("ours"):
            pass
        ask(client)
    assert [fact["agent"] for fact in peer.llm[0].payloads] == ["ours", "main"]
    assert kvflow.flush()
    assert [fact["agent"] for fact in peer.to("/events")[0].payloads] == ["theirs", "END", "END"]


@pytest.mark.usefixtures("lingering")
def test_at_most_32_facts_ride(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow():
        for i in range(40):
            with kvflow.step(str(i)):
                pass
        ask(client)
    assert [fact["agent"] for fact in peer.llm[0].payloads] == [str(i) for i in range(32)] + ["main"]
    assert kvflow.flush()
    assert [fact["agent"] for fact in peer.to("/events")[0].payloads] == [str(i) for i in range(32, 40)] + ["END"]


def test_facts_are_posted_without_being_asked_for(peer: Peer) -> None:
    kvflow.configure(url=peer.url)
    for count in (1, 2):
        with kvflow.workflow():
            pass
        deadline = time.monotonic() + 10
        while len(peer.facts) < count and time.monotonic() < deadline:
            time.sleep(0.005)
        assert [fact["agent"] for fact in peer.facts] == ["END"] * count
        time.sleep(0.1)  # the thread has gone to sleep


@pytest.mark.usefixtures("lingering")
def test_facts_are_posted_together_64_at_a_time(peer: Peer) -> None:
    kvflow.configure(url=peer.url)
    with kvflow.workflow():
        for _ in range(99):
            with kvflow.step("a"):
                pass
    assert kvflow.flush()
    assert [len(request.actions) for request in peer.to("/events")] == [64, 36]


def test_the_order_of_a_process_is_kept_under_threads(peer: Peer) -> None:
    kvflow.configure(url=peer.url)

    def work(name: str) -> None:
        with kvflow.workflow(name):
            for i in range(50):
                with kvflow.step(str(i)):
                    pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, "abcd"))
    assert kvflow.flush()
    for name in "abcd":
        agents = [fact["agent"] for fact in peer.facts if fact["workflow_type"] == name]
        assert agents == [str(i) for i in range(50)] + ["END"]


def test_facts_and_requests_of_busy_threads_lose_nothing(peer: Peer, sdk: Any, ask: Any) -> None:
    client = kvflow.instrument(sdk(peer))

    def work(name: str) -> None:
        with kvflow.workflow(name):
            for i in range(10):
                with kvflow.step(str(i)):
                    ask(client)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, "abcd"))
    assert kvflow.flush()
    ends = [(f["workflow_type"], f["agent"]) for f in peer.facts if f.get("event") == "end" or f["agent"] == "END"]
    assert sorted(ends) == sorted((name, agent) for name in "abcd" for agent in [*map(str, range(10)), "END"])


@pytest.mark.parametrize("how", ["raise", "return"])
def test_steps_tools_and_workflows_end_however_they_end(peer: Peer, how: str) -> None:
    kvflow.configure(url=peer.url)

    @kvflow.tool
    def use() -> None:
        if how == "raise":
            raise LookupError

    @kvflow.agent
    def work() -> None:
        use()

    try:
        with kvflow.workflow():
            work()
    except LookupError:
        assert how == "raise"
    assert peer.told() == [("use", "start"), ("use", "end"), ("work", "end"), ("END", "start")]


def test_a_final_step_that_raises_is_not_the_last_one(peer: Peer) -> None:
    kvflow.configure(url=peer.url)

    @kvflow.agent(final=True)
    def write(draft: int) -> int:
        return 1 // draft

    with kvflow.workflow("report"):
        with pytest.raises(ZeroDivisionError):
            write(0)
        write(1)
    assert peer.told() == [("write", "end"), ("write", "end"), ("END", "start")]
    assert [fact.get("final") for fact in peer.facts] == [False, True, True]


def test_an_agent_on_its_own_ends_its_workflow(peer: Peer) -> None:
    kvflow.configure(url=peer.url)

    @kvflow.agent(final=True)
    def solo() -> None: ...

    solo()
    assert peer.told() == [("solo", "end"), ("END", "start")]
    end, finish = peer.facts
    assert end["workflow_id"] == finish["workflow_id"]
    assert end["final"] is True
    assert finish["workflow_type"] == "solo"


def test_a_tool_outside_a_workflow_is_nobodys_business(peer: Peer) -> None:
    kvflow.configure(url=peer.url)

    @kvflow.tool
    def search() -> int:
        return 1

    assert search() == 1
    assert peer.told() == []


async def test_parallel_tool_calls_are_told_apart(peer: Peer) -> None:
    kvflow.configure(url=peer.url)

    @kvflow.tool
    async def fetch(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async with kvflow.workflow(), kvflow.step("a"):
        assert await asyncio.gather(fetch(0.02), fetch(0)) == [0.02, 0]
    assert kvflow.flush()
    calls = [(fact["call_id"], fact["event"]) for fact in peer.facts if "tool" in fact]
    first, second = calls[0][0], calls[1][0]
    assert calls == [(first, "start"), (second, "start"), (second, "end"), (first, "end")]


async def test_a_tool_call_says_which_of_parallel_steps_waits(peer: Peer) -> None:
    kvflow.configure(url=peer.url)
    steps: dict[str, str] = {}

    @kvflow.tool
    async def fetch() -> None:
        await asyncio.sleep(0)

    @kvflow.agent
    async def reader(name: str) -> None:
        context = kvflow.current()
        assert context is not None
        steps[name] = context.step_id
        await fetch()

    async with kvflow.workflow():
        await asyncio.gather(reader("first"), reader("second"))
    assert kvflow.flush()
    calls = [(fact["step_id"], fact["event"]) for fact in peer.facts if "tool" in fact]
    assert sorted(calls) == sorted((step, event) for step in steps.values() for event in ("start", "end"))
    assert len(set(steps.values())) == 2


@pytest.mark.parametrize(("agent", "named"), [("planner", True), ("clerk", False)])
def test_a_tool_call_on_behalf_of_another_agent_names_no_step(peer: Peer, agent: str, named: bool) -> None:
    kvflow.configure(url=peer.url)
    with kvflow.workflow(), kvflow.step("planner") as step, ToolCall("search", agent=agent):
        pass
    assert kvflow.flush()
    calls = [fact for fact in peer.facts if "tool" in fact]
    assert [fact["agent"] for fact in calls] == [agent] * 2
    assert [fact.get("step_id") for fact in calls] == [step.step_id if named else None] * 2


def test_a_tool_that_is_a_generator_lasts_as_long_as_it_is_read(peer: Peer) -> None:
    kvflow.configure(url=peer.url)

    @kvflow.tool
    def rows() -> Generator[int, None, None]:
        yield 1
        yield 2

    with kvflow.workflow():
        generator = rows()
        with kvflow.step("before"):
            pass
        next(generator)
        with kvflow.step("during"):
            pass
        generator.close()
    assert peer.told() == [
        ("before", "end"),
        ("rows", "start"),
        ("during", "end"),
        ("rows", "end"),
        ("END", "start"),
    ]


async def test_an_abandoned_async_generator_ends_its_step(peer: Peer) -> None:
    kvflow.configure(url=peer.url)

    @kvflow.agent
    async def stream() -> AsyncIterator[int]:
        for i in range(10):
            yield i

    async with kvflow.workflow():
        async for _ in stream():
            break
        await asyncio.sleep(0.01)
    assert peer.told() == [("stream", "end"), ("END", "start")]


async def test_what_goes_on_after_the_end_is_not_told(peer: Peer, async_sdk: Any) -> None:
    client = kvflow.instrument(async_sdk(peer))
    go = asyncio.Event()

    @kvflow.tool
    async def slow() -> None:
        await go.wait()

    @kvflow.agent
    async def worker() -> None:
        await slow()
        await client.chat.completions.create(model="m", messages=[])

    async with kvflow.workflow():
        task = asyncio.create_task(worker())
        await asyncio.sleep(0)
    go.set()
    await task
    assert peer.told() == [("slow", "start"), ("END", "start")]
    assert "kv_hints" not in peer.llm[0].body


def test_every_server_hears_every_fact(peer: Peer, make_peer: Any, plain: Peer, sdk: Any, ask: Any) -> None:
    other = make_peer()
    kvflow.configure(url=f"{other.url}/v1/")
    kvflow.instrument(sdk(plain))
    client = kvflow.instrument(sdk(peer))
    with kvflow.workflow(), kvflow.step("a"):
        ask(client)
    assert peer.told() == [("a", "start"), ("a", "end"), ("END", "start")]
    assert other.told() == [("a", "end"), ("END", "start")]
    assert {request.path for request in plain.received} == {"/kvflow/v1/graphs"}


def test_a_block_may_be_a_tool_call(peer: Peer) -> None:
    kvflow.configure(url=peer.url)

    @kvflow.agent
    def coder() -> None:
        with kvflow.tool_call("shell", expected_s=2, verb="ls"):
            time.sleep(0.01)

    with kvflow.workflow():
        coder()
    assert peer.told() == [("shell", "start"), ("shell", "end"), ("coder", "end"), ("END", "start")]
    start, end, *_ = peer.facts
    assert (start["agent"], start["verb"], start["expected_s"]) == ("coder", "ls", 2)
    assert end["took_s"] >= 0.01
    with pytest.raises(ValueError, match=r"^tool_call\(\): expected_s: "):
        kvflow.tool_call("shell", expected_s=-1)


@pytest.mark.parametrize(("name", "told"), [("", "tool"), ("x" * 200, "x" * 128), ("\ud800", "?")])
def test_whatever_a_model_calls_a_tool_is_told(peer: Peer, name: str, told: str) -> None:
    kvflow.configure(url=peer.url)
    with kvflow.workflow(), kvflow.tool_call(name, verb=name):
        pass
    assert peer.told()[:2] == [(told, "start"), (told, "end")]
