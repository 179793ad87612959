"""What kvflow's client writes while ``KVFLOW_RECORD`` is set: one fact per line.

Facts of several workflows and processes stand in one file, in the order in which they were written. Times are seconds
of the machine's monotonic clock. How a workflow's program is read off them says :mod:`kvflow.trace.record`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from kvflow.trace.importers.base import Clock, Importer, Json, Row, Tokens
from kvflow.trace.messages import MessagePart, Usage
from kvflow.trace.record import WorkflowRecording
from kvflow.trace.schema import Event, Name

FactKind = Literal["step_start", "step_end", "tool_start", "tool_end", "llm_start", "llm_end", "workflow_end"]


class _Fact(Row):
    fact: FactKind
    workflow: Name
    at_s: Clock
    type: Name = "default"
    tenant: str | None = None
    step: str = ""
    outer: str | None = None
    agent: Name = "main"
    fixed_tokens: Tokens | None = None
    fixed_messages: Tokens | None = None
    tool: Name = "tool"
    verb: str | None = None
    call: str = ""
    parts: tuple[tuple[str, str, Tokens], ...] = ()
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    answer: tuple[str, str, Tokens] | None = None


class RecordingImporter(Importer):
    """Workflows as they end; see the module."""

    format: ClassVar[str] = "recording"
    token_counts = "mixed"
    notes = "prompts are counted by the server where it said so, else estimated from characters"

    def __init__(self, sample: Sequence[Json], path: Path) -> None:
        super().__init__(sample, path)
        times = [row["at_s"] for row in sample if isinstance(row.get("at_s"), int | float)]
        self._origin_s = float(min(times, default=0.0))
        self._live: dict[str, WorkflowRecording] = {}
        self._counts: dict[str, int] = {}

    @classmethod
    def fits(cls, row: Json) -> bool:
        """A fact."""
        return {"fact", "workflow", "at_s"} <= row.keys()

    def events(self, row: str) -> Sequence[Event]:
        """Events of the workflow that ends with this fact, if one does."""
        fact = _Fact.model_validate_json(row)
        live = self._live.get(fact.workflow)
        if live is None:
            if fact.fact.endswith("_end"):
                raise ValueError(f"{fact.fact} of workflow {fact.workflow!r}, which has not begun")
            name = self.names.unique(fact.workflow)
            live = self._live[fact.workflow] = WorkflowRecording(
                name, fact.type, fact.at_s, origin_s=self._origin_s, tenant=fact.tenant, counts=self._counts
            )
        if fact.fact == "workflow_end":
            del self._live[fact.workflow]
            return list(live.events(fact.at_s))
        _tell(live, fact)
        return []

    def rest(self) -> Iterable[Event]:
        """Events of the workflows whose end nobody saw."""
        return [event for live in self._live.values() for event in live.events()]


def _tell(live: WorkflowRecording, fact: _Fact) -> None:
    match fact.fact:
        case "step_start":
            live.step_started(
                fact.at_s,
                fact.step,
                fact.agent,
                fact.outer,
                fixed_tokens=fact.fixed_tokens,
                fixed_messages=fact.fixed_messages,
            )
        case "step_end":
            live.step_ended(fact.at_s, fact.step)
        case "tool_start":
            live.tool_started(fact.at_s, fact.call, fact.step, fact.tool, fact.verb)
        case "tool_end":
            live.tool_ended(fact.at_s, fact.call)
        case "llm_start":
            live.asked(fact.at_s, fact.call, fact.step, [MessagePart(*part) for part in fact.parts])
        case "llm_end":
            answer = MessagePart(*fact.answer) if fact.answer else None
            live.answered(fact.at_s, fact.call, Usage(fact.prompt_tokens, fact.output_tokens, answer))
