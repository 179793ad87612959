"""What a recording tells of: steps, LLM calls and tool calls, with their times."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvflow.trace.messages import MessagePart, Usage


@dataclass(slots=True, kw_only=True)
class Span:
    """Something with a beginning and perhaps an end, in seconds of the recording's clock."""

    name: str
    start_s: float
    end_s: float | None = None


@dataclass(slots=True, kw_only=True)
class ToolSpan(Span):
    """A tool call."""

    tool: str
    verb: str | None = None


@dataclass(slots=True, kw_only=True)
class AskSpan(Span):
    """An LLM call."""

    agent: str
    parts: list[MessagePart]
    usage: Usage = field(default_factory=Usage)
    fixed_tokens: int | None = None
    fixed_messages: int | None = None


@dataclass(slots=True, kw_only=True)
class StepSpan(Span):
    """A step of an agent, with what happened in it."""

    agent: str
    outer: str | None = None
    fixed_tokens: int | None = None
    fixed_messages: int | None = None
    calls: list[AskSpan] = field(default_factory=list)
    tools: list[ToolSpan] = field(default_factory=list)
    steps: list[StepSpan] = field(default_factory=list)

    @property
    def is_busy(self) -> bool:
        """Anything happened in it."""
        return bool(self.calls or self.tools) or any(step.is_busy for step in self.steps)


Work = AskSpan | StepSpan
