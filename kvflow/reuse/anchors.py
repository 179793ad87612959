"""Anchors: how a text's KV differed in an agent's context, remembered to predict how another text's will.

Source: KVCOMM (arXiv 2510.12872), its anchors, sharing criterion and offset approximation: a placeholder of a prompt
(here: a slot) keeps up to V examples, each with the offset of its KV in context from its base KV. A new text is served
with its base KV plus the offsets of similar examples, weighted by ``softmax(-‖h_φ - h_ψ‖)``; it is not, and becomes an
example itself, if it is longer than all of them or the weights' entropy exceeds ``γ log V``. As in the authors' code,
h are the base values.

Four departures. A text that is an anchor's own is served from that one; KVCOMM would find its weights undecided if it
has been seen twice. Offsets of keys are kept without rotary embedding, so that they hold at every position. Weights
below the top 90 % are dropped (the authors use that mass for counting only): what is left is read, the pool is not. And
the prefix that follows a slot needs no base of its own: weights sum to one, so base plus offsets is the weighted mean
of what it was in the examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from kvflow.reuse.kv import KV

_TOP = 0.9
"""Weights of the most similar anchors are used up to so much of the whole."""

_ROUNDING = 1e-9
"""Of entropies: weights that are all the same have the greatest possible, which γ = 1 allows."""

_SAME = 1e-6
"""Squared distance of base values below which a text is that of an anchor."""


@dataclass(slots=True, kw_only=True, eq=False)
class Anchor:
    """One example.

    Attributes:
        start: which token of its slot it begins with.
        tokens: its own.
        value_sketch: [n, dim] of its base values, as in :class:`~kvflow.reuse.segments.Segment`.
        offset: of its KV in context from its base KV; keys without rotary embedding.
        follows: tokens between it and the next slot, or the end of the prompt.
        following: their KV in context, keys without rotary embedding; None if it was not kept.
        uses: how often it has been among the weighted.
    """

    start: int
    tokens: tuple[int, ...]
    value_sketch: torch.Tensor
    offset: KV
    follows: tuple[int, ...] = ()
    following: KV | None = None
    uses: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        following = self.following.nbytes if self.following is not None else 0
        return self.value_sketch.nbytes + self.offset.nbytes + following

    def covers(self, start: int, tokens: int) -> bool:
        """Whether it is known what became of so many tokens from one of the slot on."""
        return self.start <= start and start + tokens <= self.start + len(self.value_sketch)


@dataclass(frozen=True, slots=True)
class Weighing:
    """How far a text is like the anchors of a slot.

    Attributes:
        anchors: those that count, with weights that sum to one; empty if the text is not shareable.
        reason: why it is not.
    """

    anchors: tuple[tuple[Anchor, float], ...] = ()
    reason: str = ""


@dataclass(slots=True)
class AnchorPool:
    """The anchors of one slot in one agent's prompt.

    Args:
        size: V, how many there may be.
        entropy: γ, the share of the greatest possible entropy that weights may have.
        window: how many of the oldest are looked at when one has to go.
    """

    size: int = 20
    entropy: float = 0.3
    window: int = 5
    anchors: list[Anchor] = field(default_factory=list)

    def distances(self, value_sketch: torch.Tensor, start: int) -> torch.Tensor:
        """Squared distance of a text's base values from those of each anchor that is at least as long.

        Under tensor parallelism each rank knows its own heads' share; the sum over ranks is the whole.

        Args:
            value_sketch: [n, dim].
            start: which token of the slot it begins with.

        Returns:
            [number of anchors], infinite where the anchor is shorter.
        """
        tokens = len(value_sketch)
        squared = [math.inf] * len(self.anchors)
        for index, anchor in enumerate(self.anchors):
            if anchor.covers(start, tokens):
                first = start - anchor.start
                squared[index] = (anchor.value_sketch[first : first + tokens] - value_sketch).square().sum().item()
        return torch.tensor(squared, dtype=torch.float64)

    def weigh(self, squared: torch.Tensor) -> Weighing:
        """Decide whether a text is served from the anchors.

        Args:
            squared: distances as of :meth:`distances`, of all ranks together.
        """
        among = int(squared.isfinite().sum())
        if among and float(squared.min()) <= _SAME:
            return self._served([(int(squared.argmin()), 1.0)])
        if self.anchors and not among:
            return Weighing(reason="longer than all anchors")
        if among < 2:
            return Weighing(reason="few anchors")
        weights = torch.softmax(-squared.sqrt(), dim=0)
        if _entropy(weights) > self.entropy * math.log(among) + _ROUNDING:
            return Weighing(reason="like no anchor in particular")
        return self._served(_top(weights))

    def _served(self, weights: list[tuple[int, float]]) -> Weighing:
        total = sum(weight for _, weight in weights)
        for index, _ in weights:
            self.anchors[index].uses += 1
        return Weighing(tuple((self.anchors[index], weight / total) for index, weight in weights))

    def add(self, anchor: Anchor) -> Anchor | None:
        """Remember an example; returns the one that had to go, if the pool was full."""
        gone = None
        if len(self.anchors) >= self.size:
            gone = min(self.anchors[: self.window], key=lambda old: old.uses)
            self.anchors.remove(gone)
        self.anchors.append(anchor)
        return gone


def combined(parts: list[tuple[KV, float]]) -> KV:
    """Weighted sum, in float32.

    Args:
        parts: of equal shapes.
    """
    keys = sum(part.keys.float() * weight for part, weight in parts)
    values = sum(part.values.float() * weight for part, weight in parts)
    assert isinstance(keys, torch.Tensor)
    assert isinstance(values, torch.Tensor)
    return KV(keys, values)


def _entropy(weights: torch.Tensor) -> float:
    return float(torch.special.entr(weights).sum())


def _top(weights: torch.Tensor) -> list[tuple[int, float]]:
    """The largest weights that together reach the top share, with their places."""
    kept: list[tuple[int, float]] = []
    mass = 0.0
    order = sorted(range(len(weights)), key=lambda index: (-float(weights[index]), index))
    for index in order:
        weight = float(weights[index])
        kept.append((index, weight))
        mass += weight
        if mass >= _TOP:
            break
    return kept
