"""Correcting KV for another position and another context."""

from __future__ import annotations

import torch

from kvflow.reuse.anchors import combined
from kvflow.reuse.kv import KV
from kvflow.reuse.rotation import Rotary, rotate, rotate_exactly
from kvflow.reuse.splice import Graft


class Corrector:
    """Moves keys, and adds the offsets of anchors.

    Args:
        rotary: the model's rotary embedding.
    """

    def __init__(self, rotary: Rotary) -> None:
        self._rotary = rotary

    def fill(self, graft: Graft, device: torch.device, *, moved: bool = True) -> KV:
        """Compute what is put in for a graft.

        Args:
            graft: positions, base and anchors.
            device: of the model.
            moved: keys are turned to their new position.

        Returns:
            float32 or the model's dtype; for the positions of the graft, on ``device``.
        """
        tokens = graft.end - graft.start
        target = torch.arange(graft.start, graft.end)
        correction = self._correction(graft, target, device) if graft.anchors else None
        if graft.segment is None:
            assert correction is not None, "without a segment there are anchors"
            return correction
        base = graft.segment.kv.span(graft.offset, graft.offset + tokens).to(device)
        source = graft.segment.position + graft.offset
        if moved and source != graft.start:
            rotation = self._rotary.between(torch.arange(source, source + tokens), target)
            base = KV(rotate(base.keys, rotation, neox=self._rotary.neox), base.values)
        if correction is None:
            return base
        return KV(base.keys.float() + correction.keys, base.values.float() + correction.values)

    def _correction(self, graft: Graft, target: torch.Tensor, device: torch.device) -> KV:
        """What anchors add to the base, or have instead of one, at the positions of a graft."""
        tokens = graft.end - graft.start
        parts: list[tuple[KV, float]] = []
        for anchor, weight in graft.anchors:
            held = anchor.offset if graft.segment is not None else anchor.following
            assert held is not None, "only anchors that kept it are asked"
            first = graft.place - (anchor.start if graft.segment is not None else 0)
            parts.append((held.span(first, first + tokens).to(device), weight))
        sum_ = combined(parts)
        rotation = self._rotary.between(torch.zeros_like(target), target)
        return KV(rotate(sum_.keys, rotation, neox=self._rotary.neox), sum_.values)

    def home(self, kv: KV, position: int) -> KV:
        """Take the rotary embedding off the keys of consecutive tokens; float32."""
        source = torch.arange(position, position + len(kv))
        rotation = self._rotary.between(source, torch.zeros_like(source))
        return KV(rotate_exactly(kv.keys, rotation, neox=self._rotary.neox), kv.values.float())
