"""Values in few dimensions."""

from __future__ import annotations

import torch

from kvflow.reuse.sketch import Sketcher


def test_distances_are_kept_about() -> None:
    values = torch.randn(4, 300, 2, 32, generator=torch.Generator().manual_seed(1))
    small = Sketcher().sketch(values)
    flat = values.transpose(0, 1).flatten(1)
    ratio = (small[:-1] - small[1:]).norm() / (flat[:-1] - flat[1:]).norm()
    assert small.shape == (300, 16)
    assert 0.9 < ratio < 1.1
