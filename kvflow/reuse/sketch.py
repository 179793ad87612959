"""Values in few dimensions, so that comparing texts does not read their KV.

Source: Johnson and Lindenstrauss (1984): a random projection keeps distances, up to a relative error of about
``1 / sqrt(dimensions)`` per token, which averages out over the tokens of a segment.
"""

from __future__ import annotations

import torch

_DIMENSIONS = 16
_SEED = 20251112


class Sketcher:
    """Projects values; the same for the same shape of model."""

    def __init__(self) -> None:
        self._projection: torch.Tensor | None = None

    def sketch(self, values: torch.Tensor) -> torch.Tensor:
        """Project the values of all layers and heads of each token.

        Args:
            values: [layers, tokens, heads, dim]; no more than a portion, since all of them are copied to float32.

        Returns:
            [tokens, dimensions] float32, on the CPU.
        """
        layers, _, heads, dim = values.shape
        if self._projection is None:
            generator = torch.Generator().manual_seed(_SEED)
            drawn = torch.randn(layers * heads * dim, _DIMENSIONS, generator=generator)
            self._projection = (drawn / _DIMENSIONS**0.5).to(values.device)
        rows = values.transpose(0, 1)
        return (rows.flatten(1).float() @ self._projection).cpu()
