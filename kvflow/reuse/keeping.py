"""KV of prompts on its way to where it is remembered, a portion at a time.

A long text is gigabytes, and its offsets twice that in float32: more than a server has left beside its pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from kvflow.reuse.correct import Corrector
from kvflow.reuse.kv import KV, portions
from kvflow.reuse.segments import Match
from kvflow.reuse.sketch import Sketcher

Read = Callable[[int, int], KV]
"""Gives a copy of the KV of a prompt's tokens [start, end), on the model's device."""


class Keeper:
    """Brings what is to be remembered to its place; no more of it is on the device than a portion.

    Args:
        corrector: takes the rotary embedding off keys.
    """

    def __init__(self, corrector: Corrector) -> None:
        self._corrector = corrector
        self._sketcher = Sketcher()

    def kv(self, start: int, end: int, read: Read) -> KV:
        """KV of tokens [start, end) as it is."""
        return _kept((read(*portion) for portion in portions(start, end)), end - start)

    def text(self, start: int, end: int, read: Read) -> tuple[KV, torch.Tensor]:
        """KV of tokens [start, end) as it is, and the sketch of its values, [tokens, dim]."""
        sketches: list[torch.Tensor] = []

        def parts() -> Iterator[KV]:
            for portion in portions(start, end):
                kv = read(*portion)
                sketches.append(self._sketcher.sketch(kv.values))
                yield kv

        return _kept(parts(), end - start), torch.cat(sketches)

    def offset(self, match: Match, read: Read) -> KV:
        """By what a text's KV in a prompt differs from its base, keys without rotary embedding."""

        def parts() -> Iterator[KV]:
            for start, end in portions(match.start, match.end):
                seen = read(start, end)
                actual = self._corrector.home(seen, start)
                place = match.offset + start - match.start
                stored = match.segment.kv.span(place, place + end - start).to(seen.keys.device)
                base = self._corrector.home(stored, match.segment.position + place)
                yield _like(seen, KV(actual.keys - base.keys, actual.values - base.values))

        return _kept(parts(), match.end - match.start)

    def homes(self, start: int, end: int, read: Read) -> KV:
        """KV of tokens [start, end), keys without rotary embedding."""
        seen = ((read(*portion), portion[0]) for portion in portions(start, end))
        return _kept((_like(kv, self._corrector.home(kv, first)) for kv, first in seen), end - start)


def _like(seen: KV, kv: KV) -> KV:
    return KV(kv.keys.to(seen.keys.dtype), kv.values.to(seen.values.dtype))


def _kept(parts: Iterable[KV], tokens: int) -> KV:
    whole: KV | None = None
    start = 0
    for part in parts:
        if whole is None:
            whole = KV(_host_memory(part.keys, tokens), _host_memory(part.values, tokens))
        whole.span(start, start + len(part)).copy_(part)
        start += len(part)
    assert whole is not None, "texts have tokens"
    return whole


def _host_memory(like: torch.Tensor, tokens: int) -> torch.Tensor:
    """For so many tokens; pinned for what comes from a GPU."""
    layers, _, heads, dim = like.shape
    return torch.empty(layers, tokens, heads, dim, dtype=like.dtype, device="cpu", pin_memory=like.is_cuda)
