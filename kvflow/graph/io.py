"""Graphs as documents: dict, JSON, YAML, files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from kvflow.errors import GraphError
from kvflow.graph.model import AgentStepGraph
from kvflow.graph.nodes import (
    END,
    MAX_AGENTS,
    MAX_EDGES,
    MAX_FIXED_PROMPT_TOKENS,
    MAX_NAME_CHARS,
    START,
    Edge,
    Join,
)

MAX_DOCUMENT_CHARS = 1 << 20

_Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Agent(_Strict):
    join: Annotated[Join, Field(strict=False)] = Join.ANY
    fixed_prompt_tokens: Annotated[int, Field(ge=0, le=MAX_FIXED_PROMPT_TOKENS)] | None = None


class _Edge(_Strict):
    source: _Name = Field(alias="from")
    target: _Name = Field(alias="to")
    probability: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None


def _from_pair(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) in (2, 3):
        return dict(zip(("from", "to", "probability"), value, strict=False))
    return value


def _from_nothing(value: object) -> object:
    return {} if value is None else value


class _Document(_Strict):
    name: _Name = "workflow"
    agents: Annotated[dict[_Name, Annotated[_Agent, BeforeValidator(_from_nothing)]], Field(max_length=MAX_AGENTS)] = {}
    edges: Annotated[list[Annotated[_Edge, BeforeValidator(_from_pair)]], Field(max_length=MAX_EDGES)]


def to_dict(graph: AgentStepGraph) -> dict[str, Any]:
    """Return the document of a graph: name, agents with what is not default, edges as pairs or with probability."""
    agents: dict[str, dict[str, Any]] = {}
    for name in graph.agents:
        agents[name] = {}
        if graph.join(name) is not Join.ANY:
            agents[name]["join"] = str(graph.join(name))
        if (tokens := graph.fixed_prompt_tokens(name)) is not None:
            agents[name]["fixed_prompt_tokens"] = tokens
    edges: list[Any] = []
    for source, target in graph.edges:
        probability = graph.probability(source, target)
        if probability is None:
            edges.append([source, target])
        else:
            edges.append({"from": source, "to": target, "probability": probability})
    return {"name": graph.name, "agents": agents, "edges": edges}


def from_dict(document: Mapping[str, Any]) -> AgentStepGraph:
    """Build and validate the graph of a document.

    If the document has agents, edges may name these only; otherwise the edges say what agents there are.

    Raises:
        GraphError: a field is missing, unknown or out of range; an edge is there twice or names an undeclared agent;
            or the graph is refused by ``AgentStepGraph.validate`` (also as UnreachableEndError or BadProbabilityError).
    """
    try:
        checked = _Document.model_validate(document)
    except ValidationError as error:
        raise _explained(error) from None
    graph = AgentStepGraph(checked.name)
    for name, agent in checked.agents.items():
        graph.agent(name, join=agent.join, fixed_prompt_tokens=agent.fixed_prompt_tokens)
    declared: set[Edge] = set()
    for i, edge in enumerate(checked.edges):
        for end in (edge.source, edge.target):
            if checked.agents and end not in checked.agents and end not in (START, END):
                raise GraphError(f"graph document: edges.{i}: agent {end!r} is not declared; add it to agents")
        if (edge.source, edge.target) in declared:
            raise GraphError(f"graph document: edges.{i}: {edge.source!r} -> {edge.target!r} is there twice; drop one")
        declared.add((edge.source, edge.target))
        graph.edge(edge.source, edge.target, probability=edge.probability)
    graph.validate()
    return graph


def dumps_json(graph: AgentStepGraph) -> str:
    """Return the document of a graph as JSON text."""
    return json.dumps(to_dict(graph), indent=2, ensure_ascii=False) + "\n"


def loads_json(text: str) -> AgentStepGraph:
    """Build the graph of a JSON text. Raises GraphError as ``from_dict`` does, and for text that is not JSON."""
    _check_size(text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"graph document: not JSON: {error}") from None
    return from_dict(document)


def dumps_yaml(graph: AgentStepGraph) -> str:
    """Return the document of a graph as YAML text."""
    import yaml

    # PyYAML writes exotic line breaks such as U+0085 unescaped, and then reads them back as spaces.
    readable = all(name.isprintable() for name in (graph.name, *graph.agents))
    return yaml.safe_dump(to_dict(graph), sort_keys=False, allow_unicode=readable, default_flow_style=None)


def loads_yaml(text: str) -> AgentStepGraph:
    """Build the graph of a YAML text. Raises GraphError as ``from_dict`` does, and for text that is not YAML."""
    import yaml

    _check_size(text)
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise GraphError(f"graph document: not YAML: {error}") from None
    return from_dict(document)


def load(path: str | Path) -> AgentStepGraph:
    """Build the graph of a ``.json``, ``.yaml`` or ``.yml`` file.

    Raises:
        GraphError: the suffix is another one, or the content is refused; the message names the file.
        OSError: the file cannot be read.
    """
    path = Path(path)
    readers = {".json": loads_json, ".yaml": loads_yaml, ".yml": loads_yaml}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise GraphError(f"{path}: a graph file ends in {', '.join(readers)}")
    try:
        return reader(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise GraphError(f"{path}: not UTF-8 text: {error}") from None
    except GraphError as error:
        error.args = (f"{path}: {error}",)
        raise


def _check_size(text: str) -> None:
    if len(text) > MAX_DOCUMENT_CHARS:
        raise GraphError(f"graph document: {len(text)} characters; at most {MAX_DOCUMENT_CHARS} are allowed")


def _explained(error: ValidationError) -> GraphError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the document"
    return GraphError(f"graph document: {where}: {first['msg']}; docs/hints.md has the format (Graph document)")
