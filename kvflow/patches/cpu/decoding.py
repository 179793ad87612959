"""Attention of sequences that decode, read where their keys and values lie, compiled by numba.

Torch's attention wants them side by side: copies of them take most of the time of decoding, and how long these take
depends on what the allocator does, which differs from process to process and even between calls. One core does all of
it, and the rest of the model: waking a thread for each operation takes longer than it saves. The order in which numbers
are added depends on a sequence's length alone, so that it gets the same ones whatever else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit


def on_one_core(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Run around ``EagerRunner._execute_decode``, with its arguments: a few rows need no further threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return original(*arguments, **options)
    finally:
        torch.set_num_threads(threads)


@njit(fastmath=True, nogil=True, cache=True)
def attend_in_place(query, keys, values, slots_of, rows, lengths, scale, output):
    """Attend from the last token of each sequence to all of it.

    Args:
        query: [sequences, heads, head_dim], float32, as all but indices.
        keys: [slots, kv_heads, head_dim]; heads are a multiple of kv_heads.
        values: [slots, kv_heads, head_dim]
        slots_of: [rows, longest], integers; where a sequence's tokens are.
        rows: [sequences], integers; of ``slots_of``.
        lengths: [sequences], integers, in tokens; at least 1.
        scale: of the scores, float32.
        output: [sequences, heads, head_dim], which is filled.
    """
    heads, dim = query.shape[1:]
    group = heads // keys.shape[1]
    weights = np.empty((heads, lengths.max()), np.float32)
    for index, length in enumerate(lengths):
        slots = slots_of[rows[index], :length]
        for token in range(length):
            for head in range(heads):
                own, key = query[index, head], keys[slots[token], head // group]
                score = np.float32(0.0)
                for at in range(dim):
                    score += own[at] * key[at]
                weights[head, token] = score * scale
        for head in range(heads):
            own = weights[head, :length]
            highest, total = own.max(), np.float32(0.0)
            for token in range(length):
                own[token] = math.exp(own[token] - highest)
                total += own[token]
            own /= total
        output[index] = 0.0
        for token in range(length):
            for head in range(heads):
                mixed, value, weight = output[index, head], values[slots[token], head // group], weights[head, token]
                for at in range(dim):
                    mixed[at] += weight * value[at]
