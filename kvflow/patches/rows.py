"""Copies of a prefill batch that compute other runs of its prompts than SGLang has scheduled.

A run is (row, start, end): tokens [start, end) of the request in a row of the batch. Attention's positions and masks
follow from where a run starts and ends; its KV goes to the slots that are allocated for it already.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch

Run = tuple[int, int, int]


def compute(batch: Any, runner: Any, runs: Sequence[Run], layers: int | None = None) -> None:
    """Run forward passes for KV only: nothing is sampled, and the batch stays as it is.

    Args:
        batch: of extend mode.
        runner: SGLang's ``ModelRunner``.
        runs: of its requests; as many at once as it has room for, those of one request in order.
        layers: only the first so many; see :func:`by_layers`.
    """
    most = min(runner.max_running_requests, runner.req_to_token_pool.size)
    for first in range(0, len(runs), most):
        _compute(batch, runner, runs[first : first + most], layers)


def _compute(batch: Any, runner: Any, runs: Sequence[Run], layers: int | None) -> None:
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

    part = _of_runs(batch, runner, runs)
    if layers is not None:
        part.forward_mode = ForwardMode.SPLIT_PREFILL
    forward_batch = ForwardBatch.init_new(
        part,
        runner,
        capture_hidden_mode=CaptureHiddenMode.NULL,
        return_hidden_states_before_norm=False,
    )
    runner.forward(forward_batch, split_forward_count=layers or 1)


def by_layers(runner: Any) -> bool:
    """Whether the first layers of its model can be computed alone (SGLang's split prefill)."""
    return hasattr(runner.model, "forward_split_prefill")


def beginning_later(batch: Any, starts: Sequence[int]) -> Any:
    """Copy a batch with each request's run beginning at another token; where it ends stays the same.

    Args:
        batch: of extend mode.
        starts: position per row, at or after the row's own start.
    """
    later = copy(batch)
    skipped = [start - prefix for start, prefix in zip(starts, batch.prefix_lens, strict=True)]
    kept: list[slice] = []
    begin = 0
    for tokens, skip in zip(batch.extend_lens, skipped, strict=True):
        kept.append(slice(begin + skip, begin + tokens))
        begin += tokens
    later.input_ids = torch.cat([batch.input_ids[part] for part in kept])
    later.out_cache_loc = torch.cat([batch.out_cache_loc[part] for part in kept])
    if batch.prefill_input_ids_cpu is not None:
        later.prefill_input_ids_cpu = torch.cat([batch.prefill_input_ids_cpu[part] for part in kept])
    later.prefix_lens = list(starts)
    later.extend_lens = [part.stop - part.start for part in kept]
    later.extend_num_tokens = sum(later.extend_lens)
    if batch.extend_logprob_start_lens is not None:
        parts = zip(batch.extend_logprob_start_lens, skipped, later.extend_lens, strict=True)
        later.extend_logprob_start_lens = [min(max(start - skip, 0), tokens) for start, skip, tokens in parts]
    return later


def _of_runs(batch: Any, runner: Any, runs: Sequence[Run]) -> Any:
    rows = [row for row, _, _ in runs]
    ends = [end for _, _, end in runs]
    lengths = [end - start for _, start, end in runs]
    reqs = [batch.reqs[row] for row in rows]
    tokens = [t for req, (_, a, b) in zip(reqs, runs, strict=True) for t in req.full_untruncated_fill_ids[a:b]]
    slots = runner.req_to_token_pool.req_to_token
    places = [slots[int(batch.req_pool_indices_cpu[row]), start:end] for row, start, end in runs]
    part = copy(batch)
    part.reqs = reqs
    part.input_ids = torch.tensor(tokens, dtype=torch.int64, device=runner.device)
    part.prefill_input_ids_cpu = None
    part.req_pool_indices = batch.req_pool_indices[rows]
    part.req_pool_indices_cpu = batch.req_pool_indices_cpu[rows]
    part.prefix_lens = [start for _, start, _ in runs]
    part.extend_lens = lengths
    part.extend_num_tokens = sum(lengths)
    part.seq_lens = torch.tensor(ends, dtype=torch.int64, device=runner.device)
    part.seq_lens_cpu = torch.tensor(ends, dtype=torch.int64)
    part.seq_lens_sum = sum(ends)
    part.orig_seq_lens = part.seq_lens.to(torch.int32)
    part.out_cache_loc = torch.cat(places).long()
    part.return_logprob = False
    part.top_logprobs_nums = None
    part.token_ids_logprobs = None
    part.extend_logprob_start_lens = lengths
    part.extend_input_logprob_token_ids = None
    part.is_prefill_only = True
    part.spec_info = None
    part.sampling_info = None
    part.has_grammar = False
    part.multimodal_inputs = [None] * len(reqs)
    part.engram_history = None
    return part
