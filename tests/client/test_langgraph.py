"""The LangGraph adapter says of an app's nodes and tools what the program's own decorators would."""

from __future__ import annotations

import asyncio
import contextvars
import warnings
from contextlib import nullcontext
from typing import Any
from uuid import uuid4

import pytest

import kvflow

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations
    pytest.importorskip("langgraph", reason="LangGraph is not on PYTHONPATH")
    from langchain_core.callbacks import CallbackManager
    from langchain_core.language_models.fake import FakeListLLM
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import RunnableLambda
    from langchain_core.tools import tool
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition

    from kvflow.integrations.langgraph import Hints, graph_of
    from tests.client.langgraph_apps import State, app, seen, seen_async

pytestmark = pytest.mark.filterwarnings("default")


def test_runs_of_a_thread_are_one_workflow_if_asked_for() -> None:
    made = app()

    def workflow_ids(hints: Hints) -> list[str]:
        runs = [
            made.invoke({"seen": []}, {"callbacks": [hints], "configurable": {"thread_id": thread}}) for thread in "aab"
        ]
        return [run["seen"][0].workflow_id for run in runs]

    first, again, other = workflow_ids(Hints("t", made, by_thread=True))
    assert (first, again, other) == ("t/a", "t/a", "t/b")
    assert len(set(workflow_ids(Hints("t", made)))) == 3


def check(steps: list[Any], inside: str = "") -> None:
    assert [step.agent for step in steps[:1]] == [f"{inside}x"]
    assert sorted(step.agent for step in steps) == sorted(f"{inside}{node}" for node in "xyzw" * 2)
    assert len({step.workflow_id for step in steps}) == 1
    assert len({step.step_id for step in steps}) == 8
    assert {step.workflow_type for step in steps} == {"t"}
    assert kvflow.current() is None


def test_nodes_are_steps_of_one_workflow() -> None:
    hints = Hints("t", app())
    for _ in range(2):
        check(app().invoke({"seen": []}, config={"callbacks": [hints]})["seen"])
    assert not hints._open


def test_nodes_that_run_at_once_are_told_apart() -> None:
    hints = Hints("t")

    async def run() -> list[Any]:
        config = {"callbacks": [hints]}
        return await asyncio.gather(*(app(seen_async).ainvoke({"seen": []}, config=config) for _ in range(5)))

    results = asyncio.run(run())
    for result in results:
        check(result["seen"])
    assert len({result["seen"][0].workflow_id for result in results}) == 5
    assert not hints._open


def test_a_node_that_fails_ends_its_step_and_the_workflow() -> None:
    def fail(state: State) -> State:
        raise ValueError("no")

    hints = Hints("t")
    with pytest.raises(ValueError, match="no"):
        app(fail).invoke({"seen": []}, config={"callbacks": [hints]})
    assert kvflow.current() is None
    assert not hints._open


@pytest.fixture(params=["in a workflow", "in none"])
def around(request: pytest.FixtureRequest) -> Any:
    """What the program says around an app: apps are workflows of their own inside others."""
    return kvflow.workflow("request") if request.param == "in a workflow" else nullcontext()


@pytest.mark.parametrize("is_async", [False, True])
def test_an_app_in_a_chain_is_one_workflow(is_async: bool, around: Any) -> None:
    hints, found = Hints("t"), list[Any]()
    chain = RunnableLambda(lambda query: {"seen": []}) | app().with_config(callbacks=[hints])
    with around:
        for _ in range(2):
            found.append(asyncio.run(chain.ainvoke("q")) if is_async else chain.invoke("q"))
    for result in found:
        check(result["seen"])
    assert not hints._open
    assert not hints._apps


@pytest.mark.parametrize("streamed", [False, True])
def test_an_app_that_somebody_else_traces_is_one_workflow(around: Any, streamed: bool) -> None:
    hints, made, steps = Hints("t"), app(), list[Any]()
    with around:
        config: Any = {"callbacks": CallbackManager([hints], [hints], parent_run_id=uuid4())}
        if streamed:
            parts = made.stream({"seen": []}, config, stream_mode="updates")
            while part := contextvars.copy_context().run(next, parts, None):
                steps.extend(step for update in part.values() for step in update["seen"])
        else:
            steps = made.invoke({"seen": []}, config)["seen"]
    check(steps)
    assert not hints._open


@pytest.mark.parametrize("given", ["with the call", "with the app", "and the app is the node"])
def test_an_app_in_a_node_of_an_app_without_hints_is_one_workflow(given: str, around: Any) -> None:
    hints, inner, steps = Hints("t"), app(), list[Any]()

    def node(state: State) -> State:
        more: Any = {"config": {"callbacks": [hints]}} if given == "with the call" else {}
        steps.extend(inner.invoke({"seen": []}, **more)["seen"])
        return {"seen": []}

    if given != "with the call":
        inner = inner.with_config(callbacks=[hints])
    builder = StateGraph(State)
    builder.add_node("outer", inner if given == "and the app is the node" else node)
    builder.add_edge(START, "outer")
    builder.add_edge("outer", END)
    with around:
        found = builder.compile().invoke({"seen": []})["seen"]
    check(steps or found)
    assert not hints._open


def test_chains_in_nodes_and_subgraphs_are_part_of_the_workflow() -> None:
    def node(state: State) -> State:
        return {"seen": [(RunnableLambda(lambda _: kvflow.current()) | RunnableLambda(lambda step: step)).invoke(1)]}

    hints = Hints("t")
    builder = StateGraph(State)
    builder.add_node("team", app(node))
    builder.add_edge(START, "team")
    chain = RunnableLambda(lambda query: {"seen": []}) | builder.compile().with_config(callbacks=[hints])
    check(chain.invoke("q")["seen"], "team/")
    assert not hints._open


def test_prebuilt_agents_that_are_nodes_are_agents_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    told: list[dict[str, Any]] = []
    monkeypatch.setattr("kvflow.client.scopes.tell", lambda action, **fields: told.append(fields))

    class Model(GenericFakeChatModel):
        def _generate(self, *args: Any, **options: Any) -> Any:
            asked.append(kvflow.current())
            return super()._generate(*args, **options)

    builder = StateGraph(MessagesState)
    for name in ("researcher", "coder"):
        model = Model(messages=iter([AIMessage("x")]))
        builder.add_node(name, create_react_agent(model, [], prompt=f"You are a {name}.", name=name))
    builder.add_edge(START, "researcher")
    builder.add_edge("researcher", "coder")
    builder.add_edge("coder", END)
    team = builder.compile()
    hints = Hints("team", team)
    team.invoke({"messages": [("user", "q")]}, config={"callbacks": [hints]})
    assert [step.agent for step in asked] == ["researcher", "coder"] == list(graph_of(team).agents)
    ends = [fact["agent"] for fact in told if fact.get("event") == "end"]
    assert ends == ["researcher", "coder"]
    assert not hints._open


def streamed(hints: Hints, node: Any = seen) -> Any:
    return app(node).stream({"seen": []}, config={"callbacks": [hints]}, stream_mode="values")


def test_a_stream_is_one_workflow_whoever_takes_its_parts() -> None:
    hints = Hints("t", app())
    parts, last = streamed(hints), None
    while (part := contextvars.Context().run(next, parts, None)) is not None:  # as web servers take them
        assert kvflow.current() is None
        last = part
    check(last["seen"])
    assert not hints._open


def test_streams_that_take_turns_are_workflows_of_their_own() -> None:
    hints = Hints("t")
    pairs = list(zip(streamed(hints), streamed(hints), strict=True))
    for result in pairs[-1]:
        check(result["seen"])
    assert len({result["seen"][0].workflow_id for result in pairs[-1]}) == 2
    assert not hints._open


def test_who_reads_a_stream_is_not_part_of_it() -> None:
    async def run() -> list[Any]:
        parts = app(seen_async).astream({"seen": []}, config={"callbacks": [Hints("t")]}, stream_mode="values")
        return [(part, kvflow.current()) async for part in parts]

    read = asyncio.run(run())
    check(read[-1][0]["seen"])
    assert {step for _, step in read} == {None}


def test_streams_that_are_given_up_are_left_at_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvflow.integrations.langgraph._MOST", 8)
    hints = Hints("t")
    for _ in range(20):
        next(streamed(hints))
    assert len(hints._open) <= 8


@tool
def search(query: str) -> str:
    """Look something up."""
    return query


@tool("search")
def asks_itself(query: str) -> str:
    """Look something up with a model."""
    return FakeListLLM(responses=["so"]).invoke(query)


def test_tools_of_a_node_are_its_tool_calls(tool_facts: list[dict[str, Any]]) -> None:
    def node(state: State) -> State:
        search.invoke({"query": "q"})
        return {"seen": [None]}

    builder = StateGraph(State)
    builder.add_node("x", node)
    builder.add_edge(START, "x")
    builder.compile().invoke({"seen": []}, config={"callbacks": [Hints("t")]})
    assert [(fields["agent"], fields["tool"], fields["event"]) for fields in tool_facts] == [
        ("x", "search", "start"),
        ("x", "search", "end"),
    ]


def wants_search(times: int) -> Any:
    """Asks for a search so many times, and then answers."""
    calls = [{"name": "search", "args": {"query": "q"}, "id": str(number)} for number in range(times)]
    return GenericFakeChatModel(messages=iter([*(AIMessage("", tool_calls=[call]) for call in calls), AIMessage("so")]))


def tool_app(model: Any, used: Any = search) -> Any:
    """The planner asks once, then the assistant and its tools take turns."""
    builder = StateGraph(MessagesState)
    builder.add_node("planner", lambda state: {"messages": [FakeListLLM(responses=["plan"]).invoke("q")]})
    builder.add_node("assistant", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode([used]))
    builder.add_edge(START, "planner")
    builder.add_edge("planner", "assistant")
    builder.add_conditional_edges("assistant", tools_condition)
    builder.add_edge("tools", "assistant")
    return builder.compile()


@pytest.mark.parametrize("used", [search, asks_itself], ids=["", "that asks"])
@pytest.mark.parametrize("is_async", [False, True])
def test_tools_of_a_tool_node_are_calls_of_the_node_that_asked_last(
    tool_facts: list[dict[str, Any]], is_async: bool, used: Any
) -> None:
    hints = Hints("t")
    app, config = tool_app(wants_search(2), used), {"callbacks": [hints]}
    result = asyncio.run(app.ainvoke({"messages": []}, config)) if is_async else app.invoke({"messages": []}, config)
    assert [message.type for message in result["messages"]] == ["human", "ai", "tool", "ai", "tool", "ai"]
    assert [(fields["agent"], fields["event"]) for fields in tool_facts] == [
        ("assistant", "start"),
        ("assistant", "end"),
    ] * 2
    first, second = (fields["step_id"] for fields in tool_facts if fields["event"] == "start")
    assert None not in (first, second)
    assert first != second, "each waits in the step that has asked for it"
    assert not hints._asked


def test_who_asked_last_in_one_run_waits_for_no_tool_of_another(tool_facts: list[dict[str, Any]]) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([search]))
    builder.add_edge(START, "tools")
    hints = Hints("t")

    async def run() -> None:
        asking = tool_app(wants_search(1)).ainvoke({"messages": []}, {"callbacks": [hints]})
        wanted = wants_search(1).invoke("q")
        using = builder.compile().ainvoke({"messages": [wanted]}, {"callbacks": [hints]})
        await asyncio.gather(asking, using)

    asyncio.run(run())
    assert sorted(fields["agent"] for fields in tool_facts if fields["event"] == "start") == ["assistant", "tools"]


def test_a_node_that_asks_and_runs_tools_waits_for_them_itself(tool_facts: list[dict[str, Any]]) -> None:
    def node(state: MessagesState) -> Any:
        asked = wants_search(0).invoke("q")
        kvflow.carry(other)()
        search.invoke({"query": "q"})
        return {"messages": [asked]}

    def other() -> None:
        with kvflow.step("helper"):
            wants_search(0).invoke("q")

    builder = StateGraph(MessagesState)
    builder.add_node("x", node)
    builder.add_edge(START, "x")
    builder.compile().invoke({"messages": []}, {"callbacks": [Hints("t")]})
    assert [fields["agent"] for fields in tool_facts if fields["step_id"]] == ["x", "x"]


def test_a_wrong_workflow_type_is_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"workflow\(\): type: String should have at most 128 characters"):
        Hints("t" * 129)
