"""Rows of sessions with messages, LLM calls and tool calls: what of them is used."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import Field

from kvflow.trace.importers.base import NoNull, Row, Text, Tokens, clipped, estimated_tokens, since
from kvflow.trace.schema import MAIN_THREAD

_KNOWN = ("claude code", "openhands", "tau-bench")
_VERSION = re.compile(r"^v?\d[\w.]*$")


Index = Annotated[int, Field(ge=0, le=2**31)]


class AskedTool(Row):
    """A tool call, as the model wrote it."""

    id: str | None = None
    name: str = ""
    args: Any = None


class Message(Row):
    """One message. ``thinking`` is not part of later prompts unless the token counts say so."""

    th: str = "main"
    role: str
    content: Text = ""
    thinking: Text = ""
    tool_calls: Annotated[tuple[AskedTool, ...], NoNull] = ()
    requestor: str | None = None
    t: float | None = None

    @property
    def text(self) -> str:
        """What a later prompt holds of it."""
        if not self.tool_calls:
            return self.content
        return self.content + json.dumps([[call.name, call.args] for call in self.tool_calls], ensure_ascii=False)


class Call(Row):
    """An LLM call; ``out`` is the index of its answer. Without ``llm_seconds`` its times say how long it took."""

    th: str = "main"
    out: Index
    t_start: float | None = None
    t_end: float | None = None
    llm_seconds: float | None = None
    in_tok: Tokens | None = None
    out_tok: Tokens | None = None
    out_tok_partial: bool = False

    @property
    def ended_s(self) -> float | None:
        """When its answer was there; None if that is not known."""
        if self.t_end is not None or self.t_start is None or self.llm_seconds is None:
            return self.t_end
        return self.t_start + self.llm_seconds

    @property
    def took_s(self) -> float | None:
        """How long it took; None if that is not known."""
        return _took_s(self.llm_seconds, self.t_start, self.t_end)


class ToolCall(Row):
    """A tool call; ``call`` is the index of the LLM call that made it. Without ``seconds`` its times say how long."""

    id: str | None = None
    call: Index
    name: str = "tool"
    verb: str | None = None
    t_start: float | None = None
    t_end: float | None = None
    seconds: float | None = None
    error: bool | None = None

    @property
    def took_s(self) -> float | None:
        """How long it took; None if that is not known."""
        return _took_s(self.seconds, self.t_start, self.t_end)


class Thread(Row):
    """Where a thread comes from."""

    parent: str | None = None
    spawned_by: str | None = None


class Condensation(Row):
    """From message ``at`` on, some messages are gone and a summary stands at ``summary_offset``."""

    at: Index
    forgotten: tuple[Index, ...] = ()
    summary: str | None = None
    summary_offset: Index | None = None


class Session(Row):
    """One session."""

    session_id: str
    group: str | None = None
    agent: str = "agent"
    model: str | None = None
    user_model: str | None = None
    source: str = ""
    domain: str | None = None
    threads: dict[str, Thread] = Field(default_factory=dict)
    messages: list[Message]
    llm_calls: list[Call]
    tool_calls: Annotated[tuple[ToolCall, ...], NoNull] = ()
    tools: Any = None
    condensations: Annotated[tuple[Condensation, ...], NoNull] = ()

    def check(self) -> None:
        """See to it that every index is one.

        Raises:
            ValueError: one is not, or nothing was asked.
        """
        if not self.llm_calls:
            raise ValueError("llm_calls: the session has none")
        for index, call in enumerate(self.llm_calls):
            if call.out >= len(self.messages):
                raise ValueError(f"llm_calls.{index}.out: there is no message {call.out}")
        for index, tool_call in enumerate(self.tool_calls):
            if tool_call.call >= len(self.llm_calls):
                raise ValueError(f"tool_calls.{index}.call: there is no LLM call {tool_call.call}")

    def calls_of(self, thread: str) -> list[tuple[int, Call]]:
        """LLM calls of a thread, in the order of their answers, with their indexes."""
        calls = [(index, call) for index, call in enumerate(self.llm_calls) if call.th == thread]
        return sorted(calls, key=lambda item: item[1].out)

    def agent_of(self, thread: str) -> str:
        """Name of the agent of a thread: the framework's, or the kind of sub-agent that was asked for."""
        log = self.threads.get(thread)
        if thread == MAIN_THREAD:
            return framework(self.agent, None)
        for message in self.messages if log and log.spawned_by else ():
            for asked in message.tool_calls:
                if log and asked.id == log.spawned_by and isinstance(asked.args, dict):
                    return str(asked.args.get("subagent_type") or "sub-agent")
        return "sub-agent"

    def answer_tokens(self, call: Call, following: Call | None, between: list[Message]) -> int:
        """Tokens of a call's answer.

        Where the count is missing or was taken before the answer was complete, what the next prompt has grown by is
        shared out between the answer and the messages after it.

        Args:
            following: the next call of the thread.
            between: the messages after the answer that this one sees.
        """
        if call.out_tok is not None and not call.out_tok_partial:
            return call.out_tok
        message = self.messages[call.out]
        tokens = estimated_tokens(message.text + message.thinking)
        if following is None or following.in_tok is None or call.in_tok is None:
            return max(tokens, call.out_tok or 0)
        growth = following.in_tok - call.in_tok - len(between)
        if growth < 1:
            return max(tokens, call.out_tok or 0)
        others = sum(estimated_tokens(other.text) for other in between)
        return max(1, min(growth, round((growth + len(between)) * tokens / (tokens + others))))


def framework(agent: str, domain: str | None) -> str:
    """Name of a kind of program: the framework without its version, and the domain if there are several."""
    words = re.sub(r"\(.*?\)", " ", agent.lower()).strip()
    known = next((name for name in _KNOWN if words.startswith(name)), "")
    name = "-".join((known or " ".join(word for word in words.split() if not _VERSION.match(word))).split())
    return f"{name or 'agent'}-{domain}" if domain else name or "agent"


def _took_s(seconds: float | None, start_s: float | None, end_s: float | None) -> float | None:
    """Seconds that were logged, else those between two times; None if a clock was set back meanwhile."""
    if seconds is not None:
        return clipped(seconds)
    if start_s is not None and end_s is not None and end_s < start_s:
        return None
    return since(start_s, end_s)
