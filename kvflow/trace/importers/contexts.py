"""Prompts put together from whole texts: which earlier call each of them continues."""

from __future__ import annotations

from collections.abc import Sequence

from kvflow.trace.importers.base import digest, estimated_tokens
from kvflow.trace.schema import Piece, Prompt


def text_piece(text: str, tokens: int | None = None) -> Piece:
    """A text as a content of its own, of as many tokens as its length says unless they are given."""
    count = max(1, estimated_tokens(text) if tokens is None else tokens)
    return Piece(f"{digest(text)}.{count}", count)


class Contexts:
    """The latest context of every agent of a workflow: its prompt and the answer to it."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[str, list[Piece]]] = {}

    def prompt(self, pieces: Sequence[Piece]) -> Prompt:
        """Prompt with these pieces. It continues the context that begins with most of them."""
        base, kept = None, 0
        for call, context in self._latest.values():
            common = 0
            while common < min(len(context), len(pieces)) and context[common] == pieces[common]:
                common += 1
            if common > kept:
                base, kept = call, common
        return Prompt(base=base, keep_tokens=sum(piece.tokens for piece in pieces[:kept]), add=tuple(pieces[kept:]))

    def note(self, agent: str, call: str, pieces: Sequence[Piece], answer: Piece | None) -> None:
        """Remember what an agent's call leaves."""
        self._latest[agent] = (call, [*pieces, answer] if answer else [*pieces])
