"""The actions of a ``kv_hints`` envelope that kvflow understands, and their decoding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvflow.errors import HintDecodeError
from kvflow.hints.commands import VERBS, Command
from kvflow.hints.fields import Identifier, Name, Strict
from kvflow.hints.segments import Segments

P = TypeVar("P", bound=Strict)

PROTOCOL_VERSION = "1.0"
ACTION_VERSION = "1"
MAX_ACTIONS = 64
"""How many actions of ours an envelope may hold."""
MAX_ALL_ACTIONS = 256
"""And how many in all, others' included: every one of them is looked at and answered."""
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

    action_id: str
    action_type: str
    action_version: str
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
    final: bool = False
    """The workflow ends with this step; its context will not be used again."""
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
SEGMENTS_TYPE = "kvflow.segments"

FACT_MODELS: dict[str, type[Fact]] = {
    STEP_TYPE: StepFact,
    "kvflow.tool": ToolFact,
    "kvflow.feedback": FeedbackFact,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedFact:
    """A fact together with the action it came in."""

    action_id: str
    action_type: str
    fact: Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedCommand:
    """A command together with the action it came in."""

    action_id: str
    verb: str
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedSegments:
    """What a request asks to have reused, together with the action it came in."""

    action_id: str
    segments: Segments


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedHints:
    """What an envelope holds for kvflow.

    Attributes:
        facts: understood facts, in the order sent.
        commands: understood commands, in the order sent.
        segments: what is to be reused; the last action counts.
        outcomes: answers to the other actions: not ours, or a command in a shape that is not ours (``unsupported``).
    """

    facts: tuple[DecodedFact, ...]
    commands: tuple[DecodedCommand, ...]
    segments: DecodedSegments | None
    outcomes: tuple[Outcome, ...]


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
        field, problem = _first_problem(error)
        raise ValueError(f"{call}(): {field.removeprefix(f'{call}_')}: {problem}") from None


def decode_envelope(value: object) -> DecodedHints:
    """Check an envelope and pick out facts and commands.

    Actions of other types, and other versions of ours, are never an error: they end as ``unsupported``. So do commands
    whose payload is not ours, because others use the same verbs. Of a later minor version (``1.3``) the fields count
    that are known, so that a client may be newer than its server.

    Args:
        value: the envelope as decoded JSON.

    Raises:
        HintDecodeError: the envelope, or the payload of an action kvflow knows, has the wrong shape or is too large.
    """
    if not isinstance(value, Mapping):
        raise HintDecodeError("kv_hints", f"must be an object, got {type(value).__name__}")
    _check_number(value.get("actions"))
    try:
        envelope = Envelope.model_validate(value)
    except ValidationError as error:
        raise _decode_error(error) from None
    facts: list[DecodedFact] = []
    commands: list[DecodedCommand] = []
    segments: DecodedSegments | None = None
    outcomes: list[Outcome] = []
    own = 0
    for index, action in enumerate(envelope.actions):
        reason = _unsupported_reason(action)
        if reason:
            outcomes.append(_unsupported(action, reason))
            continue
        own += 1
        if own > MAX_ACTIONS:
            raise HintDecodeError(f"actions.{index}", f"at most {MAX_ACTIONS} actions of kvflow are allowed")
        _check_size(action.payload, f"actions.{index}.payload")
        if action.action_type in VERBS:
            try:
                command = Command.model_validate(_known(action, Command))
            except ValidationError as error:
                outcomes.append(_unsupported(action, str(_decode_error(error, prefix="payload"))))
                continue
            commands.append(DecodedCommand(action_id=action.action_id, verb=action.action_type, command=command))
            continue
        model = Segments if action.action_type == SEGMENTS_TYPE else FACT_MODELS[action.action_type]
        try:
            payload = model.model_validate(_known(action, model))
        except ValidationError as error:
            raise _decode_error(error, prefix=f"actions.{index}.payload") from None
        if isinstance(payload, Segments):
            segments = DecodedSegments(action_id=action.action_id, segments=payload)
        else:
            facts.append(DecodedFact(action_id=action.action_id, action_type=action.action_type, fact=payload))
    return DecodedHints(facts=tuple(facts), commands=tuple(commands), segments=segments, outcomes=tuple(outcomes))


def _unsupported(action: Action, reason: str) -> Outcome:
    return Outcome(action_id=action.action_id, action_type=action.action_type, status=Status.UNSUPPORTED, reason=reason)


def _known(action: Action, model: type[BaseModel]) -> Mapping[str, Any]:
    """The payload of an action; of a version that may have more fields, those that are known."""
    if action.action_version in (ACTION_VERSION, f"{ACTION_VERSION}.0"):
        return action.payload
    return {name: value for name, value in action.payload.items() if name in model.model_fields}


def _unsupported_reason(action: Action) -> str:
    if action.action_type not in (*FACT_MODELS, *VERBS, SEGMENTS_TYPE):
        return "unknown action type"
    if action.action_version.split(".")[0] != ACTION_VERSION:
        return f"action version {action.action_version} is not supported, send {ACTION_VERSION}"
    return ""


def _check_number(actions: object) -> None:
    if isinstance(actions, list) and len(actions) > MAX_ALL_ACTIONS:
        raise HintDecodeError("actions", f"are {len(actions)}; at most {MAX_ALL_ACTIONS} of all kinds are allowed")


def _check_size(payload: Mapping[str, Any], field: str) -> None:
    try:
        size = len(json.dumps(payload))
    except (TypeError, ValueError, RecursionError) as error:
        raise HintDecodeError(field, f"is not JSON: {error}") from None
    if size > MAX_PAYLOAD_BYTES:
        raise HintDecodeError(field, f"is {size} bytes; at most {MAX_PAYLOAD_BYTES} are allowed")


def _decode_error(error: ValidationError, prefix: str = "") -> HintDecodeError:
    field, problem = _first_problem(error)
    return HintDecodeError(".".join(part for part in (prefix, field) if part) or "kv_hints", problem)


def _first_problem(error: ValidationError) -> tuple[str, str]:
    """Return where the first problem is, dotted, and what it is."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ".".join(str(part) for part in first["loc"]), first["msg"]
