"""What a program says about itself: workflows, agents, steps and tools.

A decorator changes nothing about the call it decorates; see :mod:`kvflow.client.wrapping`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

from kvflow.client.degraded import degraded
from kvflow.client.graphs import document_of, type_of
from kvflow.client.scopes import Step, StepOptions, Workflow, WorkflowOptions, known_as
from kvflow.client.server import GraphDeclaration
from kvflow.client.tools import ToolCall
from kvflow.client.wrapping import wrap
from kvflow.hints import StepFact, ToolFact, checked
from kvflow.hints.fields import MAX_IDENTIFIER, MAX_NAME

if TYPE_CHECKING:
    from kvflow.graph import AgentStepGraph

F = TypeVar("F", bound=Callable[..., Any])
Verb = str | Callable[..., str | None] | None


def workflow(
    type: str | None = None,
    *,
    id: str | int | UUID | None = None,
    graph: AgentStepGraph | Mapping[str, Any] | str | PathLike[str] | None = None,
    tenant: str | int | UUID | None = None,
    reuse: bool | None = None,
    end: bool = True,
) -> Workflow:
    """Run a block, or every call of a function, as one workflow.

    ``with workflow(...):``, ``async with workflow(...):`` and ``@workflow(...)`` do the same. A workflow inside another
    one names it as its parent. When the block ends, however it ends, the servers are told that this workflow's context
    is not needed any more.

    Args:
        type: the kind of workflow; runs of one type are expected to go alike, and to have one graph. By default the
            name of ``graph``, or ``default``.
        id: what servers know this run by, of all their clients' runs; a fresh one by default. Of one run, so not for a
            decorator. Of one that is longer than 256 characters they are told a digest.
        graph: the agent step graph of this type: the graph, its document, or the path of a file with it. It is
            declared to a server once, before the first hint.
        tenant: who the run is for; of more than 128 characters a digest.
        reuse: let the server serve whole messages that stood in other prompts of this kind with the KV they had there,
            which is fast and not exact, if its ``reuse.mode`` is on. See also :func:`kvflow.segment`. By default what
            the workflow says in which this one runs, and else no.
        end: False if the run goes on after this block, under the same ``id``: in the next request of a conversation, in
            another process. A later block that ends it, or the server's ``intake.workflow_idle_s``, does. Without an
            ``id`` nothing could go on with it, and it ends nevertheless.

    Raises:
        ValueError: ``type`` is empty, or longer than 128 characters.
        TypeError: ``type`` is not a text, ``id`` or ``tenant`` no text, number or UUID, or a function is decorated with
            an ``id``.
    """
    document = None if graph is None else document_of(graph, type or "default")
    if type is None:
        type = type_of(document)
    if not isinstance(type, str):
        raise TypeError(f"workflow() takes a type of workflow, not {type!r}; as a decorator write @kvflow.workflow()")
    checked("workflow", StepFact, workflow_id="-", agent="-", workflow_type=type)
    options = WorkflowOptions(
        type=type,
        id=known_as("workflow id", id, MAX_IDENTIFIER),
        graph=None if document is None else GraphDeclaration(workflow_type=type, body=document),
        tenant=known_as("tenant", tenant, MAX_NAME) or None,
        reuse=reuse,
        end=end,
    )
    return Workflow(options)


def step(
    name: str,
    *,
    fixed_prompt_messages: int | None = None,
    fixed_prompt_tokens: int | None = None,
    tools: Sequence[str] = (),
    final: bool = False,
) -> Step:
    """Run a block as one step of an agent; see :func:`agent`, which does so for functions.

    Args:
        name: the agent, as in the agent step graph.
        fixed_prompt_messages: messages at the start of the prompt that every run of this agent shares.
        fixed_prompt_tokens: the same, counted in tokens.
        tools: names of the tools this agent may call; servers take no notice of them yet.
        final: the workflow ends with this step.

    Raises:
        ValueError: an option is out of range.
    """
    return Step(_step_options("step", name, fixed_prompt_messages, fixed_prompt_tokens, tools, final))


@overload
def agent(name: F, /) -> F: ...
@overload
def agent(
    name: str | None = None,
    /,
    *,
    fixed_prompt_messages: int | None = None,
    fixed_prompt_tokens: int | None = None,
    tools: Sequence[str] = (),
    final: bool = False,
) -> Callable[[F], F]: ...
def agent(
    name: Any = None,
    /,
    *,
    fixed_prompt_messages: int | None = None,
    fixed_prompt_tokens: int | None = None,
    tools: Sequence[str] = (),
    final: bool = False,
) -> Any:
    """Make every call of a function one step of an agent: ``@agent`` or ``@agent("planner", ...)``.

    LLM requests of the call are hinted as this agent's. Called outside a workflow, the step is a workflow of its own,
    whose type is the agent's name.

    Args:
        name: the agent, as in the agent step graph; the function's name by default.
        fixed_prompt_messages: messages at the start of the prompt that every run of this agent shares.
        fixed_prompt_tokens: the same, counted in tokens.
        tools: names of the tools this agent may call; servers take no notice of them yet.
        final: the workflow ends with this step.

    Raises:
        ValueError: an option is out of range.
        TypeError: what is decorated is a class, or cannot be called.
    """

    def decorate(fn: F, name: str | None = None) -> F:
        called = _name_of(fn) if name is None else name
        options = _step_options("agent", called, fixed_prompt_messages, fixed_prompt_tokens, tools, final)
        return wrap(fn, lambda *args, **kwargs: Step(options))

    return (lambda fn: decorate(fn, name)) if name is None or isinstance(name, str) else decorate(name)


@overload
def tool(name: F, /) -> F: ...
@overload
def tool(name: str | None = None, /, *, expected_s: float | None = None, verb: Verb = None) -> Callable[[F], F]: ...
def tool(name: Any = None, /, *, expected_s: float | None = None, verb: Verb = None) -> Any:
    """Report every call of a function as a tool call of the agent that runs: ``@tool`` or ``@tool("search", ...)``.

    Outside every workflow it does nothing.

    Args:
        name: the tool; the function's name by default.
        expected_s: how long a call usually takes, if you know.
        verb: what the tool is told to do, if calls differ much in how long they take: a word, or a function that tells
            it from the call's arguments (a method's without ``self``), such as ``lambda command: command.split()[0]``.

    Raises:
        ValueError: an option is out of range.
        TypeError: what is decorated is a class, or cannot be called; or ``verb`` is an async function.
    """
    if inspect.iscoroutinefunction(verb):
        raise TypeError("verb must be a plain function: it is asked when the call begins, and not awaited")

    def decorate(fn: F, name: str | None = None) -> F:
        tool_name = _name_of(fn) if name is None else name
        word = verb if isinstance(verb, str) else None
        checked(
            "tool",
            ToolFact,
            workflow_id="-",
            agent="-",
            tool=tool_name,
            event="start",
            expected_s=expected_s,
            verb=word,
        )
        return wrap(fn, lambda *args, **kwargs: ToolCall(tool_name, expected_s, partial(_word, verb, args, kwargs)))

    return (lambda fn: decorate(fn, name)) if name is None or isinstance(name, str) else decorate(name)


def tool_call(name: str, *, expected_s: float | None = None, verb: str | None = None) -> ToolCall:
    """Report a block as a tool call of the agent that runs; see :func:`tool`, which does so for functions::

        with kvflow.tool_call(call.name):
            answer = registry[call.name](**call.arguments)

    Args:
        name: the tool, as the model calls it: what is too long is cut.
        expected_s: how long the call usually takes, if you know.
        verb: what the tool is told to do; cut as well.

    Raises:
        ValueError: ``expected_s`` is out of range.
    """
    name, word = _legible(name) or "tool", None if verb is None else _legible(verb) or None
    checked("tool_call", ToolFact, workflow_id="-", agent="-", tool=name, event="start", expected_s=expected_s)
    return ToolCall(name, expected_s, lambda: word)


def _word(verb: Verb, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if verb is None or isinstance(verb, str):
        return verb
    try:
        word = verb(*args, **kwargs)
        if word is None:
            return None
        return _legible(word) or None
    except Exception:
        degraded("the verb of a tool call could not be told")
        return None


def _legible(text: object) -> str:
    """A text as servers take it: no longer than a name may be, and Unicode."""
    return str(text)[:MAX_NAME].encode(errors="replace").decode()


def _step_options(
    call: str,
    name: str,
    fixed_prompt_messages: int | None,
    fixed_prompt_tokens: int | None,
    tools: Sequence[str],
    final: bool,
) -> StepOptions:
    if isinstance(tools, str):
        raise TypeError(f"tools must be a list of names, not the text {tools!r}")
    fact = checked(
        call,
        StepFact,
        workflow_id="-",
        agent=name,
        fixed_prompt_messages=fixed_prompt_messages,
        fixed_prompt_tokens=fixed_prompt_tokens,
        tools=list(tools),
        final=final,
    )
    return StepOptions(
        agent=name,
        fixed_prompt_messages=fixed_prompt_messages,
        fixed_prompt_tokens=fixed_prompt_tokens,
        tools=tuple(fact.tools),
        final=final,
    )


def _name_of(fn: Any) -> str:
    named = fn.__func__ if isinstance(fn, staticmethod | classmethod) else fn
    return getattr(named, "__name__", type(named).__name__)
