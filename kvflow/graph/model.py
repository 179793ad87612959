"""The agent step graph: which agent can follow which, and under what condition."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Self

import networkx as nx

from kvflow.errors import BadProbabilityError, GraphError, UnknownAgentError, UnreachableEndError
from kvflow.graph.flow import Flow, compile_flow, members
from kvflow.graph.nodes import (
    END,
    MAX_AGENTS,
    MAX_EDGES,
    MAX_FIXED_PROMPT_TOKENS,
    START,
    Edge,
    Join,
    check_agent_name,
)
from kvflow.graph.steps import steps_to_execution

PROBABILITY_SLACK = 1e-9


class AgentStepGraph:
    """The agents of one kind of workflow and the order they run in.

    Edges out of one agent with a probability are alternatives: exactly one of them is taken, or none with the
    probability that is left. Edges without one are always taken, all in parallel. If no edge leads to END, agents
    without out-edges lead there. Two graphs are equal if names, agents and edges are, in whatever order.

    >>> graph = AgentStepGraph("code_review")
    >>> graph.edge(START, "planner").fan_out("planner", ["security", "style"], join="critic")
    AgentStepGraph('code_review', agents=4, edges=5)
    >>> graph.edge("critic", "planner", probability=0.3).edge("critic", END, probability=0.7).validate()

    Attributes:
        name: the workflow type.
        version: grows with every change.

    Source: KVFlow (arXiv 2507.07400) section 3; probabilities are ours.
    """

    def __init__(self, name: str = "workflow") -> None:
        self.name = name
        self.version = 0
        self._digraph = nx.DiGraph()
        self._digraph.add_node(START, join=Join.ANY, fixed_prompt_tokens=None)
        self._digraph.add_node(END, join=Join.ANY, fixed_prompt_tokens=None)
        self._edges = 0
        self._flow: Flow | None = None

    def agent(self, name: str, *, join: Join | str | None = None, fixed_prompt_tokens: int | None = None) -> Self:
        """Add an agent, or change the one of that name.

        Args:
            name: the agent; any text but START and END.
            join: what an agent with several predecessors waits for; ANY unless said otherwise.
            fixed_prompt_tokens: tokens at the start of the prompt that every run of this agent shares.
                None, here and for ``join``, keeps what was said before.

        Raises:
            GraphError: the name, the join or the token count is not a valid one, or the graph is full.
        """
        check_agent_name(name)
        if join not in (None, *Join):
            raise GraphError(f"agent {name!r}: join must be {' or '.join(map(repr, map(str, Join)))}, got {join!r}")
        if fixed_prompt_tokens is not None and not _is_token_count(fixed_prompt_tokens):
            wanted = f"a whole number from 0 to {MAX_FIXED_PROMPT_TOKENS}"
            raise GraphError(f"agent {name!r}: fixed_prompt_tokens must be {wanted}, got {fixed_prompt_tokens!r}")
        if name not in self and len(self) >= MAX_AGENTS:
            raise GraphError(f"graph {self.name!r} has {MAX_AGENTS} agents, the most there can be; leave out {name!r}")
        node = self._digraph.nodes.get(name, {"join": Join.ANY, "fixed_prompt_tokens": None})
        if join is not None:
            node = node | {"join": Join(join)}
        if fixed_prompt_tokens is not None:
            node = node | {"fixed_prompt_tokens": fixed_prompt_tokens}
        self._digraph.add_node(name, **node)
        return self._changed()

    def edge(self, source: str, target: str, *, probability: float | None = None) -> Self:
        """Add an edge, or change the probability of the one there is. Unknown agents are added.

        Args:
            source: an agent or START.
            target: an agent or END.
            probability: of this alternative in the source's exclusive branch, 0 to 1; None means always.

        Raises:
            BadProbabilityError: the probability is not between 0 and 1.
            GraphError: the edge leaves END or enters START, a new agent's name is invalid, or the graph is full.
        """
        if source == END or target == START:
            raise GraphError(f"edge {source!r} -> {target!r}: nothing follows END and nothing precedes START")
        if probability is not None and not 0 <= probability <= 1:
            raise BadProbabilityError(f"edge {source!r} -> {target!r}: probability {probability} is not within 0 to 1")
        if not self._digraph.has_edge(source, target) and self._edges >= MAX_EDGES:
            raise GraphError(f"graph {self.name!r} has {MAX_EDGES} edges, the most there can be; leave some out")
        for name in (source, target):
            if name not in self._digraph:
                self.agent(name)
        self._edges += not self._digraph.has_edge(source, target)
        self._digraph.add_edge(source, target, probability=None if probability is None else float(probability))
        return self._changed()

    def chain(self, *names: str) -> Self:
        """Add an edge from each name to the next. Raises as ``edge`` does."""
        for source, target in pairwise(names):
            self.edge(source, target)
        return self

    def fan_out(self, source: str, targets: Iterable[str], *, join: str | None = None) -> Self:
        """Let an agent start several others in parallel and, with ``join``, one agent wait for all of them.

        Raises as ``edge`` does.
        """
        for target in targets:
            self.edge(source, target)
            if join is not None:
                self.edge(target, join)
        return self if join in (None, END) else self.agent(join, join=Join.ALL)

    def validate(self) -> None:
        """Check what only shows once the graph is complete.

        Raises:
            BadProbabilityError: the alternatives of one agent add up to more than 1.
            GraphError: nothing follows START, or an agent can never run.
            UnreachableEndError: no path leads from START to END.
        """
        for source, branches in self._digraph.adjacency():
            total = math.fsum(edge["probability"] or 0.0 for edge in branches.values())
            if total > 1 + PROBABILITY_SLACK:
                raise BadProbabilityError(
                    f"graph {self.name!r}: the alternatives after {source!r} add up to {total:g}; at most 1 is possible"
                )
        if not self._digraph.succ[START]:
            raise GraphError(f"graph {self.name!r} has no edge from START; add one to the agent that runs first")
        steps = steps_to_execution(self, {START})
        never = [name for name in self.agents if steps[name] is None]
        if never:
            raise GraphError(
                f"graph {self.name!r}: {', '.join(map(repr, never))} can never run: no path from START leads there, "
                "or joins wait for each other; add an edge to it, or set its join to any"
            )
        if steps[END] is None:
            raise UnreachableEndError(f"graph {self.name!r}: no path leads from START to END; add an edge to END")

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents in the order they were added."""
        return tuple(name for name in self._digraph if name not in (START, END))

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges as declared, grouped by source."""
        return tuple(self._digraph.edges)

    @property
    def flow(self) -> Flow:
        """This version compiled for the algorithms of this package; cached until the graph changes."""
        if self._flow is None:
            self._flow = compile_flow(self._digraph)
        return self._flow

    def successors(self, name: str) -> tuple[str, ...]:
        """Return what follows an agent or START. Raises UnknownAgentError."""
        return tuple(self._digraph.succ[self._known(name)])

    def predecessors(self, name: str) -> tuple[str, ...]:
        """Return what an agent or END follows. Raises UnknownAgentError."""
        return tuple(self._digraph.pred[self._known(name)])

    def waits_for(self, name: str) -> tuple[str, ...]:
        """Return what an agent with ``Join.ALL`` waits for: its predecessors but those that only run after it.

        Other agents wait for nothing. Raises UnknownAgentError.
        """
        self._known(name)
        return tuple(self.flow.names[u] for u in members(self.flow.required[self.flow.index[name]]))

    def alternatives(self, name: str) -> tuple[str, ...]:
        """Return the successors that exclude each other. Raises UnknownAgentError."""
        targets = self._digraph.succ[self._known(name)]
        return tuple(target for target, edge in targets.items() if edge["probability"] is not None)

    def join(self, name: str) -> Join:
        """Return what an agent waits for. Raises UnknownAgentError."""
        return self._digraph.nodes[self._known(name)]["join"]

    def fixed_prompt_tokens(self, name: str) -> int | None:
        """Return the declared length of an agent's fixed prompt, None if unknown. Raises UnknownAgentError."""
        return self._digraph.nodes[self._known(name)]["fixed_prompt_tokens"]

    def probability(self, source: str, target: str) -> float | None:
        """Return the probability of an edge, None if it is always taken.

        Raises:
            UnknownAgentError: an end of the edge is not in the graph.
            GraphError: there is no such edge.
        """
        if not self._digraph.has_edge(self._known(source), self._known(target)):
            raise GraphError(f"graph {self.name!r} has no edge {source!r} -> {target!r}")
        return self._digraph.edges[source, target]["probability"]

    def digraph(self) -> nx.DiGraph:
        """Return a copy as networkx graph, for plotting and for networkx's own algorithms."""
        return self._digraph.copy()

    def copy(self) -> AgentStepGraph:
        """Return an independent graph that equals this one."""
        twin = AgentStepGraph(self.name)
        twin._digraph = self.digraph()
        twin._edges = self._edges
        return twin

    def __contains__(self, name: object) -> bool:
        return name in self._digraph and name not in (START, END)

    def __len__(self) -> int:
        return len(self._digraph) - 2

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AgentStepGraph):
            return NotImplemented
        mine, theirs = self._digraph, other._digraph
        return self.name == other.name and mine.nodes == theirs.nodes and mine.adj == theirs.adj

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"AgentStepGraph({self.name!r}, agents={len(self)}, edges={self._edges})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_flow": None}

    def _known(self, name: str) -> str:
        if name not in self._digraph:
            raise UnknownAgentError(name, tuple(sorted(self.agents)))
        return name

    def _changed(self) -> Self:
        self.version += 1
        self._flow = None
        return self


def _is_token_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= MAX_FIXED_PROMPT_TOKENS
