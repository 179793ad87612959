"""Attention of a prompt whose beginning is cached, at the cost of the part that is not; and of what decodes.

SGLang's torch-native backend pads the new queries to the length of the whole sequence and computes all of it: on a
CPU a hit of 8k tokens would cost as much attention as a miss. Here only the new rows are computed, with a mask; the
numbers are the same. Several parts of one sequence, side by side in a batch, attend at once. Rows of one block of
positions attend to whole blocks, up to their own, so that a row has the same bits wherever the sequence ends or is
divided: how many keys there are decides how MKL multiplies, on processors of AMD's in its strict mode, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from kvflow.patches.cpu.decoding import attend_in_place
from kvflow.patches.cpu.products import LEAST_ROWS

_BLOCK = 512
"""Positions; torch attends to so many keys at a time."""


def extend_new_rows(
    original: Callable[..., torch.Tensor],
    backend: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Run around ``TorchNativeAttnBackend._run_sdpa_forward_extend``, with its arguments; fills `output`.

    Encoders, cross attention and sliding windows go to `original`.
    """
    causal = options.get("causal") and not options.get("is_cross_attn")
    if not causal or encoder_lens is not None or options.get("sliding_window_size") is not None:
        table = _table(backend, req_to_token, req_pool_indices, **options)
        rows = (*table, seq_lens, extend_prefix_lens, extend_seq_lens, encoder_lens)
        return original(backend, query, output, k_cache, v_cache, *rows, **options)
    begin = 0
    parts = zip(req_pool_indices.tolist(), seq_lens.tolist(), extend_seq_lens.tolist(), strict=True)
    for row, own in groupby(parts, key=itemgetter(0)):
        spans = [(length - new, length) for _, length, new in own]
        length = max(end for _, end in spans)
        slots = pad(req_to_token[row, :length], (0, -length % _BLOCK), value=int(req_to_token[row, 0]))
        new = sum(end - start for start, end in spans)
        output[begin : begin + new] = attend(
            query[begin : begin + new],
            k_cache.index_select(0, slots).to(query.dtype),
            v_cache.index_select(0, slots).to(query.dtype),
            spans,
            scale=options.get("scaling"),
            grouped=options.get("enable_gqa", False),
        )
        begin += new
    return output


def decode_rows(
    original: Callable[..., torch.Tensor],
    backend: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Run around ``TorchNativeAttnBackend._run_sdpa_forward_decode``, with its arguments; fills `output`.

    Encoders, cross attention, sliding windows and anything but float32 go to `original`.
    """
    special = options.get("is_cross_attn") or encoder_lens is not None or options.get("sliding_window_size") is not None
    if special or not query.dtype == k_cache.dtype == torch.float32:
        rows = (*_table(backend, req_to_token, req_pool_indices, **options), seq_lens, encoder_lens)
        return original(backend, query, output, k_cache, v_cache, *rows, **options)
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    attend_in_place(
        query.numpy(),
        k_cache.numpy(),
        v_cache.numpy(),
        req_to_token.numpy(),
        req_pool_indices.numpy(),
        seq_lens.numpy(),
        np.float32(scale),
        output.numpy(),
    )
    return output


def _table(
    backend: Any,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    *,
    sliding_window_size: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the KV of requests lies in a layer's pool, and which rows of that are theirs.

    Layers with a sliding window may have a pool of their own. SGLang writes to its slots, and reads by those of
    the other layers.
    """
    if sliding_window_size is None or not backend.use_sliding_window_kv_pool:
        return req_to_token, req_pool_indices
    slots = backend.token_to_kv_pool.translate_loc_from_full_to_swa(req_to_token[req_pool_indices].long())
    return slots, torch.arange(len(req_pool_indices))


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    spans: Sequence[tuple[int, int]],
    *,
    scale: float | None,
    grouped: bool,
) -> torch.Tensor:
    """Attend causally from parts of a sequence to all before them.

    Args:
        query: [new, heads, head_dim].
        keys: [length, kv_heads, head_dim], whole blocks; what is behind the parts is not attended to.
        values: [length, kv_heads, head_dim].
        spans: the parts, as [start, end); together as long as ``query``.
        grouped: whether several heads share a KV head.

    Returns:
        [new, heads, head_dim]

    Cost: new * length, where the stock code takes length squared for each part.
    """
    attended = torch.empty_like(query)
    positions = torch.cat([torch.arange(start, end) for start, end in spans])
    blocks, counts = torch.unique_consecutive(positions // _BLOCK, return_counts=True)
    begin = 0
    for block, count in zip(blocks.tolist(), counts.tolist(), strict=True):
        rows, length, more = slice(begin, begin + count), (block + 1) * _BLOCK, -count % LEAST_ROWS
        mask = torch.arange(length) <= pad(positions[rows], (0, more))[:, None]
        some = scaled_dot_product_attention(
            pad(query[rows], (0, 0, 0, 0, 0, more)).movedim(0, 1).unsqueeze(0),
            keys[:length].movedim(0, 1).unsqueeze(0),
            values[:length].movedim(0, 1).unsqueeze(0),
            attn_mask=mask,
            scale=scale,
            enable_gqa=grouped,
        )
        attended[rows] = some.squeeze(0).movedim(1, 0)[:count]
        begin += count
    return attended
