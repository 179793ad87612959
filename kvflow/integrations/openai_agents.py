"""The OpenAI Agents SDK: every model call of an agent as its step, its function tools as tool calls.

    from kvflow.integrations.openai_agents import instrument

    triage = instrument(triage, client=AsyncOpenAI(base_url="http://localhost:30000/v1", api_key="none"))
    with kvflow.workflow("support"):
        await Runner.run(triage, question)

Models and tools are wrapped, because the SDK runs its hooks in tasks of their own, from which nothing would reach the
request. Outside a workflow they do as without: each turn of a run would be a workflow of its own.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import wrapt

import kvflow.client as kv
from kvflow.client.degraded import degraded
from kvflow.client.tools import ToolCall
from kvflow.client.wrapping import wrap
from kvflow.errors import MissingExtraError

try:
    from agents import (  # pyright: ignore[reportMissingImports]
        Agent,
        FunctionTool,
        Model,
        OpenAIChatCompletionsModel,
    )
except ImportError as error:
    raise MissingExtraError("openai-agents", "the adapter for the OpenAI Agents SDK") from error


_MOST_ASKERS = 4096
_askers: OrderedDict[tuple[str, str], str] = OrderedDict()
"""Steps that have asked for a call of a tool, by workflow and the call's id, the latest last.

Ids may come again in other workflows: servers number the calls of some models in each conversation."""


def instrument(agent: Agent[Any], *, client: Any = None, model: str = "default") -> Agent[Any]:
    """Let an agent, and all it can hand over to, say who asks; returns the agent.

    Agents used as tools (``as_tool``) are instrumented by themselves, before, and so are clones, after. Instrumenting
    twice is the same as once.

    Args:
        agent: it is changed.
        client: an ``AsyncOpenAI`` for agents whose model is a name, or not set; it is instrumented, too.
        model: the name to ask for where an agent has none.

    Raises:
        TypeError: an agent's model is no ``Model``, and there is no client to make one with.
    """
    waiting, seen = [agent], {id(agent)}
    while waiting:
        current = waiting.pop()
        current.model = _stepped(current, client, model)
        current.tools = [_told(tool, current.name) for tool in current.tools]
        for target in current.handoffs:
            if isinstance(target, Agent) and id(target) not in seen:
                seen.add(id(target))
                waiting.append(target)
    return agent


class _Stepped(wrapt.ObjectProxy):  # type: ignore[misc,type-arg]
    """A model that says whose step it answers; in everything else the model itself, for the SDK asks what it is.

    Args:
        model: it asks.
        whose: the agent's name, and how many messages at the beginning of its prompts are fixed.
    """

    def __init__(self, model: Any, whose: tuple[str, int | None]) -> None:
        async def respond(*args: Any, **kwargs: Any) -> Any:
            response = await model.get_response(*args, **kwargs)
            _asked_for(response)
            return response

        async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # whatever kind of function the model's is
            items = model.stream_response(*args, **kwargs)
            try:
                async for item in items:
                    _asked_for(getattr(item, "response", None))
                    yield item
            finally:
                if isinstance(items, AsyncGenerator):
                    await items.aclose()

        super().__init__(model)
        self._self_whose = whose
        name, fixed_prompt_messages = whose
        stepped = kv.agent(name, fixed_prompt_messages=fixed_prompt_messages)
        self._self_respond: Callable[..., Any] = stepped(respond)
        self._self_stream: Callable[..., AsyncIterator[Any]] = stepped(stream)

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        respond = self._self_respond if _in_workflow() else self.__wrapped__.get_response
        return await respond(*args, **kwargs)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        stream = self._self_stream if _in_workflow() else self.__wrapped__.stream_response
        return stream(*args, **kwargs)

    def __copy__(self) -> _Stepped:
        return _Stepped(copy.copy(self.__wrapped__), self._self_whose)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Stepped:
        return _Stepped(copy.deepcopy(self.__wrapped__, memo), self._self_whose)


def _in_workflow() -> bool:
    """Whether there is one; each turn of a run would be a workflow of its own, and over while its tools run."""
    if kv.current() is None:
        degraded("agents of the OpenAI Agents SDK outside a kvflow.workflow go without hints", trace=False)
        return False
    return True


def _asked_for(response: Any) -> None:
    """Note the calls of tools that an answer asks for: the agent may run more than once at a time."""
    step = kv.current()
    if step is None:
        return
    for item in getattr(response, "output", None) or ():
        call_id = getattr(item, "call_id", None)
        if isinstance(call_id, str):
            _askers[step.workflow_id, call_id] = step.step_id
            if len(_askers) > _MOST_ASKERS:
                _askers.popitem(last=False)


def _stepped(agent: Agent[Any], client: Any, name: str) -> Any:
    model = agent.model
    fixed = isinstance(agent.instructions, str) and agent.instructions  # a function's differ from run to run
    whose = agent.name, 1 if fixed else None
    if isinstance(model, _Stepped):
        return model if model._self_whose == whose else _Stepped(model.__wrapped__, whose)
    if not isinstance(model, Model):
        if client is None:
            raise TypeError(f"agent {agent.name!r} has no model of its own: give instrument() a client to ask with")
        model = OpenAIChatCompletionsModel(model=model or name, openai_client=kv.instrument(client))
    return _Stepped(model, whose)


def _told(tool: Any, agent: str) -> Any:
    """A function tool that says when it runs; copied, since agents may share it."""
    if not isinstance(tool, FunctionTool):
        return tool
    told = copy.copy(tool)
    wrapped, invoke = getattr(told, "_kvflow", (None, None))
    if invoke is None or told.on_invoke_tool is not wrapped:  # the SDK's copies drop what wraps their own functions
        invoke = told.on_invoke_tool

    def called(context: Any = None, *args: Any, **kwargs: Any) -> ToolCall:
        step, call_id = kv.current(), getattr(context, "tool_call_id", "")
        return ToolCall(told.name, agent=agent, step_id=_askers.get((step.workflow_id, call_id)) if step else None)

    told.on_invoke_tool = wrap(invoke, called)
    told._kvflow = told.on_invoke_tool, invoke  # type: ignore[attr-defined]
    return told
