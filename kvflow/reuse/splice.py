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
        as_it_was: it comes from a turn before of the same conversation, and is neither corrected nor repaired.
    """

    start: int
    end: int
    segment: Segment | None = None
    offset: int = 0
    anchors: tuple[tuple[Anchor, float], ...] = ()
    place: int = 0
    as_it_was: bool = False

    def within(self, start: int, end: int) -> Graft | None:
        """The part of it in [start, end); None if there is none."""
        first, last = max(start, self.start), min(end, self.end)
        if first >= last:
            return None
        moved = first - self.start
        return replace(self, start=first, end=last, offset=self.offset + moved, place=self.place + moved)

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

    @property
    def corrected(self) -> tuple[Graft, ...]:
        """What comes from elsewhere: all but what the conversation had before, which comes first."""
        return tuple(graft for graft in self.grafts if not graft.as_it_was)

    def led(self) -> tuple[tuple[tuple[int, int], ...], Chunk]:
        """Take off the runs before the first graft from elsewhere; returns them, and the chunk without them."""
        first = self.corrected[0].start
        lead = tuple(run for run in self.runs if run[1] <= first)
        return lead, replace(self, runs=self.runs[len(lead) :])


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
