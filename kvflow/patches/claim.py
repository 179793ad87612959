"""The claim a request carries from the HTTP process to the scheduler.

The HTTP process understands a client's facts and appends one ``kvflow.claim`` action to the envelope; the scheduler
reads only that one. A client cannot send it: :func:`attach` drops what came from outside.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from kvflow.engine import KvCommand, PromptClaim

ACTION_TYPE = "kvflow.claim"
COMMAND_TYPE = "kvflow.prompt_command"
REUSE_TYPE = "kvflow.reuse"
UPDATES_TYPE = "kvflow.updates"


def attach(
    envelope: dict[str, Any],
    claim: PromptClaim | None,
    commands: Sequence[KvCommand] = (),
    reuse: dict[str, Any] | None = None,
    *,
    key: str = "",
) -> dict[str, Any]:
    """Copy an envelope with what the schedulers need in place; foreign actions pass through untouched.

    Args:
        envelope: as it came from the client.
        claim: whose prompt it is.
        commands: on that prompt.
        reuse: ``slots`` as (start, end, name) in tokens of the prompt, and ``mode``; None if not asked for.
            Without slots it is for the answer's sake.
        key: tells what becomes of the commands from what becomes of others'.
    """
    own = (ACTION_TYPE, COMMAND_TYPE, REUSE_TYPE, UPDATES_TYPE)
    actions = [action for action in envelope.get("actions", ()) if action["action_type"] not in own]
    if claim is not None:
        actions.append(_action(ACTION_TYPE, asdict(claim)))
    actions += [_action(COMMAND_TYPE, asdict(command)) | {"action_id": key} for command in commands]
    if reuse is not None:
        actions.append(_action(REUSE_TYPE, reuse))
    return {**envelope, "actions": actions}


def _action(action_type: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"action_id": action_type, "action_type": action_type, "action_version": "1", "payload": payload}


def commands_of(req: Any) -> tuple[str, list[KvCommand]]:
    """Commands on the prompt of a scheduler's request, and their key."""
    actions = req.kv_hints.actions if req.kv_hints is not None else ()
    own = [a for a in actions if a.action_type == COMMAND_TYPE]
    return (own[0].action_id if own else ""), [KvCommand(**a.payload) for a in own]


def reuse_of(req: Any) -> dict[str, Any] | None:
    """What a scheduler's request asks to have reused."""
    if req.kv_hints is None:
        return None
    return next((a.payload for a in req.kv_hints.actions if a.action_type == REUSE_TYPE), None)


def claim_of(req: Any) -> PromptClaim | None:
    """Read the claim of a scheduler's request, once; no more of its prompt is fixed than there is."""
    if not hasattr(req, "_kvflow_claim"):
        hints = req.kv_hints
        payloads = [a.payload for a in hints.actions if a.action_type == ACTION_TYPE] if hints is not None else []
        try:
            claim = PromptClaim(**payloads[-1]) if payloads else None
            if claim is not None and (claim.fixed_tokens or 0) > len(req.origin_input_ids):
                claim = replace(claim, fixed_tokens=len(req.origin_input_ids))
        except TypeError:  # a client's own: the seam that takes these away does not hold in the HTTP process
            claim = None
        req._kvflow_claim = claim
    return req._kvflow_claim


def refused(req: Any) -> bool:
    """Whether SGLang has given a request up; of one that has not begun it has replaced the prompt by a token."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    return isinstance(req.to_finish or req.finished_reason, FINISH_ABORT)


def namespace_of(req: Any) -> str:
    """What a scheduler's request shares a cache with: its salt, and its extra key, adapters included."""
    return json.dumps([req.extra_key, req.cache_salt])


def is_forerunner(req: Any) -> bool:
    """Whether a request only computes a prompt that SGLang then has answered several times, by others (``n > 1``)."""
    return req.sampling_params.max_new_tokens == 0 and req.sampling_params.n > 1
