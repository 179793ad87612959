"""Where requests bring their hints, and how long they are under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Set
from dataclasses import asdict
from itertools import repeat
from typing import Any

from kvflow.errors import HintDecodeError
from kvflow.hints import decode_envelope
from kvflow.patches import commands_http, inferring, malformed
from kvflow.patches.batch_hints import check_number, one_each
from kvflow.patches.front import Admission, Front
from kvflow.patches.guard import note

_PROMPTS = ("text", "input_ids", "input_embeds")


def generate_contract(result: str | None, body: Any) -> str | None:
    """Report malformed hints in a /generate body (hook after ``generate_contract_error``)."""
    if result is not None or not isinstance(body, Mapping) or not body.get("kv_hints") or not malformed.strict():
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
    heard: set[int] = set()
    said = inferring.Said(obj, front.streams_deltas) if not obj.kv_hints else None
    try:
        _admit(front, obj, admissions)
        async for answer in generate():
            if _is_part(answer):
                heard.add(_place(answer, 0, obj, len(admissions)))
                if said is not None and obj.is_single:
                    said.add(answer, last=False)
                yield answer
                continue
            complete.update(_completed(answer, obj, len(admissions)))
            heard |= complete
            if _is_last(answer, obj):
                if said is not None:
                    said.add(answer, last=True)
                # Not before the client has it, which would make it wait, but before it can ask again.
                asyncio.get_running_loop().call_soon(_answered, front, admissions, told, complete, heard, said)
                told = len(admissions)
            yield _with_outcomes(front, answer, admissions)
    finally:
        _answered(front, admissions, told, complete, heard)


def _answered(
    front: Front,
    admissions: list[Admission],
    told: int,
    complete: Set[int],
    heard: Set[int],
    said: inferring.Said | None = None,
) -> None:
    for place, admission in enumerate(admissions[told:], told):
        tokens = said.all if said is not None else ()
        front.answered(admission, tokens, complete=place in complete, heard=place in heard)


def _completed(answer: Any, obj: Any, requests: int) -> Iterator[int]:
    """Places of the requests, among so many, whose answer ends here, unless SGLang has given them up."""
    for place, each in enumerate(answer if isinstance(answer, list) else [answer]):
        reason = each.get("meta_info", {}).get("finish_reason") if isinstance(each, dict) else None
        if reason and not (isinstance(reason, dict) and reason.get("type") == "abort"):
            yield _place(each, place, obj, requests)


def _place(answer: Any, place: int, obj: Any, requests: int) -> int:
    """Which of the requests, among so many, an answer is of, with as many samples each."""
    return 0 if requests == 1 else answer.get("index", place) // getattr(obj, "parallel_sample_num", 1)


def _is_part(answer: Any) -> bool:
    """Whether more of a request's answer follows, as of most that are streamed."""
    return isinstance(answer, dict) and not answer.get("meta_info", {}).get("finish_reason")


def _is_last(answer: Any, obj: Any) -> bool:
    """Whether nothing follows an answer that is no part: a batch's in one list, or the end of a single request's."""
    return isinstance(answer, list) or (isinstance(answer, dict) and obj.is_single)


def _with_outcomes(front: Front, answer: Any, admissions: list[Admission]) -> Any:
    """Say in the last answers of a request what has become of its commands (``meta_info.kvflow``)."""
    answers = answer if isinstance(answer, list) else [answer]
    if not admissions or len(answers) % len(admissions):  # an answer of a batch that is streamed, or not all were taken
        return answer
    samples = len(answers) // len(admissions)
    for place, each in enumerate(answers):
        meta = each.get("meta_info") if isinstance(each, dict) else None
        if isinstance(meta, dict) and meta.get("finish_reason"):
            outcomes = commands_http.outcomes(front, admissions[place // samples])
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
        texts = obj.text if isinstance(hints, list) and isinstance(obj.text, list) else repeat(obj.text)
        for hint, text in zip(hints if isinstance(hints, list) else [hints], texts, strict=False):
            admissions.append(front.admit(hint, text if isinstance(text, str) else None) if hint else Admission())
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
        if malformed.strict():
            raise
        obj.kv_hints = None
        return False
    return True
