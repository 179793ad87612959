"""The copy itself: what SGLang's ``direct`` transfer backend asks of a GPU kernel library, on tensors in RAM."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from kvflow.patches.cpu.streams import current_stream


def transfer_kv_direct(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Copy rows `src_indices` of each source to rows `dst_indices` of the matching destination, on the current stream.

    Same signature as ``sgl_kernel.kvcacheio.transfer_kv_direct``. The index tensors must not be changed afterwards.
    """
    current_stream().copy(partial(copy_rows, src_layers, dst_layers, src_indices, dst_indices))


def copy_rows(
    sources: Sequence[torch.Tensor], destinations: Sequence[torch.Tensor], rows: torch.Tensor, to_rows: torch.Tensor
) -> int:
    """Copy rows between equally many tensors and return the bytes moved."""
    copied_bytes = 0
    for source, destination in zip(sources, destinations, strict=True):
        picked = source.index_select(0, rows)
        destination.index_copy_(0, to_rows, picked)
        copied_bytes += picked.nbytes
    return copied_bytes
