"""Prompts told as numbers of blocks, kept as runs of consecutive ones: a long prompt is a few of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kvflow.trace.schema import Piece


@dataclass(slots=True)
class Runs:
    """Block numbers of a prompt.

    Attributes:
        runs: first number and count of each run; no run goes on where the one before it ends.
        blocks: how many there are.
    """

    runs: list[tuple[int, int]] = field(default_factory=list)
    blocks: int = 0

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Runs:
        """Gather single numbers."""
        made = cls()
        first, count = 0, 0
        for number in numbers:
            if number == first + count and count:
                count += 1
            else:
                made.append(first, count)
                first, count = number, 1
        made.append(first, count)
        return made

    @property
    def last(self) -> int:
        """Number of the last block; there must be one."""
        first, count = self.runs[-1]
        return first + count - 1

    def append(self, first: int, count: int) -> None:
        """Add ``count`` blocks, numbered from ``first`` on."""
        if not count:
            return
        self.blocks += count
        if self.runs:
            last_first, last_count = self.runs[-1]
            if last_first + last_count == first:
                self.runs[-1] = (last_first, last_count + count)
                return
        self.runs.append((first, count))

    def head(self, blocks: int) -> Runs:
        """Return the first ``blocks`` of them, or all if there are not as many."""
        if blocks >= self.blocks:
            return Runs(self.runs.copy(), self.blocks)
        head = Runs()
        for first, count in self.runs:
            head.append(first, min(count, blocks - head.blocks))
            if head.blocks == blocks:
                break
        return head

    def common(self, other: Runs) -> int:
        """Count the blocks with which both begin."""
        blocks = 0
        for (first, count), (other_first, other_count) in zip(self.runs, other.runs, strict=False):
            if first != other_first:
                break
            blocks += min(count, other_count)
            if count != other_count:
                break
        return blocks

    def pieces(self, content: str, block_tokens: int, start: int, end: int) -> Iterator[Piece]:
        """Tokens ``start`` to ``end`` of the prompt; block ``n`` is the slice of ``content`` from ``n * block_tokens``.

        What goes beyond the last block is left out.
        """
        position = 0
        for first, count in self.runs:
            tokens = count * block_tokens
            skipped = max(0, start - position)
            taken = min(tokens, end - position) - skipped
            if taken > 0:
                yield Piece(content, taken, first * block_tokens + skipped)
            position += tokens
            if position >= end:
                return
