"""Events of a trace: what multi-agent programs asked of a server, and when.

A trace is a file of JSON lines, gzipped if its name ends in ``.gz``. The first line is a :class:`TraceHeader`; every
other line is one event. Events of one workflow stand in the order in which they happened, workflows may interleave.

Within one thread of a workflow the order is the program: an event happens after the one before it. A ``tool_start``
does not wait for the tool, its ``tool_end`` does, so tools that overlap in the file run in parallel; ``spawn`` does not
wait for its child thread, ``join`` does. That is all a closed-loop replay needs: no event says when it must happen,
each says what it waits for.

Tokens are identified, not spelled out. A *content* is a named sequence of tokens; equal names are equal tokens, within
a workflow and across workflows. A prompt keeps the first tokens of an earlier call's context and adds slices of
contents.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PlainSerializer

SCHEMA_VERSION = 1
MAIN_THREAD = "main"
BLOCKS = "blocks:"
"""What names of contents begin with that have all texts of a source in them, of which hashes of blocks are known."""


class Piece(NamedTuple):
    """A slice of a content: ``tokens`` of its tokens from ``offset`` on. Written as ``[content, tokens(, offset)]``."""

    content: str
    tokens: int
    offset: int = 0


def _piece(value: Any) -> Any:
    """Let a list stand for a piece, and refuse an empty or negative one."""
    piece = Piece(*value) if isinstance(value, list | tuple) and 2 <= len(value) <= 3 else value
    if not isinstance(piece, Piece) or not isinstance(piece.content, str):
        raise ValueError("a piece is [content, tokens] or [content, tokens, offset]")
    if not isinstance(piece.tokens, int) or not isinstance(piece.offset, int) or piece.tokens < 1 or piece.offset < 0:
        raise ValueError("tokens of a piece are at least 1, its offset at least 0")
    return piece


def _short(piece: Piece) -> list[str | int]:
    return list(piece) if piece.offset else [piece.content, piece.tokens]


Pieces = tuple[Annotated[Piece, BeforeValidator(_piece), PlainSerializer(_short)], ...]
Name = Annotated[str, Field(min_length=1)]
Seconds = NonNegativeFloat


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TraceHeader(_Record):
    """First line of a trace.

    Attributes:
        source: where the trace comes from, e.g. the name of a data set.
        token_counts: counted by a tokenizer, estimated from characters, or some of each.
        notes: what a reader should know, e.g. which part of the prompts the source left out.
    """

    event: Literal["trace"] = "trace"
    version: Literal[1] = SCHEMA_VERSION
    source: Name
    token_counts: Literal["counted", "estimated", "mixed"] = "counted"
    notes: str = ""


class _Event(_Record):
    """Attributes: ``workflow`` it belongs to; ``t``: seconds since the start of the trace, None if not recorded."""

    workflow: Name
    t: Seconds | None = None


class _ThreadEvent(_Event):
    thread: Name = MAIN_THREAD


class WorkflowStart(_Event):
    """A workflow starts; its main thread runs.

    Attributes:
        type: the kind of program; workflows of one type share agents and their fixed prompts.
        group: the task, e.g. a SWE-bench instance; several workflows may have the same one.
        tenant: who runs it.
    """

    event: Literal["workflow_start"] = "workflow_start"
    type: Name
    group: str | None = None
    tenant: str | None = None


class WorkflowEnd(_Event):
    """A workflow has ended; none of its context will be used again, unless other workflows share it."""

    event: Literal["workflow_end"] = "workflow_end"


class Prompt(_Record):
    """A prompt, told by what it shares with an earlier one.

    Attributes:
        base: an earlier call of this workflow, whose prompt and output make one context; None to start afresh.
        keep_tokens: how many of that context's first tokens the prompt keeps.
        add: what follows them.
    """

    base: str | None = None
    keep_tokens: NonNegativeInt = 0
    add: Pieces = ()

    @property
    def tokens(self) -> int:
        """Length of the prompt in tokens."""
        return self.keep_tokens + sum(piece.tokens for piece in self.add)


class LLMCall(_ThreadEvent):
    """An agent asks the model; the thread waits for the answer.

    Attributes:
        call: names the call within its workflow.
        output: content of the answer; prompts that continue this call keep it.
        fixed_tokens: tokens at the start of the prompt that every workflow of this type shares; None if unknown.
        delay_s: what the client did, tools apart, since the thread's previous event (thinking, typing, overhead), and
            what it did between the tools before that.
        llm_s: seconds the recorded server took.
    """

    event: Literal["llm_call"] = "llm_call"
    agent: Name
    call: Name
    prompt: Prompt
    output: Name
    output_tokens: NonNegativeInt
    fixed_tokens: NonNegativeInt | None = None
    delay_s: Seconds | None = None
    llm_s: Seconds | None = None


class ToolStart(_ThreadEvent):
    """An agent calls a tool; the thread goes on.

    Attributes:
        tool_call: names the call within its workflow.
        verb: first word of a shell command, or a tool's sub-command.
    """

    event: Literal["tool_start"] = "tool_start"
    agent: Name
    tool_call: Name
    tool: Name
    verb: str | None = None


class ToolEnd(_ThreadEvent):
    """The thread waits until the tool has answered.

    Attributes:
        seconds: how long the tool took; None if not recorded. If an LLM call or a join is right before, the tool has
            waited for that, and this is what it took from then on.
    """

    event: Literal["tool_end"] = "tool_end"
    tool_call: Name
    seconds: Seconds | None = None
    error: bool = False


class Spawn(_ThreadEvent):
    """Another thread of the workflow starts (a sub-agent, a parallel branch); this one goes on."""

    event: Literal["spawn"] = "spawn"
    child: Name


class Join(_ThreadEvent):
    """The thread waits until a spawned one has run to its end; that one's context will not be used again."""

    event: Literal["join"] = "join"
    child: Name


class Supersede(_ThreadEvent):
    """A newer state replaces an older one (a summary, a rewritten history).

    Attributes:
        call: whose context is replaced.
        keep_tokens: its first tokens that stay useful.
    """

    event: Literal["supersede"] = "supersede"
    call: Name
    keep_tokens: NonNegativeInt = 0


Event = WorkflowStart | WorkflowEnd | LLMCall | ToolStart | ToolEnd | Spawn | Join | Supersede
ThreadEvent = LLMCall | ToolStart | ToolEnd | Spawn | Join | Supersede
