"""Values in few dimensions."""

from __future__ import annotations

import torch

from kvflow.reuse import sketch
from kvflow.reuse.sketch import Sketcher


def test_distances_are_kept_about() -> None:
    values = torch.randn(4, 300, 2, 32, generator=torch.Generator().manual_seed(1))
    small = Sketcher().sketch(values)
    flat = values.transpose(0, 1).flatten(1)
    ratio = (small[:-1] - small[1:]).norm() / (flat[:-1] - flat[1:]).norm()
    assert small.shape == (300, 16)
    assert 0.9 < ratio < 1.1


def test_a_long_text_is_done_a_part_at_a_time() -> None:
    values = torch.randn(2, 2 * sketch._TOKENS + 5, 2, 8, generator=torch.Generator().manual_seed(1))
    sketcher = Sketcher()
    parts = [sketcher.sketch(values[:, start : start + 100]) for start in range(0, values.shape[1], 100)]
    assert torch.allclose(sketcher.sketch(values), torch.cat(parts), atol=1e-5)
