"""Decoding a ``kv_hints`` envelope: which facts, commands and texts it holds for kvflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from kvflow.errors import HintDecodeError
from kvflow.hints.commands import VERBS, Command
from kvflow.hints.models import (
    ACTION_VERSION,
    FACT_MODELS,
    MAX_ACTIONS,
    MAX_ALL_ACTIONS,
    MAX_PAYLOAD_BYTES,
    SEGMENTS_TYPE,
    Action,
    Envelope,
    Fact,
    Outcome,
    Status,
    first_problem,
)
from kvflow.hints.segments import Segments


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
                command = Command.model_validate(action.payload, extra=_extra(action))
            except ValidationError as error:
                outcomes.append(_unsupported(action, str(_decode_error(error, prefix="payload"))))
                continue
            commands.append(DecodedCommand(action_id=action.action_id, verb=action.action_type, command=command))
            continue
        model = Segments if action.action_type == SEGMENTS_TYPE else FACT_MODELS[action.action_type]
        try:
            payload = model.model_validate(action.payload, extra=_extra(action))
        except ValidationError as error:
            raise _decode_error(error, prefix=f"actions.{index}.payload") from None
        if isinstance(payload, Segments):
            segments = DecodedSegments(action_id=action.action_id, segments=payload)
        else:
            facts.append(DecodedFact(action_id=action.action_id, action_type=action.action_type, fact=payload))
    return DecodedHints(facts=tuple(facts), commands=tuple(commands), segments=segments, outcomes=tuple(outcomes))


def _unsupported(action: Action, reason: str) -> Outcome:
    return Outcome(action_id=action.action_id, action_type=action.action_type, status=Status.UNSUPPORTED, reason=reason)


def _extra(action: Action) -> Literal["forbid", "ignore"]:
    """Fields of a payload that are not known are mistakes, unless it is of a version that may have more."""
    return "forbid" if action.action_version in (ACTION_VERSION, f"{ACTION_VERSION}.0") else "ignore"


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
    field, problem = first_problem(error)
    return HintDecodeError(".".join(part for part in (prefix, field) if part) or "kv_hints", problem)
