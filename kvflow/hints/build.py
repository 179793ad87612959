"""Building envelopes, for the client."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from pydantic import BaseModel

from kvflow.hints.commands import VERBS, Command
from kvflow.hints.models import (
    ACTION_VERSION,
    FACT_MODELS,
    PROTOCOL_VERSION,
    SEGMENTS_TYPE,
    Fact,
    FeedbackFact,
    StepFact,
    ToolFact,
)
from kvflow.hints.segments import Segments

_counter = itertools.count()
_TYPES = {model: action_type for action_type, model in FACT_MODELS.items()}


def action(fact: Fact) -> dict[str, Any]:
    """Wrap a fact into an action of the wire format; fields at their default are left out."""
    return _action(_TYPES[type(fact)], fact)


def command_action(verb: str, **fields: Any) -> dict[str, Any]:
    """Build an action of one of the ``kv.*`` verbs; fields as in :class:`~kvflow.hints.commands.Command`.

    Raises:
        pydantic.ValidationError: a field is missing or out of range.
        ValueError: there is no such verb.
    """
    if verb not in VERBS:
        raise ValueError(f"there is no command {verb!r}; choose one of {', '.join(VERBS)}")
    return _action(verb, Command(**fields))


def _action(action_type: str, payload: BaseModel) -> dict[str, Any]:
    return {
        "action_id": f"a{next(_counter)}",
        "action_type": action_type,
        "action_version": ACTION_VERSION,
        "payload": payload.model_dump(exclude_defaults=True),
    }


def step_action(**fields: Any) -> dict[str, Any]:
    """Build a ``kvflow.step`` action; fields as in :class:`StepFact`.

    Raises:
        pydantic.ValidationError: a field is missing or out of range.
    """
    return action(StepFact(**fields))


def tool_action(**fields: Any) -> dict[str, Any]:
    """Build a ``kvflow.tool`` action; fields as in :class:`ToolFact`.

    Raises:
        pydantic.ValidationError: a field is missing or out of range.
    """
    return action(ToolFact(**fields))


def feedback_action(**fields: Any) -> dict[str, Any]:
    """Build a ``kvflow.feedback`` action; fields as in :class:`FeedbackFact`.

    Raises:
        pydantic.ValidationError: a field is missing or out of range.
    """
    return action(FeedbackFact(**fields))


def segments_action(**fields: Any) -> dict[str, Any]:
    """Build a ``kvflow.segments`` action; fields as in :class:`~kvflow.hints.segments.Segments`.

    Raises:
        pydantic.ValidationError: a range has no or more than one form, or is empty.
    """
    return _action(SEGMENTS_TYPE, Segments(**fields))


def envelope(actions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put actions into a ``kv_hints`` envelope with a fresh message id."""
    return {"protocol_version": PROTOCOL_VERSION, "message_id": uuid4().hex, "actions": list(actions)}
