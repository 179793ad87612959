"""Adapters say of an app's nodes, agents and tools what the program's own decorators would."""

from __future__ import annotations

import asyncio
import copy
import warnings
from typing import Annotated, Any, TypedDict

import pytest

import kvflow
from kvflow.graph import END as END_STEP

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations
    pytest.importorskip("langgraph", reason="LangGraph is not on PYTHONPATH")
    pytest.importorskip("agents", reason="the OpenAI Agents SDK is not on PYTHONPATH")
    from agents import (
        Agent,
        GuardrailFunctionOutput,
        Model,
        ModelResponse,
        OpenAIChatCompletionsModel,
        OutputGuardrail,
        Runner,
        Usage,
        function_tool,
        set_tracing_disabled,
    )
    from langchain_core.language_models.fake import FakeListLLM
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import RunnableLambda
    from langchain_core.tools import tool
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition
    from openai import AsyncOpenAI
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from kvflow.integrations.langgraph import Hints, graph_of
    from kvflow.integrations.openai_agents import instrument

pytestmark = pytest.mark.filterwarnings("default")


class State(TypedDict, total=False):
    seen: Annotated[list[Any], lambda old, new: old + new]


def seen(state: State) -> State:
    return {"seen": [kvflow.current()]}


async def seen_async(state: State) -> State:
    await asyncio.sleep(0.01)
    return {"seen": [kvflow.current()]}


def app(node: Any = seen) -> Any:
    """x, then y and z at once, then w, which may begin again."""
    builder = StateGraph(State)
    for name in "xyzw":
        builder.add_node(name, node)
    builder.add_edge(START, "x")
    for name in "yz":
        builder.add_edge("x", name)
        builder.add_edge(name, "w")
    builder.add_conditional_edges("w", lambda state: END if len(state["seen"]) > 6 else "x", ["x", END])
    return builder.compile()


def test_an_apps_graph_is_read_from_it() -> None:
    graph = graph_of(app(), "t")
    assert graph.agents == ("x", "y", "z", "w")
    assert set(graph.edges) == {
        ("START", "x"),
        ("x", "y"),
        ("x", "z"),
        ("y", "w"),
        ("z", "w"),
        ("w", "x"),
        ("w", END_STEP),
    }
    assert graph.probability("x", "y") is None
    assert graph.probability("w", "x") == graph.probability("w", END_STEP) == 0.5


def check(steps: list[Any]) -> None:
    assert [step.agent for step in steps[:1]] == ["x"]
    assert sorted(step.agent for step in steps) == sorted("xyzw" * 2)
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


@pytest.mark.parametrize("is_async", [False, True])
def test_an_app_in_a_chain_is_one_workflow(is_async: bool) -> None:
    hints = Hints("t")
    chain = RunnableLambda(lambda query: {"seen": []}) | app().with_config(callbacks=[hints])
    for _ in range(2):
        check((asyncio.run(chain.ainvoke("q")) if is_async else chain.invoke("q"))["seen"])
    assert not hints._open


def test_chains_in_nodes_and_subgraphs_are_part_of_the_workflow() -> None:
    def node(state: State) -> State:
        return {"seen": [(RunnableLambda(lambda _: kvflow.current()) | RunnableLambda(lambda step: step)).invoke(1)]}

    hints = Hints("t")
    builder = StateGraph(State)
    builder.add_node("team", app(node))
    builder.add_edge(START, "team")
    chain = RunnableLambda(lambda query: {"seen": []}) | builder.compile().with_config(callbacks=[hints])
    check(chain.invoke("q")["seen"])
    assert not hints._open


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is told of tool calls."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr("kvflow.client.tool_call.tell", lambda action, **fields: told.append(fields))
    return told


@tool
def search(query: str) -> str:
    """Look something up."""
    return query


def test_tools_of_a_node_are_its_tool_calls(told: list[dict[str, Any]]) -> None:
    def node(state: State) -> State:
        search.invoke({"query": "q"})
        return {"seen": [None]}

    builder = StateGraph(State)
    builder.add_node("x", node)
    builder.add_edge(START, "x")
    builder.compile().invoke({"seen": []}, config={"callbacks": [Hints("t")]})
    assert [(fields["agent"], fields["tool"], fields["event"]) for fields in told] == [
        ("x", "search", "start"),
        ("x", "search", "end"),
    ]


def wants_search(times: int) -> Any:
    """Asks for a search so many times, and then answers."""
    calls = [{"name": "search", "args": {"query": "q"}, "id": str(number)} for number in range(times)]
    return GenericFakeChatModel(messages=iter([*(AIMessage("", tool_calls=[call]) for call in calls), AIMessage("so")]))


def tool_app(model: Any) -> Any:
    """The planner asks once, then the assistant and its tools take turns."""
    builder = StateGraph(MessagesState)
    builder.add_node("planner", lambda state: {"messages": [FakeListLLM(responses=["plan"]).invoke("q")]})
    builder.add_node("assistant", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode([search]))
    builder.add_edge(START, "planner")
    builder.add_edge("planner", "assistant")
    builder.add_conditional_edges("assistant", tools_condition)
    builder.add_edge("tools", "assistant")
    return builder.compile()


@pytest.mark.parametrize("is_async", [False, True])
def test_tools_of_a_tool_node_are_calls_of_the_node_that_asked_last(told: list[dict[str, Any]], is_async: bool) -> None:
    hints = Hints("t")
    app, config = tool_app(wants_search(2)), {"callbacks": [hints]}
    result = asyncio.run(app.ainvoke({"messages": []}, config)) if is_async else app.invoke({"messages": []}, config)
    assert [message.type for message in result["messages"]] == ["human", "ai", "tool", "ai", "tool", "ai"]
    assert [(fields["agent"], fields["event"]) for fields in told] == [("assistant", "start"), ("assistant", "end")] * 2
    assert {fields["step_id"] for fields in told} == {None}
    assert not hints._asked


def test_who_asked_last_in_one_run_waits_for_no_tool_of_another(told: list[dict[str, Any]]) -> None:
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
    assert sorted(fields["agent"] for fields in told if fields["event"] == "start") == ["assistant", "tools"]


def test_a_node_that_asks_and_runs_tools_waits_for_them_itself(told: list[dict[str, Any]]) -> None:
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
    assert [fields["agent"] for fields in told] == ["x", "x"]
    assert None not in [fields["step_id"] for fields in told]


def test_a_wrong_workflow_type_is_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"workflow\(\): type: String should have at most 128 characters"):
        Hints("t" * 129)


def scripted(asked: list[Any], *answers: list[Any]) -> Any:
    class Scripted(Model):
        """Answers what it is told to, and notes who asks."""

        def __init__(self) -> None:
            self._answers = list(answers)

        async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
            asked.append(kvflow.current())
            return ModelResponse(output=self._answers.pop(0), usage=Usage(), response_id=None)

        async def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            for _ in range(2):
                asked.append(kvflow.current())
                yield kwargs["piece"]

    return Scripted()


def message(text: str) -> Any:
    content = [ResponseOutputText(text=text, type="output_text", annotations=[])]
    return ResponseOutputMessage(id="m", content=content, role="assistant", status="completed", type="message")


def call(name: str, arguments: str, number: int) -> Any:
    return ResponseFunctionToolCall(name=name, arguments=arguments, call_id=f"c{number}", type="function_call")


def test_agents_ask_as_steps_and_wait_for_their_tools(told: list[dict[str, Any]]) -> None:
    set_tracing_disabled(True)
    asked: list[Any] = []

    @function_tool
    def opening_hours(shop: str) -> str:
        """When a shop is open."""
        return f"{shop}: 9 to 17"

    model = scripted(
        asked,
        [call("transfer_to_clerk", "{}", 1)],
        [call("opening_hours", '{"shop": "bakery"}', 2)],
        [message("9 to 17")],
    )
    clerk = Agent(name="clerk", tools=[opening_hours], model=model)
    triage = Agent(name="triage", handoffs=[clerk], model=model)
    assert instrument(instrument(triage)) is triage
    with kvflow.workflow("support"):
        result = asyncio.run(Runner.run(triage, "Is the bakery open?"))
    assert result.final_output == "9 to 17"
    assert [step.agent for step in asked] == ["triage", "clerk", "clerk"]
    assert len({step.workflow_id for step in asked}) == 1
    assert {step.workflow_type for step in asked} == {"support"}
    assert [(fields["agent"], fields["tool"], fields["event"]) for fields in told] == [
        ("clerk", "opening_hours", "start"),
        ("clerk", "opening_hours", "end"),
    ]
    assert opening_hours is not clerk.tools[0], "agents that share a tool wait for it each on its own"


def test_a_clone_that_is_instrumented_asks_and_waits_in_its_own_name(told: list[dict[str, Any]]) -> None:
    asked: list[Any] = []

    @function_tool
    def opening_hours(shop: str) -> str:
        """When a shop is open."""
        return f"{shop}: 9 to 17"

    model = scripted(asked, [call("opening_hours", '{"shop": "bakery"}', 1)], [message("9 to 17")], [message("none")])
    clerk = instrument(Agent(name="clerk", tools=[opening_hours], model=model))
    clerk.tools[0].strict_json_schema = False
    other = instrument(clerk.clone(name="other"))
    assert not other.tools[0].strict_json_schema, "what has been changed since the first time stays"
    with kvflow.workflow("support"):
        asyncio.run(Runner.run(other, "Is the bakery open?"))
        asyncio.run(Runner.run(clerk, "Is it?"))
    assert [step.agent for step in asked] == ["other", "other", "clerk"]
    assert [(fields["agent"], fields["event"]) for fields in told] == [("other", "start"), ("other", "end")]


def test_a_model_stays_what_it_is_to_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    set_tracing_disabled(True)
    asked: list[Any] = []

    async def answer(self: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        asked.append(kvflow.current())
        return ModelResponse(output=[message("so")], usage=Usage(), response_id=None)

    async def clean_up(self: Any, owner: Any) -> None:
        asked.append("cleaned up")

    monkeypatch.setattr(OpenAIChatCompletionsModel, "get_response", answer)
    monkeypatch.setattr(OpenAIChatCompletionsModel, "_cleanup_on_run_end", clean_up)
    guardrail = OutputGuardrail(lambda *said: GuardrailFunctionOutput(output_info=None, tripwire_triggered=False))
    client = AsyncOpenAI(base_url="http://127.0.0.1:9", api_key="none")
    agent = instrument(Agent(name="clerk", output_guardrails=[guardrail]), client=client, model="small")
    with kvflow.workflow("support"):
        asyncio.run(Runner.run(agent, "q", previous_response_id="r"))
    assert [getattr(step, "agent", step) for step in asked] == ["clerk", "cleaned up"]
    model: Any = agent.model
    assert (model.model, model._supports_default_prompt_cache_key()) == (
        "small",
        OpenAIChatCompletionsModel("small", client)._supports_default_prompt_cache_key(),
    )


def test_a_copy_of_an_agents_model_asks_in_its_name() -> None:
    asked: list[Any] = []
    model = instrument(Agent(name="clerk", model=scripted(asked, [], []))).model
    for again in (copy.copy(model), copy.deepcopy(model)):
        asyncio.run(again.get_response())
    assert [step.agent for step in asked] == ["clerk"] * 2


def test_an_agent_without_a_model_needs_a_client() -> None:
    with pytest.raises(TypeError, match="agent 'alone' has no model of its own: give instrument"):
        instrument(Agent(name="alone"))


def test_a_streamed_answer_is_of_its_agents_step_and_of_nobody_elses() -> None:
    asked: list[Any] = []
    agent = instrument(Agent(name="clerk", model=scripted(asked)))

    async def read() -> list[Any]:
        return [(piece, kvflow.current()) async for piece in agent.model.stream_response(piece="p")]

    with kvflow.workflow("support") as workflow:
        pieces = asyncio.run(read())
        assert [(piece, step.agent) for piece, step in pieces] == [("p", "main")] * 2
    assert [(step.agent, step.workflow_id) for step in asked] == [("clerk", workflow.id)] * 2


def test_a_model_whose_stream_is_a_plain_function_keeps_its_step_to_the_end() -> None:
    asked: list[Any] = []
    closed: list[Any] = []

    class Plain(Model):
        """Makes its stream in another function."""

        async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
            raise NotImplementedError

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            return self._pieces(kwargs["pieces"])

        async def _pieces(self, pieces: str) -> Any:
            try:
                for piece in pieces:
                    asked.append(kvflow.current())
                    yield piece
            finally:
                closed.append(kvflow.current())

    agent = instrument(Agent(name="clerk", model=Plain()))

    async def read() -> None:
        pieces = agent.model.stream_response(pieces="abc")
        assert [await anext(pieces), await anext(pieces)] == ["a", "b"]
        await pieces.aclose()

    with kvflow.workflow("support"):
        asyncio.run(read())
    assert [step.agent for step in (*asked, *closed)] == ["clerk"] * 3
    assert len({step.step_id for step in (*asked, *closed)}) == 1


@pytest.mark.parametrize(
    ("instructions", "messages"), [("You are a clerk.", 1), (None, None), ("", None), (lambda *told: "", None)]
)
def test_only_instructions_that_stay_are_a_fixed_prompt(instructions: Any, messages: int | None) -> None:
    facts: list[Any] = []

    class Noting(Model):
        """Notes what a request would be hinted with."""

        async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
            facts.append(kvflow.extra_body()["kv_hints"]["actions"][-1]["payload"])
            return ModelResponse(output=[], usage=Usage(), response_id=None)

        async def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            yield None

    agent: Any = instrument(Agent(name="clerk", model=Noting(), instructions=instructions))
    with kvflow.workflow("support"):
        asyncio.run(agent.model.get_response())
    assert [fact.get("fixed_prompt_messages") for fact in facts] == [messages]
