"""Hints of a batch: a list of envelopes, one for each of its prompts, and not too much in all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvflow.errors import HintDecodeError
from kvflow.hints.models import MAX_BATCH_ACTIONS


def one_each(hints: Any, text: Any, input_ids: Any, input_embeds: Any) -> bool:
    """Whether there are as many envelopes as prompts, if they are a list; else SGLang refuses the request.

    Args:
        hints: of a request.
        text: its prompts, in one of the three ways in which they may come; the first that is not None counts.
        input_ids: in another.
        input_embeds: in the third.
    """
    return not isinstance(hints, list) or len(hints) == _prompts(text, input_ids, input_embeds)


def check_number(hints: Any) -> None:
    """Check how many actions there are in a list of envelopes; those of each are checked where it is decoded.

    Raises:
        HintDecodeError: there are too many.
    """
    actions = sum(map(_actions, hints)) if isinstance(hints, list) else 0
    if actions > MAX_BATCH_ACTIONS:
        raise HintDecodeError("actions", f"are {actions}; at most {MAX_BATCH_ACTIONS} are allowed in a batch")


def _prompts(text: Any, input_ids: Any, input_embeds: Any) -> int:
    """How many prompts SGLang takes these for (``GenerateReqInput``); 0 for what is none, which it refuses."""
    try:
        if text is not None:
            return 1 if isinstance(text, str) else len(text)
        if input_ids is not None:
            return 1 if len(input_ids) == 0 or isinstance(input_ids[0], int) else len(input_ids)
        return 1 if isinstance(input_embeds[0][0], float) else len(input_embeds)
    except (TypeError, LookupError):
        return 0


def _actions(envelope: Any) -> int:
    actions = envelope.get("actions") if isinstance(envelope, Mapping) else getattr(envelope, "actions", None)
    return len(actions) if isinstance(actions, list) else 0
