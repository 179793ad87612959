"""Where requests bring their hints: /generate, chat completions and completions."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Set
from dataclasses import asdict
from functools import cache
from typing import Any

from kvflow import config
from kvflow.control import starts_step
from kvflow.engine.boundary import common_prefix
from kvflow.errors import HintDecodeError
from kvflow.hints import decode_envelope
from kvflow.hints.models import SEGMENTS_TYPE, STEP_TYPE
from kvflow.patches import commands_http, inferring, malformed
from kvflow.patches.batch_hints import check_number, one_each
from kvflow.patches.front import Admission, Front
from kvflow.patches.guard import note
from kvflow.patches.locating import find_slots, plain, roles_and_texts
from kvflow.patches.token_cache import TokenCache

logger = logging.getLogger(__name__)

_MIN_SHARE = 0.9
_PROMPTS = ("text", "input_ids", "input_embeds")
_rendered = TokenCache(max_bytes=32 * 2**20)


def generate_contract(result: str | None, body: Any) -> str | None:
    """Report malformed hints in a /generate body (hook after ``generate_contract_error``)."""
    if result is not None or not isinstance(body, Mapping) or not body.get("kv_hints") or not _strict():
        return None
    hints = body["kv_hints"]
    if not one_each(hints, *map(body.get, _PROMPTS)):
        return None  # SGLang says so itself
    try:
        check_number(hints)
        for envelope in hints if isinstance(hints, list) else [hints]:
            if envelope:  # SGLang takes what is empty for nothing
                decode_envelope(envelope)
    except HintDecodeError as error:
        malformed.note()
        return str(error)
    return None


def request(original: Callable[..., Any], self: Any, obj: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
    """Take the facts of a request (hook around ``TokenizerManager.generate_request``, an async generator)."""
    silent = not getattr(obj, "kv_hints", None)
    if (silent and not inferring.possible(obj)) or getattr(obj, "_kvflow_own", False):
        return original(self, obj, *args, **kwargs)
    return _until_answered(lambda: original(self, obj, *args, **kwargs), Front.of(self), obj)


async def _until_answered(generate: Callable[[], AsyncIterator[Any]], front: Front, obj: Any) -> AsyncIterator[Any]:
    """Take a request's facts as it starts, and pass its answers on until they end or nobody wants them any more.

    All of it happens in here, so that a request whose answers are never asked for does not count as in flight.

    Raises:
        HintDecodeError: the hints are malformed and ``intake.strict`` is set.
    """
    admissions: list[Admission] = []
    told = 0
    complete: set[int] = set()
    said = inferring.Said(obj, front.streams_deltas) if not obj.kv_hints else None
    try:
        _admit(front, obj, admissions)
        async for answer in generate():
            if _is_part(answer, obj):
                if said is not None:
                    said.add(answer, last=False)
                yield answer
                continue
            complete.update(_completed(answer, obj, len(admissions)))
            if _is_last(answer, obj):
                if said is not None:
                    said.add(answer, last=True)
                # Not before the client has it, which would make it wait, but before it can ask again.
                asyncio.get_running_loop().call_soon(_answered, front, admissions, told, complete, said)
                told = len(admissions)
            yield _with_outcomes(front, answer, admissions)
    finally:
        _answered(front, admissions, told, complete)


def _answered(
    front: Front, admissions: list[Admission], told: int, complete: Set[int], said: inferring.Said | None = None
) -> None:
    for place, admission in enumerate(admissions[told:], told):
        front.answered(admission, said.all if said is not None else (), complete=place in complete)


def _completed(answer: Any, obj: Any, requests: int) -> Iterator[int]:
    """Places of the requests, among so many, whose answer ends here, unless SGLang has given them up."""
    samples = getattr(obj, "parallel_sample_num", 1)
    for place, each in enumerate(answer if isinstance(answer, list) else [answer]):
        reason = each.get("meta_info", {}).get("finish_reason") if isinstance(each, dict) else None
        if reason and not (isinstance(reason, dict) and reason.get("type") == "abort"):
            yield 0 if requests == 1 else each.get("index", place) // samples


def _is_part(answer: Any, obj: Any) -> bool:
    """Whether more of a single request's answer follows, as of most that are streamed."""
    return isinstance(answer, dict) and obj.is_single and not answer.get("meta_info", {}).get("finish_reason")


def _is_last(answer: Any, obj: Any) -> bool:
    """Whether nothing follows an answer that is no part: a batch's in one list, or the end of a single request's."""
    return isinstance(answer, list) or (isinstance(answer, dict) and obj.is_single)


def _with_outcomes(front: Front, answer: Any, admissions: list[Admission]) -> Any:
    """Say in the last answers of a request what has become of its commands (``meta_info.kvflow``)."""
    answers = answer if isinstance(answer, list) else [answer]
    if len(admissions) not in (1, len(answers)):  # an answer of a batch that is streamed
        return answer
    for each, admission in zip(answers, admissions * (len(answers) // len(admissions)), strict=True):
        meta = each.get("meta_info") if isinstance(each, dict) else None
        if isinstance(meta, dict) and meta.get("finish_reason"):
            outcomes = commands_http.outcomes(front, admission)
            if outcomes:
                meta["kvflow"] = {"outcomes": [asdict(outcome) for outcome in outcomes]}
    return answer


def _admit(front: Front, obj: Any, admissions: list[Admission]) -> None:
    hints = obj.kv_hints
    try:
        if not hints:
            inferring.admit(front, obj, admissions)
            return
        if not _may_be_taken(obj):
            return
        text = obj.text if isinstance(obj.text, str) else None
        for hint in hints if isinstance(hints, list) else [hints]:
            admissions.append(front.admit(hint, text) if hint else Admission())
        envelopes = [admission.envelope for admission in admissions]
        obj.kv_hints = envelopes if isinstance(hints, list) else envelopes[0]
    except HintDecodeError:
        raise
    except Exception:
        note("taking hints")
        obj.kv_hints = None


def _may_be_taken(obj: Any) -> bool:
    """Whether a request has no more hints than it may have.

    Raises:
        HintDecodeError: it has more, and ``intake.strict`` is set.
    """
    if not one_each(obj.kv_hints, *(getattr(obj, name, None) for name in _PROMPTS)):
        return False
    try:
        check_number(obj.kv_hints)
    except HintDecodeError:
        malformed.note()
        if _strict():
            raise
        obj.kv_hints = None
        return False
    return True


def chat(result: Any, self: Any, request: Any, raw_request: Any = None) -> Any:
    """Carry ``kv_hints`` of a chat request (hook after ``OpenAIServingChat._convert_to_internal_request``).

    Runs in a thread pool, so it only prepares the envelope; :func:`request` takes the facts.

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
        if _strict():
            raise
        return None
    adapted.kv_hints = hints
    return hints


@cache
def _strict() -> bool:
    """Read once: settings do not change while a server runs, and the file they came from may."""
    return config.load().intake.strict


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
