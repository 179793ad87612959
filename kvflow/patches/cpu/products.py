"""Products of a few rows, padded to so many that MKL multiplies them as it does any number.

Of one to three rows MKL makes something else than of the same rows among others on processors of AMD's, in its strict
reproducible mode, too: by rounding alone an agent would get another answer alone than in company.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

LEAST_ROWS = 4


def apply_linear(
    original: Callable[..., torch.Tensor], method: Any, layer: Any, rows: torch.Tensor, *arguments: Any, **options: Any
) -> torch.Tensor:
    """Run around ``UnquantizedLinearMethod.apply``, with its arguments; `rows` are [tokens, features]."""
    return _padded(lambda more: original(method, layer, more, *arguments, **options), rows)


def compute_lm_head(
    original: Callable[..., torch.Tensor], processor: Any, rows: torch.Tensor, *arguments: Any, **options: Any
) -> torch.Tensor:
    """Run around ``LogitsProcessor._compute_lm_head``, with its arguments; `rows` are [tokens, features]."""
    return _padded(lambda more: original(processor, more, *arguments, **options), rows)


def _padded(product: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    count = rows.shape[0]
    if not 0 < count < LEAST_ROWS:
        return product(rows)
    return product(pad(rows, (0, 0, 0, LEAST_ROWS - count)))[:count]
