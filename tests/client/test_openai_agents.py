"""The adapter of the OpenAI Agents SDK says of agents and tools what the program's own decorators would."""

from __future__ import annotations

import asyncio
import copy
import warnings
from typing import Any

import pytest

import kvflow

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations
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
    from openai import AsyncOpenAI
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from kvflow.integrations.openai_agents import instrument

pytestmark = pytest.mark.filterwarnings("default")


def scripted(asked: list[Any], *answers: list[Any]) -> Any:
    class Scripted(Model):
        """Answers what it is tool_facts to, and notes who asks."""

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


def slow_hours() -> Any:
    """A tool that others run beside."""

    @function_tool
    async def opening_hours(shop: str) -> str:
        """When a shop is open."""
        await asyncio.sleep(0.01)
        return "9 to 17"

    return opening_hours


def test_agents_ask_as_steps_and_wait_for_their_tools(tool_facts: list[dict[str, Any]]) -> None:
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
    assert [(fields["agent"], fields["tool"], fields["event"]) for fields in tool_facts] == [
        ("clerk", "opening_hours", "start"),
        ("clerk", "opening_hours", "end"),
    ]
    assert opening_hours is not clerk.tools[0], "agents that share a tool wait for it each on its own"


def test_runs_of_an_agent_side_by_side_wait_for_their_own_tools(tool_facts: list[dict[str, Any]]) -> None:
    """Whichever asks the model meanwhile says nothing of what the other one waits for."""
    asked: list[Any] = []

    wanted = [[call("opening_hours", '{"shop": "bakery"}', number)] for number in (11, 12)]
    model = scripted(asked, *wanted, [message("9 to 17")], [message("9 to 17")])
    clerk = instrument(Agent(name="clerk", tools=[slow_hours()], model=model))

    async def run() -> None:
        with kvflow.workflow("support"):
            await asyncio.gather(*(Runner.run(clerk, "Is it open?") for _ in range(2)))

    asyncio.run(run())
    waited = {fields["call_id"]: fields["step_id"] for fields in tool_facts}
    assert sorted(waited.values()) == sorted(step.step_id for step in asked[:2])


def test_calls_of_one_id_in_two_workflows_are_told_apart(tool_facts: list[dict[str, Any]]) -> None:
    asked: list[Any] = []

    wanted = [call("opening_hours", '{"shop": "bakery"}', 0)]
    model = scripted(asked, wanted, wanted, [message("9 to 17")], [message("9 to 17")])
    clerk = instrument(Agent(name="clerk", tools=[slow_hours()], model=model))

    @kvflow.workflow("support")
    async def run() -> None:
        await Runner.run(clerk, "Is it open?")

    async def both() -> None:
        await asyncio.gather(run(), run())

    asyncio.run(both())
    steps = {step.workflow_id: step.step_id for step in asked[:2]}
    assert {fields["workflow_id"]: fields["step_id"] for fields in tool_facts} == steps


def test_a_clone_that_is_instrumented_asks_and_waits_in_its_own_name(tool_facts: list[dict[str, Any]]) -> None:
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
    assert [(fields["agent"], fields["event"]) for fields in tool_facts] == [("other", "start"), ("other", "end")]


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
    with kvflow.workflow("support"):
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
    ("instructions", "messages"), [("You are a clerk.", 1), (None, None), ("", None), (lambda *tool_facts: "", None)]
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


def test_outside_a_workflow_it_asks_without_hints(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[Any] = []
    agent = Agent(name="a", model=scripted(asked, [call("opening_hours", '{"shop": "x"}', 1)], [message("9 to 17")]))
    agent.tools = [slow_hours()]
    run = asyncio.run(Runner.run(instrument(agent), "when?"))
    assert run.final_output == "9 to 17"
    assert asked == [None, None], "each turn would be a workflow that is over while the tool runs"
