"""Keys and values of a run of tokens, all layers of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class KV:
    """Keys and values of consecutive tokens.

    Attributes:
        keys: [layers, tokens, heads, key dim], after rotary embedding.
        values: [layers, tokens, heads, value dim].
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __len__(self) -> int:
        return self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of memory held, if this is no view of another."""
        return self.keys.nbytes + self.values.nbytes

    def span(self, start: int, end: int) -> KV:
        """View of the tokens [start, end)."""
        return KV(self.keys[:, start:end], self.values[:, start:end])

    def to(self, device: torch.device) -> KV:
        """The same on a device; from pinned memory without waiting for it."""
        return KV(self.keys.to(device, non_blocking=True), self.values.to(device, non_blocking=True))
