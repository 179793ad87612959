"""The actions of a ``kv_hints`` envelope that kvflow understands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvflow.hints.fields import Identifier, Name, Strict, Word

P = TypeVar("P", bound=Strict)

PROTOCOL_VERSION = "1.0"
ACTION_VERSION = "1"
MAX_ACTIONS = 64
"""How many actions of ours an envelope may hold."""
MAX_ALL_ACTIONS = 256
"""And how many in all, others' included: every one of them is looked at and answered."""
MAX_BATCH_ACTIONS = 1024
"""And how many all envelopes of one request, a batch, may hold together."""
MAX_ENVELOPE_BYTES = 64 * 1024
"""How large an envelope the client makes."""
MAX_PAYLOAD_BYTES = 64 * 1024


class Status(StrEnum):
    """What became of one action."""

    ACCEPTED = "accepted"
    CLIPPED = "clipped"
    DEFERRED = "deferred"
    REJECTED = "rejected"
    MISSING = "missing"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answer to one action: what became of it and why."""

    action_id: str
    action_type: str
    status: Status
    reason: str = ""


class _Lenient(BaseModel):
    """What others write too: keys we do not know are theirs."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Action(_Lenient):
    """One action of an envelope, payload not yet understood (SGLang ``KvHintAction``)."""

    action_id: Word
    action_type: Word
    action_version: Word
    payload: dict[str, Any] = Field(default_factory=dict)


class Envelope(_Lenient):
    """SGLang's ``kv_hints`` envelope (``KvHintsEnvelope``, RFC #36224)."""

    protocol_version: str
    message_id: str
    actions: list[Action] = Field(default_factory=list)


class StepFact(Strict):
    """``kvflow.step``: an agent of a workflow starts (or ends) one step.

    Sent with an LLM request it says who is asking; sent alone (``POST /kvflow/v1/events``) it reports progress.
    A request whose ``step_id`` was seen before continues that step, it does not start another one.
    """

    workflow_id: Identifier
    agent: Name
    workflow_type: Name = "default"
    step_id: Identifier | None = None
    event: Literal["start", "end"] = "start"
    parent_workflow_id: Identifier | None = None
    fixed_prompt_tokens: Annotated[int, Field(ge=0, le=2**31)] | None = None
    """Tokens at the start of the prompt that every run of this agent shares."""
    fixed_prompt_messages: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """The same, counted in chat messages; the server turns it into tokens."""
    tools: Annotated[list[Name], Field(max_length=256)] = Field(default_factory=list)
    """Names of the tools this agent may call."""
    final: bool | None = None
    """The workflow ends with this step; its context will not be used again. At ``end``, false takes that back."""
    tenant: Name | None = None


class ToolFact(Strict):
    """``kvflow.tool``: an agent waits for a tool (start), or has its answer (end)."""

    workflow_id: Identifier
    agent: Name
    tool: Name
    event: Literal["start", "end"]
    verb: Name | None = None
    """What the tool is told to do, e.g. the first word of a shell command; durations are learned by it."""
    call_id: Identifier | None = None
    """Tells parallel calls of one tool apart."""
    step_id: Identifier | None = None
    """The step that waits; without it, the agent has no parallel ones, and waits for nothing once it goes on."""
    expected_s: Annotated[float, Field(gt=0, le=86_400, strict=False)] | None = None
    """How long the call takes, if the client knows (start)."""
    took_s: Annotated[float, Field(ge=0, le=86_400 * 365, strict=False)] | None = None
    """How long it took (end); without it, as long as it was between the arrivals of both facts."""


class FeedbackFact(Strict):
    """``kvflow.feedback``: how well a workflow did what it was for, e.g. whether its tests passed."""

    workflow_id: Identifier
    outcome: Annotated[float, Field(ge=0, le=1, strict=False)]
    """1 is success, 0 failure."""


Fact = StepFact | ToolFact | FeedbackFact

STEP_TYPE = "kvflow.step"
TOOL_TYPE = "kvflow.tool"
FEEDBACK_TYPE = "kvflow.feedback"
SEGMENTS_TYPE = "kvflow.segments"

FACT_MODELS: dict[str, type[Fact]] = {
    STEP_TYPE: StepFact,
    TOOL_TYPE: ToolFact,
    FEEDBACK_TYPE: FeedbackFact,
}


def checked(call: str, model: type[P], **fields: Any) -> P:
    """Make a payload of the arguments of a call.

    Args:
        call: the function of ours that was called, for the message.
        model: what to make.
        fields: of the payload; ``workflow_type`` is told as the ``type`` of ``workflow()``.

    Raises:
        ValueError: an argument is out of range.
    """
    try:
        return model(**fields)
    except ValidationError as error:
        field, problem = first_problem(error)
        raise ValueError(f"{call}(): {field.removeprefix(f'{call}_')}: {problem}") from None


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return where the first problem is, dotted, and what it is."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ".".join(str(part) for part in first["loc"]), first["msg"]
