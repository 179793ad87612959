"""Where requests bring their hints: /generate, chat completions, completions and ``Engine.generate``."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from kvflow import config
from kvflow.engine.boundary import common_prefix
from kvflow.errors import HintDecodeError
from kvflow.hints import decode_envelope
from kvflow.patches.front import Front
from kvflow.patches.guard import Guard

_RENDERED_PREFIXES = 512
_rendered: OrderedDict[str, list[int]] = OrderedDict()
_taking = Guard("taking hints")
_counting = Guard("counting fixed messages")


def generate_contract(result: str | None, body: Any) -> str | None:
    """Report malformed hints in a /generate body (hook after ``generate_contract_error``)."""
    if result is not None or not isinstance(body, Mapping) or body.get("kv_hints") is None or not _strict():
        return None
    hints = body["kv_hints"]
    try:
        for envelope in hints if isinstance(hints, list) else [hints]:
            decode_envelope(envelope)
    except HintDecodeError as error:
        return str(error)
    return None


def request(self: Any, obj: Any, *args: Any, **kwargs: Any) -> None:
    """Take the facts of a request (hook before ``TokenizerManager.generate_request``).

    Raises:
        HintDecodeError: the hints are malformed and ``intake.strict`` is set.
    """
    hints = getattr(obj, "kv_hints", None)
    if hints is None:
        return
    try:
        front = Front.of(self)
        obj.kv_hints = [front.admit(hint) for hint in hints] if isinstance(hints, list) else front.admit(hints)
    except HintDecodeError:
        raise
    except Exception:
        _taking.note()
        obj.kv_hints = None


def chat(result: Any, self: Any, request: Any, raw_request: Any = None) -> Any:
    """Carry ``kv_hints`` of a chat request (hook after ``OpenAIServingChat._convert_to_internal_request``).

    Runs in a thread pool, so it only prepares the envelope; :func:`request` takes the facts.

    Raises:
        HintDecodeError: the hints are malformed and ``intake.strict`` is set.
    """
    adapted, _ = result
    hints = _carry(adapted, raw_request)
    if hints is not None:
        arguments = (hints, self.tokenizer_manager.tokenizer, request, adapted)
        adapted.kv_hints = _counting.run(_count_fixed_messages, *arguments, default=hints)
    return result


def completion(result: Any, self: Any, request: Any, raw_request: Any = None) -> Any:
    """Carry ``kv_hints`` of a completion request, as :func:`chat` does."""
    _carry(result[0], raw_request)
    return result


def _carry(adapted: Any, raw_request: Any) -> dict[str, Any] | None:
    body = getattr(raw_request, "_json", None)  # Starlette's cache of the parsed body
    hints = body.get("kv_hints") if isinstance(body, dict) else None
    if hints is None:
        return None
    try:
        decode_envelope(hints)
    except HintDecodeError:
        if _strict():
            raise
        return None
    adapted.kv_hints = hints
    return hints


def _strict() -> bool:
    return config.load().intake.strict


def _count_fixed_messages(hints: dict[str, Any], tokenizer: Any, request: Any, adapted: Any) -> dict[str, Any]:
    """Turn ``fixed_prompt_messages`` into ``fixed_prompt_tokens`` of this prompt."""

    def counted(action: dict[str, Any]) -> dict[str, Any]:
        payload = action.get("payload", {})
        count = payload.get("fixed_prompt_messages")
        if action["action_type"] != "kvflow.step" or count is None or "fixed_prompt_tokens" in payload:
            return action
        tokens = _fixed_tokens(tokenizer, request, adapted, count)
        return {**action, "payload": {**payload, "fixed_prompt_tokens": tokens}}

    return {**hints, "actions": [counted(action) for action in hints.get("actions", ())]}


def _fixed_tokens(tokenizer: Any, request: Any, adapted: Any, count: int) -> int:
    """Tokens the first ``count`` messages have in common with the whole rendered prompt."""
    messages = [message.model_dump(exclude_none=True) for message in request.messages[:count]]
    tools = [tool.function.model_dump() for tool in request.tools] if request.tools else None
    key = json.dumps([messages, tools], default=str)
    rendered = _rendered.get(key)
    if rendered is None:
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=False)
        rendered = _rendered[key] = tokenizer.encode(text, add_special_tokens=False)
        while len(_rendered) > _RENDERED_PREFIXES:
            _rendered.popitem(last=False)
    prompt = adapted.input_ids
    if prompt is None:
        prompt = tokenizer.encode(adapted.text, add_special_tokens=False)
    return common_prefix(rendered, list(prompt))
