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
        """Bytes that it takes on the host, if this is no view of another."""
        return self.bytes_of(len(self))

    def bytes_of(self, tokens: int) -> int:
        """Bytes that so many tokens like these take there: pinned if they come from a GPU.

        PyTorch rounds pinned blocks up to powers of two.
        """
        sizes = ((part[:, :1].nbytes * tokens, part.is_cuda or part.is_pinned()) for part in (self.keys, self.values))
        return sum(1 << (size - 1).bit_length() if pinned and size else size for size, pinned in sizes)

    def span(self, start: int, end: int) -> KV:
        """View of the tokens [start, end)."""
        return KV(self.keys[:, start:end], self.values[:, start:end])

    def to(self, device: torch.device) -> KV:
        """The same on a device; from pinned memory without waiting for it."""
        return KV(self.keys.to(device, non_blocking=True), self.values.to(device, non_blocking=True))
