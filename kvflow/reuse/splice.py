"""Which tokens of a prompt are computed, and which are put in between: pure arithmetic on positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvflow.reuse.anchors import Anchor
from kvflow.reuse.kv import portions
from kvflow.reuse.segments import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Graft:
    """A run of a prompt whose KV is not computed there.

    Attributes:
        start: first token ...
        end: ... and the one after its last.
        segment: where the base KV comes from; None if the anchors' own KV is used (the prefix that follows a slot).
        offset: where ``start`` is in that segment.
        anchors: whose offsets are added, with weights that sum to one; none: position is all that is corrected.
        place: where ``start`` is in the anchors.
    """

    start: int
    end: int
    segment: Segment | None = None
    offset: int = 0
    anchors: tuple[tuple[Anchor, float], ...] = ()
    place: int = 0

    def within(self, start: int, end: int) -> Graft | None:
        """The part of it in [start, end); None if there is none."""
        first, last = max(start, self.start), min(end, self.end)
        if first >= last:
            return None
        moved = first - self.start
        return Graft(
            start=first,
            end=last,
            segment=self.segment,
            offset=self.offset + moved,
            anchors=self.anchors,
            place=self.place + moved,
        )

    def portions(self) -> Iterator[Graft]:
        """It in parts of no more tokens than are put in at a time."""
        parts = (self.within(start, end) for start, end in portions(self.start, self.end))
        return (part for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One forward pass of a request, taken apart.

    Attributes:
        grafts: what is put in.
        runs: what is computed before the rest, in order, as [start, end).
        rest: where the last run begins, which ends where the chunk does; never empty.
    """

    grafts: tuple[Graft, ...]
    runs: tuple[tuple[int, int], ...]
    rest: int

    def led(self) -> tuple[tuple[tuple[int, int], ...], Chunk]:
        """Take off the run before the first graft; returns it, or nothing, and the chunk without it."""
        count = int(bool(self.runs) and self.runs[0][1] == self.grafts[0].start)
        return self.runs[:count], replace(self, runs=self.runs[count:])


def cut(grafts: Sequence[Graft], start: int, end: int) -> Chunk:
    """Take a chunk of a prompt apart.

    At least its last token is computed: the next one is drawn from it.

    Args:
        grafts: of the whole prompt, in order, not overlapping.
        start: first token of the chunk.
        end: the one after its last.
    """
    inside = [part for graft in grafts if (part := graft.within(start, end - 1)) is not None]
    runs: list[tuple[int, int]] = []
    at = start
    for graft in inside:
        if at < graft.start:
            runs.append((at, graft.start))
        at = graft.end
    return Chunk(grafts=tuple(inside), runs=tuple(runs), rest=at)
