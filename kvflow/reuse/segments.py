"""Texts whose KV is at hand, found by their tokens."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

import torch

from kvflow.reuse.fingerprints import SHARED_TOKENS, common_run, fingerprints
from kvflow.reuse.kv import KV
from kvflow.reuse.memory import HostMemory

_CANDIDATES = 4
"""Segments remembered by one fingerprint; more of them are repetitions of the same phrase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """In whose context a segment was computed: offsets are only comparable from the same.

    Attributes:
        part: ``prompt``, or ``answer`` for KV that decoding left behind.
    """

    workflow_type: str
    agent: str
    part: str = "prompt"


@dataclass(slots=True, kw_only=True, eq=False)
class Segment:
    """A text with the KV it had where it was computed (KVCOMM's base KV).

    Attributes:
        tokens: [n] int64.
        position: where its first token stood in that prompt.
        exact: whether everything before it was computed, rather than approximated.
        value_sketch: [n, dim] float32: its values in few dimensions, distances preserved.
    """

    tokens: torch.Tensor
    kv: KV
    position: int
    origin: Origin
    exact: bool
    value_sketch: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.kv.nbytes + self.tokens.nbytes + self.value_sketch.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A run of a prompt that a segment has, too.

    Attributes:
        start: first token of the run in the prompt ...
        end: ... and the one after its last.
        offset: where the run starts in the segment.
    """

    segment: Segment
    start: int
    end: int
    offset: int


class SegmentStore:
    """Segments by namespace: tenant, cache salt and adapter. One never finds what belongs to another.

    Args:
        memory: what they share with everything else that reuse remembers.
    """

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._index: dict[tuple[str, int], deque[tuple[Segment, int]]] = defaultdict(lambda: deque(maxlen=_CANDIDATES))
        self._segments: set[Segment] = set()

    def __len__(self) -> int:
        return len(self._segments)

    def put(self, namespace: str, segment: Segment) -> bool:
        """Remember a segment; false if it is too large, or too short to be found again."""
        marks = [((namespace, mark), at) for at, mark in fingerprints(segment.tokens)]
        if not marks or not self._memory.hold(segment, segment.nbytes, lambda: self._forget(segment, marks)):
            return False
        self._segments.add(segment)
        for key, at in marks:
            places = self._index[key]
            if not places or places[-1][0] is not segment:  # the first place of a phrase that repeats
                places.append((segment, at))
        return True

    def find(self, namespace: str, tokens: torch.Tensor, start: int, end: int, min_tokens: int) -> list[Match]:
        """Find the runs of a prompt's range that are at hand, longest first where several begin.

        Args:
            namespace: as in :meth:`put`.
            tokens: [n] int64, the whole prompt.
            start: first token of the range.
            end: the token after its last.
            min_tokens: shorter runs are not worth it; below :data:`SHARED_TOKENS` some are overlooked.

        Returns:
            Runs that do not overlap, in order.
        """
        matches: list[Match] = []
        floor = start
        for at, mark in fingerprints(tokens[start:end]):
            if start + at < floor:
                continue
            found = self._longest(namespace, mark, tokens, start + at, floor, end)
            if found is not None and found.end - found.start >= max(1, min_tokens):
                matches.append(found)
                floor = found.end
                self._memory.touch(found.segment)
        return matches

    def clear(self) -> None:
        """Forget everything: the model's weights may have changed."""
        self._index.clear()
        self._segments.clear()

    def _longest(
        self, namespace: str, mark: int, tokens: torch.Tensor, at: int, floor: int, ceiling: int
    ) -> Match | None:
        best: Match | None = None
        for segment, place in reversed(self._index.get((namespace, mark), ())):
            run = common_run(tokens, segment.tokens, at, place, floor=floor, ceiling=ceiling)
            length = run[1] - run[0]
            known = (best.end - best.start, best.segment.exact) if best else (0, False)
            if length and (length, segment.exact) > known:
                best = Match(segment=segment, start=run[0], end=run[1], offset=place - (at - run[0]))
        return best

    def _forget(self, segment: Segment, marks: list[tuple[tuple[str, int], int]]) -> None:
        self._segments.discard(segment)
        for key, _ in marks:
            left = [entry for entry in self._index.get(key, ()) if entry[0] is not segment]
            if left:
                self._index[key] = deque(left, maxlen=_CANDIDATES)
            else:
                self._index.pop(key, None)


__all__ = ["SHARED_TOKENS", "Match", "Origin", "Segment", "SegmentStore"]
