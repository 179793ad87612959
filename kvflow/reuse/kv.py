"""Keys and values of a run of tokens, all layers of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

PORTION_TOKENS = 1024
"""Of a text at a time on the device: 8B geometry takes 128 KiB a token, and 256 in float32."""


def portions(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Divide [start, end) into runs of no more tokens than are handled at a time."""
    for first in range(start, end, PORTION_TOKENS):
        yield first, min(first + PORTION_TOKENS, end)


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
        if self.keys.device.type == device.type:
            return self
        there = KV(torch.empty_like(self.keys, device=device), torch.empty_like(self.values, device=device))
        there.copy_(self)
        return there

    def copy_(self, other: KV) -> None:
        """Take the KV of as many other tokens, in place as in PyTorch.

        Layer by layer where these lie among more: as a whole they would go between pinned memory and a GPU by way of
        memory that is not. What goes to a GPU is not waited for.
        """
        for target, source in ((self.keys, other.keys), (self.values, other.values)):
            whole = target.is_contiguous() and source.is_contiguous()
            for into, part in [(target, source)] if whole else zip(target, source, strict=True):
                into.copy_(part, non_blocking=into.is_cuda)
