"""Growing conversations: what of a prompt the previous call has left, and what is new.

A provider's token counts are for whole prompts. They are shared out to the texts in proportion to their length, so that
every prompt has exactly the length that was counted:

* what the previous prompt held keeps its tokens, and so does the answer to it;
* the rest of the count goes to the messages that are new;
* if there is no room for them, the answer counted more than what came back (hidden reasoning), so that it is left out
  and what can be read of it is new; if that is not enough, the prompt has been shortened somewhere, and its head is
  kept as far as the new messages leave room.

Where nothing was counted, a text has as many tokens as its length says.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from kvflow.trace.importers.base import digest, estimated_tokens
from kvflow.trace.schema import Piece, Prompt


@dataclass(slots=True)
class Part:
    """One text of a conversation.

    Attributes:
        key: tells it apart in its conversation; None for what is no message (schemas, what the source does not show).
        name: of its text. Texts of a name may be counted differently, so that a content is named by both.
        estimate: tokens by its length.
        tokens: None until a prompt with it has been counted.
        content: name of its content, if that is not made of the two.
        is_answer: the model wrote it.
    """

    key: Hashable | None
    name: str
    estimate: int
    tokens: int | None = None
    content: str | None = None
    is_answer: bool = False

    def piece(self) -> Piece:
        """Itself, once its tokens are known."""
        tokens = self.tokens or 1
        return Piece(self.content or f"{self.name}.{tokens}", tokens)


def text_part(key: Hashable | None, text: str, tokens: int | None = None) -> Part:
    """A message.

    Args:
        tokens: how many, if that is known beforehand.
    """
    return Part(key=key, name=digest(text), estimate=estimated_tokens(text), tokens=tokens)


def unseen_part(content: str, tokens: int) -> Part:
    """Something the source counts but does not show."""
    return Part(key=None, name=content, estimate=tokens, tokens=tokens, content=content)


class Conversation:
    """The prompts of one agent, each continuing the one before.

    Args:
        name: unique in the trace; names contents that the source does not show.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._call: str | None = None
        self._kept: list[Part] = []
        self._kept_tokens = 0
        self._new: list[Part] = []

    @property
    def asked(self) -> bool:
        """There was a call."""
        return self._call is not None

    @property
    def context_tokens(self) -> int:
        """Tokens of the last call's prompt and answer, as far as they are still in use."""
        return self._kept_tokens

    @property
    def new_tokens(self) -> int:
        """Estimate of what has been added since the last call."""
        return sum(part.estimate if part.tokens is None else part.tokens for part in self._new)

    def add(self, part: Part) -> None:
        """Append a message."""
        self._new.append(part)

    def put_first(self, part: Part) -> None:
        """Put something in front, before the first call."""
        self._new.insert(0, part)

    def replace(self, parts: Sequence[Part]) -> None:
        """Rewrite the history. What has not changed at its beginning, by the keys, is kept."""
        tokens = {part.key: part for part in self._kept if part.key is not None}
        kept = 0
        matched = 0
        for index, part in enumerate(self._kept):
            if part.key is not None:
                if matched == len(parts) or parts[matched].key != part.key:
                    break
                matched += 1
            kept = index + 1
        self._kept = self._kept[:kept]
        self._kept_tokens = sum(part.tokens or 0 for part in self._kept)
        self._new = [tokens.get(part.key, part) for part in parts[matched:]]

    def ask(self, call: str, counted: int | None) -> Prompt:
        """Prompt of the next call.

        Args:
            call: its name.
            counted: its length in tokens, if that is known.
        """
        if counted:
            self._fit(call, counted)
        else:
            for part in self._new:
                part.tokens = part.estimate if part.tokens is None else part.tokens
        prompt = Prompt(
            base=self._call if self._kept_tokens else None,
            keep_tokens=self._kept_tokens,
            add=tuple(part.piece() for part in self._new),
        )
        self._settle(call)
        return prompt

    def answer(self, part: Part) -> str:
        """Append what the model answered, its tokens known; returns the name of its content."""
        tokens = part.tokens or 0
        if tokens:
            part.is_answer = True
            self._kept.append(part)
            self._kept_tokens += tokens
        else:
            part.tokens = None
            self._new.append(part)
        return f"{part.name}.{tokens}"

    def copy(self) -> Conversation:
        """Another conversation that goes on from the same call."""
        other = Conversation(self._name)
        other._call, other._kept_tokens = self._call, self._kept_tokens
        other._kept, other._new = [replace(part) for part in self._kept], [replace(part) for part in self._new]
        return other

    def shared_tokens(self, keys: Sequence[Hashable]) -> int:
        """Tokens that the last call's context shares with a prompt of the parts with these keys."""
        shared, matched = 0, 0
        for part in self._kept:
            if part.key is not None:
                if matched == len(keys) or keys[matched] != part.key:
                    break
                matched += 1
            shared += part.tokens or 0
        return shared

    def messages(self) -> Iterator[Part]:
        """Messages of the last call's context, but for answers."""
        return (part for part in self._kept if part.key is not None and not part.is_answer)

    def head_tokens(self, parts: int) -> int:
        """Tokens of the first parts of the last call's context."""
        return sum(part.tokens or 0 for part in self._kept[:parts])

    def _settle(self, call: str) -> None:
        self._call = call
        self._kept += self._new
        self._kept_tokens += sum(part.tokens or 0 for part in self._new)
        self._new = []

    def _fit(self, call: str, counted: int) -> None:
        if not self._has_room(counted) and self._kept and self._kept[-1].is_answer:
            self._reopen_answer()
        if not self._has_room(counted):
            for part in self._new:
                part.tokens = None if part.key is not None else part.tokens
            self._keep_only(max(0, counted - self.new_tokens))
        if not self._has_room(counted):
            self._new = []
            self._keep_only(min(self._kept_tokens, counted))
        self._share(call, counted - self._kept_tokens)

    def _has_room(self, counted: int) -> bool:
        least = sum(1 if part.tokens is None else part.tokens for part in self._new)
        return counted - self._kept_tokens >= least

    def _reopen_answer(self) -> None:
        part = self._kept.pop()
        self._kept_tokens -= part.tokens or 0
        self._new.insert(0, Part(key=part.key, name=part.name, estimate=part.estimate))

    def _keep_only(self, tokens: int) -> None:
        kept: list[Part] = []
        left = min(tokens, self._kept_tokens)
        self._kept_tokens = left
        for part in self._kept:
            if left <= 0:
                break
            if (part.tokens or 0) > left:
                # Its beginning; nobody adds it again, so that it needs no content of its own.
                kept.append(Part(key=None, name=part.name, estimate=left, tokens=left, content=part.piece().content))
                break
            kept.append(part)
            left -= part.tokens or 0
        self._kept = kept

    def _share(self, call: str, room: int) -> None:
        open_parts = [part for part in self._new if part.tokens is None]
        room -= sum(part.tokens or 0 for part in self._new)
        if not open_parts:
            if room > 0:
                self._new.append(unseen_part(f"{self._name}/{call}/unseen", room))
            return
        weight = sum(part.estimate for part in open_parts)
        for index, part in enumerate(open_parts):
            after = len(open_parts) - index - 1
            part.tokens = max(1, min(room - after, round(room * part.estimate / weight)))
            room -= part.tokens
            weight -= part.estimate
        open_parts[-1].tokens = (open_parts[-1].tokens or 0) + room
