"""Requests whose prompts are lists of block hashes: Mooncake's traces, and Bailian's, which say who continues whom.

A row is one request: ``timestamp`` (Mooncake: milliseconds, Bailian: seconds), ``input_length``, ``output_length``,
``hash_ids`` and, in Bailian's, ``chat_id``, ``parent_chat_id``, ``type``. Equal hashes are equal tokens anywhere in the
file, so that workflows share what they begin with alike.

Assumed, beyond what the source says:

* Tokens per block: ``block_size`` if a row has it, else the one of 16, 32, ... 1024 that fits the first rows.
* Bailian's requests continue their parent's conversation. Without parents, a request continues the conversation whose
  latest request has its blocks, all but the last, as a beginning of this one's; they must be at least two, because
  conversations that begin with the same system prompt share the first.
* A conversation is a workflow. An hour without a request ends it, or the end of the file.
* Only blocks are kept, not answers: the next prompt's hashes do not tell whether it holds them.
* ``delay_s`` is the time since the conversation's previous request. It includes the time that one took on the
  server, which the source does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import xxhash
from pydantic import Field

from kvflow.trace.importers.base import Clock, Importer, Json, Row, Tokens, digest, since
from kvflow.trace.importers.runs import Runs
from kvflow.trace.schema import BLOCKS, Event, LLMCall, Piece, Prompt, WorkflowEnd, WorkflowStart

BLOCK_TOKENS = (512, 16, 32, 64, 128, 256, 1024)
IDLE_S = 3600.0
LEAST_BLOCKS = 2
MOST_TOKENS = 10**8
"""Of a prompt; more is a mistake."""


class _Request(Row):
    timestamp: Clock
    input_length: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    output_length: Tokens
    hash_ids: list[Tokens | str]
    block_size: Annotated[int, Field(ge=1)] | None = None
    chat_id: int | str | None = None
    parent_chat_id: int | str | None = None
    type: str | None = None
    group: str | None = None


@dataclass(slots=True)
class _Conversation:
    workflow: str
    call: int
    at_s: float
    tokens: int
    runs: Runs
    chats: list[int | str]
    end: int | None = None


class HashImporter(Importer):
    """One workflow per conversation; see the module."""

    format: ClassVar[str] = "hashes"
    token_counts = "counted"
    notes = "answers are not kept in prompts; delay_s includes the recorded server's time"

    def __init__(self, sample: Sequence[Json], path: Path) -> None:
        super().__init__(sample, path)
        self._content = f"{BLOCKS}{digest(str(sample[:1]))}"
        self._block_tokens = _block_tokens(sample)
        self._started_count = 0
        self._live: dict[str, _Conversation] = {}  # idle for longest first
        self._of_chat: dict[int | str, _Conversation] = {}
        self._of_end: dict[int, _Conversation] = {}

    @classmethod
    def fits(cls, row: Json) -> bool:
        """A request with hashes."""
        return "hash_ids" in row and "input_length" in row

    def events(self, row: str) -> Sequence[Event]:
        """Events of one request, and the ends of workflows that are idle by then."""
        request = _Request.model_validate_json(row)
        block_tokens = request.block_size or self._block_tokens
        runs = Runs.of(_number(each) for each in request.hash_ids)
        if (runs.blocks - 1) * block_tokens >= request.input_length:
            raise ValueError(f"{runs.blocks} blocks of {block_tokens} tokens for {request.input_length} tokens")
        at_s = request.timestamp if request.chat_id is not None else request.timestamp / 1000
        events: list[Event] = list(self._ended(at_s))
        known = self._continued(request, runs)
        if known is None:
            kind = "mooncake" if request.chat_id is None else f"bailian-{request.type or 'text'}"
            known = self._started(request, at_s)
            events.append(WorkflowStart(workflow=known.workflow, t=at_s, type=kind, group=request.group))
        events.append(self._call(known, request, runs, at_s, block_tokens))
        self._note(known, request, runs, at_s)
        return events

    def rest(self) -> Iterable[Event]:
        """Ends of the workflows that are still there."""
        return [WorkflowEnd(workflow=workflow) for workflow in self._live]

    def _continued(self, request: _Request, runs: Runs) -> _Conversation | None:
        if request.chat_id is not None:
            parent = request.parent_chat_id
            return None if parent is None else self._of_chat.get(parent)
        position = runs.blocks
        for first, count in reversed(runs.runs):
            for number in range(first + count - 1, first - 1, -1):
                if position < LEAST_BLOCKS:
                    return None
                known = self._of_end.get(number)
                if known and known.runs.blocks - 1 == position and known.runs.common(runs) >= position:
                    return known
                position -= 1
        return None

    def _started(self, request: _Request, at_s: float) -> _Conversation:
        self._started_count += 1
        name = f"conversation {self._started_count}" if request.chat_id is None else f"chat {request.chat_id}"
        return _Conversation(self.names.unique(name), 0, at_s, 0, Runs(), [])

    def _call(self, known: _Conversation, request: _Request, runs: Runs, at_s: float, block_tokens: int) -> LLMCall:
        common = known.runs.common(runs)
        kept = min(common * block_tokens, known.tokens, request.input_length)
        pieces = list(runs.pieces(self._content, block_tokens, kept, request.input_length))
        left = request.input_length - kept - sum(piece.tokens for piece in pieces)
        if left:
            pieces.append(Piece(f"{known.workflow}/{known.call}/end", left))
        return LLMCall(
            workflow=known.workflow,
            t=at_s,
            agent="chat",
            call=f"c{known.call + 1}",
            prompt=Prompt(base=f"c{known.call}" if kept else None, keep_tokens=kept, add=tuple(pieces)),
            output=f"{self._content}/{known.workflow}/{known.call + 1}",
            output_tokens=request.output_length,
            delay_s=since(known.at_s, at_s) if known.call else None,
        )

    def _note(self, known: _Conversation, request: _Request, runs: Runs, at_s: float) -> None:
        self._forget(known)
        known.call += 1
        known.at_s, known.tokens, known.runs = at_s, request.input_length, runs
        if request.chat_id is not None:
            known.chats.append(request.chat_id)
            self._of_chat[request.chat_id] = known
        elif runs.blocks > LEAST_BLOCKS:
            known.end = runs.head(runs.blocks - 1).last
            self._of_end[known.end] = known
        self._live[known.workflow] = known

    def _forget(self, known: _Conversation) -> None:
        self._live.pop(known.workflow, None)
        if known.end is not None and self._of_end.get(known.end) is known:
            del self._of_end[known.end]
            known.end = None

    def _ended(self, now_s: float) -> Iterator[WorkflowEnd]:
        while self._live:
            known = next(iter(self._live.values()))
            if now_s - known.at_s <= IDLE_S:
                return
            self._forget(known)
            for chat in known.chats:
                self._of_chat.pop(chat, None)
            yield WorkflowEnd(workflow=known.workflow)


def _number(name: int | str) -> int:
    return name if isinstance(name, int) else xxhash.xxh3_64_intdigest(name.encode())


def _block_tokens(sample: Sequence[Json]) -> int:
    """Tokens per block that fit most rows, whether the last block of a prompt is a full one or not."""

    def fits(row: Json, block_tokens: int) -> bool:
        tokens, hashes = row.get("input_length"), row.get("hash_ids")
        if not isinstance(tokens, int) or not isinstance(hashes, list):
            return False
        return len(hashes) in (tokens // block_tokens, -(-tokens // block_tokens))

    return max(BLOCK_TOKENS, key=lambda block_tokens: sum(fits(row, block_tokens) for row in sample))
