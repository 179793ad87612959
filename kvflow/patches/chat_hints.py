"""What hints of OpenAI's endpoints say in messages, said in tokens of the prompt that they become."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from kvflow import config
from kvflow.control import starts_step
from kvflow.engine.boundary import common_prefix
from kvflow.errors import HintDecodeError
from kvflow.hints import decode_envelope
from kvflow.hints.models import SEGMENTS_TYPE, STEP_TYPE
from kvflow.patches import inferring, malformed
from kvflow.patches.guard import note
from kvflow.patches.locating import find_slots, plain, roles_and_texts
from kvflow.patches.token_cache import TokenCache

logger = logging.getLogger(__name__)

_MIN_SHARE = 0.9
_rendered = TokenCache(max_bytes=32 * 2**20)


def chat(result: Any, self: Any, request: Any, raw_request: Any = None) -> Any:
    """Carry ``kv_hints`` of a chat request (hook after ``OpenAIServingChat._convert_to_internal_request``).

    Runs in a thread pool, so it only prepares the envelope; the request itself takes the facts.

    Raises:
        HintDecodeError: the hints are malformed and ``intake.strict`` is set.
    """
    adapted, _ = result
    hints = _carry(adapted, raw_request)
    if hints is not None:
        try:
            tokenizer = self.tokenizer_manager.tokenizer
            hints = _count_fixed_messages(hints, tokenizer, request, adapted)
            adapted.kv_hints = hints if _reuses_nothing() else _find_texts(hints, tokenizer, request, adapted)
        except Exception:
            note("counting fixed messages")
    elif inferring.enabled():
        inferring.mark(adapted, request)
    return result


def completion(result: Any, self: Any, request: Any, raw_request: Any = None) -> Any:
    """Carry ``kv_hints`` of a completion request, as :func:`chat` does."""
    _carry(result[0], raw_request)
    return result


def _carry(adapted: Any, raw_request: Any) -> dict[str, Any] | None:
    body = getattr(raw_request, "_json", None)  # Starlette's cache of the parsed body
    hints = body.get("kv_hints") if isinstance(body, dict) else None
    if not hints:
        return None
    try:
        decode_envelope(hints)
    except HintDecodeError:
        malformed.note()
        if malformed.strict():
            raise
        return None
    adapted.kv_hints = hints
    return hints


@cache
def _reuses_nothing() -> bool:
    """Whether texts would be looked for in vain."""
    return config.load().reuse.mode == "off"


def _count_fixed_messages(hints: dict[str, Any], tokenizer: Any, request: Any, adapted: Any) -> dict[str, Any]:
    """Turn ``fixed_prompt_messages`` of the request's step into ``fixed_prompt_tokens``, where that is possible."""

    def counted(action: dict[str, Any]) -> dict[str, Any] | None:
        facts = decode_envelope({**hints, "actions": [action]}).facts if action["action_type"] == STEP_TYPE else ()
        step = facts[0].fact if facts else None  # none if it is of another version
        if step is None or not starts_step(step):
            return None
        if step.fixed_prompt_messages is None or step.fixed_prompt_tokens is not None:
            return action
        tokens = _fixed_tokens(tokenizer, request, adapted, step.fixed_prompt_messages)
        return action if tokens is None else {**action, "payload": {**action["payload"], "fixed_prompt_tokens": tokens}}

    return _with_last(hints, counted)


def _find_texts(hints: dict[str, Any], tokenizer: Any, request: Any, adapted: Any) -> dict[str, Any]:
    """Say in tokens of this prompt which of its texts may be reused (``kvflow.segments``)."""

    def found(action: dict[str, Any]) -> dict[str, Any] | None:
        if action["action_type"] != SEGMENTS_TYPE:
            return None
        decoded = decode_envelope({**hints, "actions": [action]}).segments
        if decoded is None:  # of another version
            return None
        asked = decoded.segments
        slots = find_slots(asked, lambda: _prompt(tokenizer, adapted), tokenizer, messages=roles_and_texts(request))
        ranges = [{"start_tokens": start, "end_tokens": end, "name": name} for start, end, name in slots]
        missing = not ranges and bool(asked.ranges or asked.messages)
        return {**action, "payload": {"ranges": ranges, "messages": missing, "mode": asked.mode}}

    return _with_last(hints, found)


def _with_last(hints: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> dict[str, Any]:
    """Change the one action that counts: the last one of which ``change`` does not say None."""
    actions = [*hints.get("actions", ())]
    for place in reversed(range(len(actions))):
        if (changed := change(actions[place])) is not None:
            actions[place] = changed
            break
    return {**hints, "actions": actions}


def _fixed_tokens(tokenizer: Any, request: Any, adapted: Any, count: int) -> int | None:
    """Tokens the first ``count`` messages have in common with the whole rendered prompt.

    None where rendering them alone does not give the beginning of the whole (a template of its own, or one that
    cannot render them): the boundary is then learned from prompts as without a declaration.
    """
    messages = [plain(message.model_dump(exclude_none=True)) for message in request.messages[:count]]
    tools = [tool.model_dump() for tool in request.tools] if request.tools else None
    extra = request.chat_template_kwargs or {}

    def render() -> list[int]:
        try:
            text = tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=False, **extra
            )
        except Exception as error:  # templates are other people's programs
            logger.debug("fixed_prompt_messages cannot be rendered alone: %s", error)
            text = ""
        return tokenizer.encode(text, add_special_tokens=False)

    rendered = _rendered.tokens(tokenizer, json.dumps([messages, tools, extra], default=str), render)
    common = common_prefix(rendered.tolist(), _prompt(tokenizer, adapted))
    return common if rendered and common >= _MIN_SHARE * len(rendered) else None


def _prompt(tokenizer: Any, adapted: Any) -> list[int]:
    """The tokens of a rendered chat."""
    prompt = adapted.input_ids
    return tokenizer.encode(adapted.text, add_special_tokens=False) if prompt is None else list(prompt)
