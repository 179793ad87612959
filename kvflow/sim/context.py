"""Prompts as runs of pages: what the simulated radix tree compares instead of tokens.

A page is identified by what stands in it: the content and where in it the page begins, or, for a page in which several
pieces meet, all of them. Equal identities are equal tokens. A *run* is a stretch of pages of one content.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from kvflow.trace import Piece

Run = tuple[int, int, int]
"""(identity of the content at its phase, first page in it, number of pages)."""


@dataclass(slots=True, eq=False)
class Context:
    """A sequence of tokens: a prompt, or a prompt with its answer.

    Attributes:
        pieces: what it is made of, neighbours merged.
        piece_ends: position of each piece's last token + 1.
        runs: its full pages.
        run_ends: position of each run's last page + 1, in pages.
        digests: one per full unit, chained.
    """

    pieces: list[Piece]
    piece_ends: list[int]
    runs: list[Run]
    run_ends: list[int]
    digests: list[int]

    @property
    def tokens(self) -> int:
        """Length in tokens."""
        return self.piece_ends[-1] if self.piece_ends else 0

    @property
    def pages(self) -> int:
        """Number of full pages."""
        return self.run_ends[-1] if self.run_ends else 0


class Pager:
    """Turns pieces into contexts. Identities are the same for all contexts of one pager.

    Args:
        page_tokens: page size.
        unit_pages: pages per digest.
    """

    def __init__(self, page_tokens: int, unit_pages: int) -> None:
        self.page_tokens = page_tokens
        self.unit_tokens = page_tokens * unit_pages
        self._unit_pages = unit_pages
        self._identities: dict[Hashable, int] = {}

    def empty(self) -> Context:
        """A context without tokens."""
        return Context([], [], [], [], [])

    def extend(self, base: Context, keep_tokens: int, pieces: Sequence[Piece]) -> Context:
        """Keep the first tokens of a context and add pieces.

        Cost: O(pieces kept) to copy references and O(pages added), in practice microseconds.
        """
        kept = min(keep_tokens, base.tokens)
        count = bisect_right(base.piece_ends, kept)
        context = Context(base.pieces[:count], base.piece_ends[:count], [], [], [])
        start = context.tokens
        if kept > start:
            last = base.pieces[count]
            self._append(context, Piece(last.content, kept - start, last.offset))
        pages = kept // self.page_tokens
        self._keep_pages(context, base, pages)
        for piece in pieces:
            self._append(context, piece)
        self._page(context)
        return context

    @staticmethod
    def _append(context: Context, piece: Piece) -> None:
        end = context.tokens + piece.tokens
        if context.pieces:
            last = context.pieces[-1]
            if last.content == piece.content and last.offset + last.tokens == piece.offset:
                context.pieces[-1] = Piece(last.content, last.tokens + piece.tokens, last.offset)
                context.piece_ends[-1] = end
                return
        context.pieces.append(piece)
        context.piece_ends.append(end)

    def _keep_pages(self, context: Context, base: Context, pages: int) -> None:
        count = bisect_right(base.run_ends, pages)
        context.runs = base.runs[:count]
        context.run_ends = base.run_ends[:count]
        done = context.pages
        if pages > done:
            identity, first, _ = base.runs[count]
            context.runs.append((identity, first, pages - done))
            context.run_ends.append(pages)
        context.digests = base.digests[: pages // self._unit_pages]

    def _page(self, context: Context) -> None:
        """Cut what is not yet paged into runs, and digest the units that are complete now."""
        size = self.page_tokens
        position = context.pages * size
        index = bisect_right(context.piece_ends, position)
        while index < len(context.pieces):
            piece, end = context.pieces[index], context.piece_ends[index]
            inside = end - position
            offset = piece.offset + piece.tokens - inside
            if inside >= size:
                self._add_run(context, (piece.content, offset % size), offset // size, inside // size)
                position += inside // size * size
                index += position == end
                continue
            if context.tokens - position < size:
                break
            mixed, position, index = self._mixed_page(context, position, index)
            self._add_run(context, mixed, 0, 1)
        self._digest(context)

    def _mixed_page(self, context: Context, position: int, index: int) -> tuple[Hashable, int, int]:
        """Identify a page in which several pieces meet; returns it, where it ends, and the piece that goes on there."""
        page_end = position + self.page_tokens
        parts: list[Piece] = []
        while position < page_end:
            piece, end = context.pieces[index], context.piece_ends[index]
            take = min(end, page_end) - position
            parts.append(Piece(piece.content, take, piece.offset + piece.tokens - (end - position)))
            position += take
            index += position == end
        return tuple(parts), position, index

    def _add_run(self, context: Context, what: Hashable, first: int, pages: int) -> None:
        identity = self._identities.setdefault(what, len(self._identities))
        end = context.pages + pages
        if context.runs:
            last_identity, last_first, last_pages = context.runs[-1]
            if last_identity == identity and last_first + last_pages == first:
                context.runs[-1] = (identity, last_first, last_pages + pages)
                context.run_ends[-1] = end
                return
        context.runs.append((identity, first, pages))
        context.run_ends.append(end)

    def _digest(self, context: Context) -> None:
        chain = context.digests
        digest = chain[-1] if chain else 0
        for unit in range(len(chain), context.pages // self._unit_pages):
            start = unit * self._unit_pages
            digest = hash((digest, *runs_between(context, start, start + self._unit_pages))) & (2**63 - 1)
            chain.append(digest)


def runs_between(context: Context, start: int, end: int) -> list[Run]:
    """Runs of the pages from ``start`` to ``end``."""
    if start >= end:
        return []
    index, last = bisect_right(context.run_ends, start), bisect_left(context.run_ends, end)
    runs = context.runs[index : last + 1]
    identity, first, pages = runs[-1]
    runs[-1] = identity, first, pages - (context.run_ends[last] - end)
    identity, first, pages = runs[0]
    before = start - (context.run_ends[index - 1] if index else 0)
    runs[0] = identity, first + before, pages - before
    return runs
