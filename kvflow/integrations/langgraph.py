"""LangGraph: the agent step graph of a compiled app, and its nodes and tools as steps and tool calls.

    from kvflow.integrations.langgraph import Hints

    app = builder.compile()
    app.invoke(inputs, config={"callbacks": [Hints("support", app)]})

Requests that a node's model sends through an instrumented client (:func:`kvflow.instrument`) then say which node of
which run asks. The app stays as it is.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from kvflow.client import step, workflow
from kvflow.client.context import StepContext, active_step, current_step
from kvflow.client.degraded import degraded
from kvflow.client.scopes import Scope, Step, Workflow, WorkflowOptions, known_as
from kvflow.client.tools import ToolCall
from kvflow.errors import GraphError, MissingExtraError
from kvflow.graph import END, START, AgentStepGraph, Join
from kvflow.hints.fields import MAX_IDENTIFIER, MAX_NAME

try:
    from langchain_core.callbacks import BaseCallbackHandler  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise MissingExtraError("langgraph", "the LangGraph adapter") from error

_ENDS: dict[str, str] = {"__start__": START, "__end__": END}
_NO_AGENTS = frozenset({*_ENDS, START, END})
_MOST = 65536
"""Runs that are open at once; those that were abandoned, such as streams nobody reads to the end, are left then."""
_MOST_ASKED = 4096
_PREBUILT = frozenset({"agent", "model", "tools"})
"""Nodes of the agents that LangGraph and LangChain make: the one that asks, under two names, and its tools."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """What LangChain calls a run: of the app, a node, a tool, or of a chain in them.

    Attributes:
        main: the step of what runs in the app outside every node; None where the app's own run is not known.
        scope: what is told of it; None for a chain.
        before: the step that was current before.
        node: the step of the node that the run is, or is in.
        in_tool: whether it is a tool, or in one and in no node inside that.
    """

    main: Step | None
    node: Step | None = None
    scope: Scope[Any] | None = None
    before: Step | None = None
    in_tool: bool = False


@dataclass(slots=True)
class _Asked:
    """The agents of a run that have asked an LLM, and the step that has asked last."""

    agents: set[str] = field(default_factory=set)
    last: StepContext | None = None


def graph_of(app: Any, name: str = "workflow") -> AgentStepGraph:
    """Read the agent step graph of a compiled LangGraph app.

    Edges that always hold become edges that are always taken, in parallel if there are several; conditional ones become
    alternatives, equally likely: LangGraph says no more, and servers learn nothing about a declared graph. A node with
    one edge from several (``add_edge(["a", "b"], "c")``) waits for all of them. A node with several sets of conditional
    edges, of each of which one is taken, cannot be told.

    Args:
        app: what ``StateGraph.compile`` returns.
        name: the workflow type.

    Raises:
        GraphError: it is no agent step graph, e.g. because the end cannot be reached.
    """
    drawn, builder = app.get_graph(), getattr(app, "builder", None)
    for source, choices in getattr(builder, "branches", {}).items():
        if len(choices) > 1:
            raise GraphError(f"node {source!r} has {len(choices)} sets of conditional edges: give it one, or no graph")
    made = AgentStepGraph(name)
    for node in drawn.nodes:
        if node not in _ENDS:
            made.agent(node)
    for source in drawn.nodes:
        leaving = [edge for edge in drawn.edges if edge.source == source]
        chosen = [edge for edge in leaving if edge.conditional]
        for edge in leaving:
            source_name, target_name = (str(_ENDS.get(node, node)) for node in (source, edge.target))
            made.edge(source_name, target_name, probability=1 / len(chosen) if edge.conditional else None)
    for starts, end in getattr(builder, "waiting_edges", ()):
        if end in made:
            made.agent(end, join=Join.ALL)
            if set(made.waits_for(end)) != set(starts):  # it is started as well, and not by the way back of a loop
                made.agent(end, join=Join.ANY)
    made.validate()
    return made


class Hints(BaseCallbackHandler):
    """Tells servers what an app does. One object serves any number of runs, also at the same time.

    Args:
        workflow_type: what runs of the app are called.
        app: the compiled app, whose graph is declared; None to let the server learn it, as it does where the app has a
            graph that it cannot be told (see :func:`graph_of`).
        tenant: who its runs are for.
        by_thread: runs with the same ``thread_id`` are one workflow, which goes on from run to run, as a conversation
            with a checkpointer does; servers let it go when it has been idle for long. Else every run is its own, and
            so is that of a chain with the app in it, of which LangChain does not tell the thread.

    Raises:
        ValueError: the workflow type is empty, or longer than 128 characters.
    """

    run_inline = True
    """Context variables set by it reach what the node runs only from the node's own task."""

    def __init__(
        self, workflow_type: str, app: Any | None = None, *, tenant: str | None = None, by_thread: bool = False
    ) -> None:
        graph = None
        if app is not None:
            try:
                graph = graph_of(app, workflow_type)
            except GraphError:
                degraded("a LangGraph app's graph cannot be declared, servers learn it instead: %s", workflow_type)
        self._options = workflow(workflow_type, graph=graph, tenant=tenant).options
        self._by_thread = by_thread
        self._open: OrderedDict[UUID, _Run] = OrderedDict()
        self._apps: set[Workflow] = set()
        self._asked: OrderedDict[str, _Asked] = OrderedDict()

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """The app starts, or one of its nodes.

        A prebuilt agent that is a node of the app is one agent: its node. Nodes of other apps inside a node are steps
        called ``outer/inner``.

        The app has a parent where it is part of a chain, or of an app without hints, and has been given its callbacks
        by ``with_config``, or where something else traces what is around it. Nodes are found by their parents, since
        an app that is streamed runs each of them in the context of whoever wants more; and whoever reads a stream is
        not part of it.
        """
        node = (metadata or {}).get("langgraph_node")
        main, outer = self._main_of(parent_run_id), self._node_of(parent_run_id)
        if parent_run_id is None or (main is None and not self._is_in_app(active_step())):
            before = current_step.get()
            started = Workflow(self._options_of((metadata or {}).get("thread_id")))
            started.__enter__()
            self._apps.add(started)
            self._keep(run_id, _Run(main=current_step.get(), scope=started, before=before))
            current_step.set(before)
        elif node is None or more.get("name") != node or _is_of(outer, node):
            self._keep(run_id, _Run(main=main, node=outer, in_tool=self._in_tool(parent_run_id)))
        else:
            name = node if outer is None else f"{outer.options.agent}/{node}"
            self._enter(run_id, step(name[:MAX_NAME]) if node not in _NO_AGENTS else None, main)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **more: Any) -> None:
        """The app, or a node, is done."""
        self._leave(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        """The app, or a node, has failed."""
        self._leave(run_id)

    def on_chat_model_start(self, serialized: dict[str, Any] | None, messages: Any, **more: Any) -> None:
        """A chat model is asked."""
        self._note_who_asks(more.get("parent_run_id"))

    def on_llm_start(self, serialized: dict[str, Any] | None, prompts: Any, **more: Any) -> None:
        """Another model is asked."""
        self._note_who_asks(more.get("parent_run_id"))

    def on_tool_start(self, serialized: dict[str, Any] | None, input_str: str, *, run_id: UUID, **more: Any) -> None:
        """A tool is called."""
        name = more.get("name") or (serialized or {}).get("name") or "tool"
        asked = self._who_waits()
        call = ToolCall(name) if asked is None else ToolCall(name, agent=asked.agent, step_id=asked.step_id)
        self._enter(run_id, call, self._main_of(more.get("parent_run_id")))

    def on_tool_end(self, output: Any, *, run_id: UUID, **more: Any) -> None:
        """A tool has answered."""
        self._leave(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        """A tool has failed."""
        self._leave(run_id)

    def _options_of(self, thread_id: object) -> WorkflowOptions:
        """What the workflow of a run is started with."""
        if self._by_thread and thread_id is None:
            degraded("a run has no thread_id, as those of chains have none: it is a workflow of its own", trace=False)
        if not self._by_thread or thread_id is None:
            return self._options
        name = known_as("workflow id", f"{self._options.type}/{thread_id}", MAX_IDENTIFIER)
        return replace(self._options, id=name, end=False)

    def _is_in_app(self, step: Step | None) -> bool:
        """Whether a step is in a run of the app that is under way."""
        while step is not None and step.workflow not in self._apps:
            step = step.outer
        return step is not None

    def _main_of(self, run_id: UUID | None) -> Step | None:
        """The step of what runs outside every node of the app that a run is part of."""
        run = self._open.get(run_id) if run_id is not None else None
        return run.main if run is not None else None

    def _node_of(self, run_id: UUID | None) -> Step | None:
        """The step of the innermost node that a run is in."""
        run = self._open.get(run_id) if run_id is not None else None
        return run.node if run is not None else None

    def _in_tool(self, run_id: UUID | None) -> bool:
        """Whether a run is a tool, or in one and in no node inside it."""
        run = self._open.get(run_id) if run_id is not None else None
        return run is not None and run.in_tool

    def _enter(self, run_id: UUID, scope: Any | None, main: Step | None) -> None:
        before = current_step.get()
        if main is not None and not _is_in(active_step(), main.workflow):
            current_step.set(main)
        if scope is not None:
            scope.__enter__()
        node = scope if isinstance(scope, Step) else None
        in_tool = isinstance(scope, ToolCall)
        self._keep(run_id, _Run(main=main, node=node, scope=scope, before=before, in_tool=in_tool))

    def _keep(self, run_id: UUID, run: _Run) -> None:
        self._open[run_id] = run
        if len(self._open) > _MOST:
            self._leave(next(iter(self._open)))

    def _leave(self, run_id: UUID) -> None:
        run = self._open.pop(run_id, None)
        if run is None:
            return
        if run.scope is not None:
            run.scope.__exit__(None, None, None)
        if isinstance(run.scope, Step):  # who reads a stream may be left with it: not in the run
            run.scope.outer = run.before
        if run.main is not None and current_step.get() is run.main:
            current_step.set(run.before)
        if isinstance(run.scope, Workflow):
            self._apps.discard(run.scope)
            self._asked.pop(run.scope.id, None)

    def _note_who_asks(self, caller: UUID | None) -> None:
        step = active_step()
        if step is None or self._in_tool(caller):  # a tool that asks makes no agent of the node that runs it
            return
        asked = self._asked.setdefault(step.workflow.id, _Asked())
        asked.last = step.context
        if len(asked.agents) < _MOST_ASKED:
            asked.agents.add(step.context.agent)
        if len(self._asked) > _MOST_ASKED:
            self._asked.popitem(last=False)

    def _who_waits(self) -> StepContext | None:
        """The step that waits for a tool; None for the one that runs it.

        A node that only runs tools, such as a ``ToolNode``, asks no LLM: it runs them for the node that asked last.
        """
        step = active_step()
        asked = self._asked.get(step.workflow.id) if step is not None else None
        if step is None or asked is None or step.context.agent in asked.agents:
            return None
        return asked.last


def _is_of(outer: Step | None, node: str) -> bool:
    """Whether a node inside another one is a part of it: a prebuilt agent's, or its app, which bears its name."""
    return outer is not None and (node in _PREBUILT or node == outer.options.agent.rpartition("/")[2])


def _is_in(step: Step | None, workflow: Workflow) -> bool:
    """Whether a step is part of a workflow, be it in one that runs inside it."""
    while step is not None and step.workflow is not workflow:
        step = step.outer
    return step is not None
