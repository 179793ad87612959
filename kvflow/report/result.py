"""The result document of a run as records. Whatever a run did not record has a neutral default here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from kvflow.errors import GraphError
from kvflow.graph import END, START, AgentStepGraph, from_dict
from kvflow.report.layers import ordered


def present(data: Any) -> Any:
    """Drop null, NaN and infinity, so that they mean the same as an entry that is not there."""
    if not isinstance(data, Mapping):
        return data
    return {key: value for key, value in data.items() if not _is_nothing(value)}


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


class Record(BaseModel):
    """Part of a document: unknown fields are left out, null and what is no number count as absent."""

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_absent(cls, data: Any) -> Any:
        return present(data)


class Step(Record):
    """One step of an agent. The four kinds of prompt tokens add up to the prompt; times of a round share a clock."""

    round: int = 0
    workflow: str = ""
    agent: str = "?"
    start_s: float = 0.0
    latency_s: float = 0.0
    prompt_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    recomputed_tokens: int = 0
    new_tokens: int = 0
    output_tokens: int | None = None

    @property
    def end_s(self) -> float:
        """When the step was answered."""
        return self.start_s + max(self.latency_s, 0.0)


class Workflow(Record):
    """One run of the graph."""

    round: int = 0
    workflow: str = ""
    start_s: float | None = None
    end_s: float | None = None


class Sample(Record):
    """Cached tokens at one moment, by ``tier/class``."""

    at_s: float = 0.0
    tokens: Annotated[dict[str, float], BeforeValidator(present)] = {}


class Arm(Record):
    """One configuration of the comparison, and what it did."""

    name: str = "unnamed arm"
    policy: str = ""
    kvflow: bool = False
    steps: tuple[Step, ...] = ()
    workflows: tuple[Workflow, ...] = ()
    residency: tuple[Sample, ...] = ()


class Metric(Record):
    """One measured quantity on both sides; None where it was not measured."""

    metric: str = "unnamed metric"
    unit: str = ""
    baseline: float | None = None
    kvflow: float | None = None
    ratio: float | None = None
    lower_is_better: bool = True


class Document(Record):
    """What every result document says of where it comes from. ``read`` is the way to get one."""

    kind: str = "run"
    created: str = ""
    command: str = ""
    git: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    settings: dict[str, Any] = {}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Read a result document; absent and null fields are fine.

        Raises:
            ValueError: a field that is there has the wrong type; the message names it.
        """
        return cls.model_validate(document)


class Result(Document):
    """A whole run."""

    seams_hold: bool | None = None
    identical_tokens: bool | None = None
    graph: dict[str, Any] | None = None
    arms: tuple[Arm, ...] = ()
    comparison: tuple[Metric, ...] = ()

    @property
    def baseline_name(self) -> str:
        """Name of the arm the ``baseline`` column of the comparison is about."""
        return next((arm.name for arm in self.arms if not arm.kvflow), "baseline")

    @property
    def kvflow_name(self) -> str:
        """Name of the arm the ``kvflow`` column of the comparison is about."""
        return next((arm.name for arm in self.arms if arm.kvflow), "kvflow")

    def step_graph(self) -> AgentStepGraph:
        """Build the agent step graph.

        Raises:
            GraphError: the run recorded none, or one that is refused.
        """
        if not self.graph:
            raise GraphError("the run recorded no agent step graph")
        return from_dict(self.graph)

    def agents(self) -> tuple[str, ...]:
        """Return all agents in the order they usually run, then those that ran without being in the graph."""
        try:
            graph = self.step_graph()
        except GraphError:
            known = []
        else:
            names = [graph.flow.names[node] for node in ordered(graph.flow.successors)]
            known = [name for name in names if name not in (START, END)]
        ran = (step.agent for arm in self.arms for step in arm.steps)
        return tuple(dict.fromkeys([*known, *ran]))
