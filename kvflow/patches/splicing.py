"""One spliced forward pass: KV from elsewhere is written, what stands between is computed, then the rest.

Tensor-parallel ranks agree on it before, since forward passes of different shape would wait for each other for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any
from zlib import crc32

import torch

from kvflow.errors import ReuseUnsupportedError
from kvflow.patches import rows
from kvflow.patches.kv_pool import Pool
from kvflow.reuse import KV, Chunk, Graft, budget_tokens, chosen, deviations, joined

logger = logging.getLogger(__name__)

_WRITES_FIRST = frozenset({"fa3", "fa4", "torch_native", "triton"})
"""Attention backends that write a layer's KV before they read any of it, so that a later run sees an earlier one's."""
_WRITES_FIRST_IF_PAGED = frozenset({"flashinfer"})

Repairs = dict[int, list[list[tuple[int, int]]]]
"""Runs of each graft of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spliced:
    """A chunk of one prompt into which KV has been put.

    Attributes:
        put: of the layer by which repair goes, one for each graft from elsewhere; empty without repair.
        repair_share: of the tokens put in.
        trial: nobody waits for it.
    """

    chunk: Chunk
    put: tuple[KV, ...] = ()
    repair_share: float = 0.0
    trial: bool = False


class Splicing:
    """Spliced forward passes of one rank.

    Args:
        runner: SGLang's ``ModelRunner``.
        ranks: process group of the tensor-parallel ranks, on the CPU; None if there is only one.
        repair_layer: whose KV show which tokens are repaired.

    Raises:
        ReuseUnsupportedError: it cannot be done with the model's KV pool, or attention backend.
    """

    def __init__(self, runner: Any, ranks: Any | None, repair_layer: int) -> None:
        self.pool = Pool(runner)
        self.repaired_tokens = 0
        self._runner = runner
        self._ranks = ranks
        self._paged = _paged_attention(runner)
        self._layer = min(repair_layer, self.pool.layers - 1)
        self._by_layers = True
        if not rows.by_layers(runner):
            self._first_tokens_only("it has no forward_split_prefill")

    def put(
        self, row: int, chunk: Chunk, fill: Callable[[Graft], KV], repair_share: float, *, trial: bool = False
    ) -> Spliced:
        """Write KV into a request's pages.

        Args:
            row: of the request, in the pool of requests.
            chunk: the grafts.
            fill: computes what belongs into a graft, or a part of one: all layers of it, so no more than a portion.
            repair_share: of the tokens.
            trial: nobody waits for it, so that it is not counted.
        """
        tokens = sum(graft.end - graft.start for graft in chunk.corrected)
        repairs = self._by_layers and budget_tokens(repair_share, tokens) > 0
        layer = slice(self._layer, self._layer + 1)
        put: list[KV] = []
        for graft in chunk.grafts:
            for part in graft.portions():
                self.pool.write(row, part.start, fill(part))
            if repairs and not graft.as_it_was:
                put.append(self.pool.read(row, graft.start, graft.end, layer))
        return Spliced(chunk=chunk, put=tuple(put), repair_share=repair_share if repairs else 0.0, trial=trial)

    def compute(self, batch: Any, spliced: Sequence[Spliced | None]) -> Any | None:
        """Compute all but the rest of each request; returns the batch of the rest, None if ranks disagree.

        Args:
            batch: SGLang's, of extend mode.
            spliced: for each of its requests; all None on a rank that has nothing to splice.
        """
        if not self._agreed(spliced) or not any(spliced):
            return None
        chunks = [one and one.chunk for one in spliced]
        asked = {row: one for row, one in enumerate(spliced) if one and one.put}
        with self._writing_first():
            repairs = self._repairs(batch, asked, chunks) if asked else {}
            rows.compute(batch, self._runner, runs_before_rest(chunks, repairs))
        starts = [one.chunk.rest if one else start for one, start in zip(spliced, batch.prefix_lens, strict=True)]
        return rows.beginning_later(batch, starts)

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        """Add up a vector over ranks."""
        if self._ranks is not None:
            torch.distributed.all_reduce(vector, group=self._ranks)
        return vector

    def least(self, numbers: Sequence[int]) -> list[int]:
        """The smallest that any rank has of each number."""
        if self._ranks is None:
            return list(numbers)
        vector = torch.tensor(numbers, dtype=torch.int64)
        torch.distributed.all_reduce(vector, torch.distributed.ReduceOp.MIN, group=self._ranks)
        return vector.tolist()

    @contextmanager
    def _writing_first(self) -> Iterator[None]:
        """Have attention read all from pages, so that KV are written before, for the length of a ``with`` block."""
        if self._paged is None:
            yield
            return
        before, self._paged.use_paged = self._paged.use_paged, True
        try:
            yield
        finally:
            self._paged.use_paged = before

    def _agreed(self, spliced: Sequence[Spliced | None]) -> bool:
        if self._ranks is None:
            return True
        shape = [(one.chunk.rest, one.chunk.runs, one.repair_share) if one else () for one in spliced]
        mark = crc32(repr(shape).encode()) if any(spliced) else 0
        ends = torch.tensor([mark, -mark], dtype=torch.int64)
        torch.distributed.all_reduce(ends, torch.distributed.ReduceOp.MAX, group=self._ranks)
        return int(ends[0]) == -int(ends[1])

    def _repairs(self, batch: Any, asked: dict[int, Spliced], chunks: list[Chunk | None]) -> Repairs:
        """Compute the first layers from the first corrected graft on, and choose tokens that are computed through all.

        What stands before it has to be there by then: it is computed, and taken out of ``chunks``.
        """
        leads: list[rows.Run] = []
        for row, one in asked.items():
            lead, chunks[row] = one.chunk.led()
            leads += [(row, *run) for run in lead]
        rows.compute(batch, self._runner, leads)
        runs = [(row, one.chunk.corrected[0].start, one.chunk.rest) for row, one in asked.items()]
        try:
            rows.compute(batch, self._runner, runs, layers=self._layer + 1)
        except (AttributeError, NotImplementedError, TypeError) as error:  # on every rank alike
            self._first_tokens_only(repr(error))
            return {}
        measured = [self._deviations(int(batch.req_pool_indices_cpu[row]), one) for row, one in asked.items()]
        total = self.total(torch.cat(measured))
        repairs: Repairs = {}
        for (row, one), deviation in zip(asked.items(), total.split([len(part) for part in measured]), strict=True):
            repairs[row] = chosen(one.chunk.corrected, deviation, one.repair_share)
            if not one.trial:
                self.repaired_tokens += sum(end - start for start, end in chain.from_iterable(repairs[row]))
        return repairs

    def _first_tokens_only(self, why: str) -> None:
        self._by_layers = False
        logger.warning(
            "kvflow: %s is not computed layer by layer (%s): repair of reused texts computes their first tokens only",
            type(self._runner.model).__name__,
            why,
        )

    def _deviations(self, row: int, spliced: Spliced) -> torch.Tensor:
        layer = slice(self._layer, self._layer + 1)

        def of(graft: Graft, put: KV) -> torch.Tensor:
            return deviations(put, self.pool.read(row, graft.start, graft.end, layer))

        return torch.cat([of(*pair) for pair in zip(spliced.chunk.corrected, spliced.put, strict=True)])


def _paged_attention(runner: Any) -> Any | None:
    """The attention backend of prefill, if it writes KV first only when told to read all from pages; else None.

    Raises:
        ReuseUnsupportedError: it is one of which that is not known, or cannot be told.
    """
    name, whole = runner.prefill_attention_backend_str, runner.attn_backend
    if name in _WRITES_FIRST:
        return None
    if name in _WRITES_FIRST_IF_PAGED:
        for backend in (whole, getattr(whole, "prefill_backend", None)):  # a hybrid has another for decode
            if hasattr(backend, "use_paged"):
                return backend
    raise ReuseUnsupportedError(
        f"attention backend {name} ({type(whole).__name__}), which may write KV after it has read; "
        f"--prefill-attention-backend {' or '.join(sorted(_WRITES_FIRST | _WRITES_FIRST_IF_PAGED))} does not"
    )


def runs_before_rest(chunks: Sequence[Chunk | None], repairs: Repairs) -> list[rows.Run]:
    """What is computed before the rest: what stands between grafts, and what is repaired of them, by row and in order.

    Args:
        chunks: of each row; None where nothing is put in.
        repairs: by row.
    """
    return [
        (row, *run)
        for row, chunk in enumerate(chunks)
        if chunk
        for run in joined(chain(chunk.runs, *repairs.get(row, [])))
    ]
