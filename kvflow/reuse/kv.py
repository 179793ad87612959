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
        """Bytes of memory held, if this is no view of another; PyTorch rounds pinned blocks up to powers of two."""
        parts = ((part.nbytes, part.is_pinned()) for part in (self.keys, self.values))
        return sum(1 << (size - 1).bit_length() if pinned and size else size for size, pinned in parts)

    def span(self, start: int, end: int) -> KV:
        """View of the tokens [start, end)."""
        return KV(self.keys[:, start:end], self.values[:, start:end])

    def to(self, device: torch.device) -> KV:
        """The same on a device; from pinned memory without waiting for it."""
        return KV(self.keys.to(device, non_blocking=True), self.values.to(device, non_blocking=True))
