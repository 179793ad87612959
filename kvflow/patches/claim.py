"""The claim a request carries from the HTTP process to the scheduler.

The HTTP process understands a client's facts and appends one ``kvflow.claim`` action to the envelope; the scheduler
reads only that one. A client cannot send it: :func:`attach` drops what came from outside.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvflow.engine import PromptClaim

ACTION_TYPE = "kvflow.claim"


def attach(envelope: dict[str, Any], claim: PromptClaim | None) -> dict[str, Any]:
    """Copy an envelope with the claim in place; foreign actions pass through untouched."""
    actions = [action for action in envelope.get("actions", ()) if action["action_type"] != ACTION_TYPE]
    if claim is not None:
        actions.append(
            {
                "action_id": ACTION_TYPE,
                "action_type": ACTION_TYPE,
                "action_version": "1",
                "payload": asdict(claim),
            }
        )
    return {**envelope, "actions": actions}


def claim_of(req: Any) -> PromptClaim | None:
    """Read the claim of a scheduler's request, once."""
    if not hasattr(req, "_kvflow_claim"):
        hints = req.kv_hints
        payloads = [a.payload for a in hints.actions if a.action_type == ACTION_TYPE] if hints is not None else []
        req._kvflow_claim = PromptClaim(**payloads[-1]) if payloads else None
    return req._kvflow_claim
