"""The agent step graph of every workflow type, declared or learned."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kvflow.errors import GraphError
from kvflow.graph import AgentStepGraph, TransitionLearner, from_dict
from kvflow.hints.fields import Name
from kvflow.hints.models import first_problem

_TYPE: TypeAdapter[str] = TypeAdapter(Name)
_NEW_SHARE = 0.25
"""Of all types, those that have had one run and are sure of their place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGraph:
    """A graph and where it comes from."""

    graph: AgentStepGraph
    declared: bool


class GraphBook:
    """Graphs by workflow type; declared ones win over learned ones.

    Of what is learned, types that have had one run make room first while they are more than a quarter: where types are
    inferred, many prompts are a type of their own that never comes again.

    Source: Johnson and Shasha, 2Q (VLDB 1994, §3).

    Args:
        learn: learn graphs for types that declare none.
        max_types: types to keep, as many again that are declared; beyond it the least recently used one goes.
    """

    def __init__(self, *, learn: bool = True, max_types: int = 1024) -> None:
        self._learn = learn
        self._max_types = max_types
        self._declared: OrderedDict[str, AgentStepGraph] = OrderedDict()
        self._proven: OrderedDict[str, TransitionLearner] = OrderedDict()
        self._new: OrderedDict[str, TransitionLearner] = OrderedDict()

    def declare(self, workflow_type: str, document: Mapping[str, Any]) -> AgentStepGraph:
        """Set the graph of a workflow type from its document (see :func:`kvflow.graph.from_dict`).

        Clients declare again and again: a graph that is what it was stays the same object, with what is computed of it.

        Raises:
            GraphError: the document is malformed or the graph invalid, and the old one stays; or no fact may name the
                type.
        """
        try:
            _TYPE.validate_python(workflow_type)
        except ValidationError as error:
            wrong = f"workflow type {workflow_type[:40]!r}: {first_problem(error)[1]}"
            raise GraphError(f"{wrong}; call it as the facts do that begin its workflows") from None
        graph, known = from_dict(document), self._declared.get(workflow_type)
        if known is not None and known == graph:
            graph = known
        self._declared[workflow_type] = graph
        self._declared.move_to_end(workflow_type)
        self._proven.pop(workflow_type, None)
        self._new.pop(workflow_type, None)
        if len(self._declared) > self._max_types:
            self._declared.popitem(last=False)
        return graph

    def find(self, workflow_type: str) -> KnownGraph | None:
        """Graph of a type, or None while nothing is known of it."""
        declared = self._declared.get(workflow_type)
        if declared is not None:
            self._declared.move_to_end(workflow_type)
            return KnownGraph(graph=declared, declared=True)
        learner = self._proven.get(workflow_type) or self._new.get(workflow_type)
        learned = learner.graph() if learner else None
        return KnownGraph(graph=learned, declared=False) if learned else None

    def learner(self, workflow_type: str) -> TransitionLearner | None:
        """Learner that should observe runs of a type; None when its graph is declared or learning is off."""
        if not self._learn or workflow_type in self._declared:
            return None
        learner = self._proven.get(workflow_type)
        if learner is not None:
            self._proven.move_to_end(workflow_type)
            return learner
        learner = self._new.pop(workflow_type, None) or TransitionLearner(workflow_type)
        (self._proven if learner.runs > 1 else self._new)[workflow_type] = learner
        if len(self._new) + len(self._proven) > self._max_types:
            too_many_new = len(self._new) > max(1, self._max_types * _NEW_SHARE) or not self._proven
            (self._new if too_many_new else self._proven).popitem(last=False)
        return learner

    def types(self) -> list[str]:
        """All types something is known of, sorted."""
        return sorted(self._declared.keys() | self._proven.keys() | self._new.keys())
