"""Repair: tokens of a spliced text that are computed nevertheless.

Its first ones, since they act as false attention sinks wherever they came from (EPIC, arXiv 2410.15332, LegoLink), and
a budgeted share of those that mean something else in their new context. Which these are shows in the first layers:
they are computed for all tokens, and where keys and values differ most from what was put in, the rest is computed as
well (CacheBlend, arXiv 2405.16444, section 4: tokens of high KV deviation).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from kvflow.reuse.kv import KV
from kvflow.reuse.splice import Graft

Run = tuple[int, int]
"""First token of a prompt, and the one after the last."""

_BRIDGED = 2
"""So few tokens between two runs are computed, too: a run costs more than a token."""


def without_first(graft: Graft, tokens: int) -> Graft | None:
    """Leave the first tokens of a graft to be computed; None if nothing is left of it."""
    return graft.within(graft.start + tokens, graft.end)


def deviations(spliced: KV, computed: KV) -> torch.Tensor:
    """How far the KV of each token is from what was put in.

    Keys and values count alike, whatever their scale. Under tensor parallelism each rank knows its own heads; in the
    sum over ranks all ranks' heads count alike.

    Args:
        spliced: what was put in, of one layer or several.
        computed: the same tokens and layers in their new context.

    Returns:
        [n] float64 on the CPU: squared distances over the mean square.
    """
    pairs = ((spliced.keys, computed.keys), (spliced.values, computed.values))
    return sum((_relative(old.to(new.device), new) for old, new in pairs), torch.zeros(len(computed))).double()


def chosen(grafts: Sequence[Graft], deviation: torch.Tensor, share: float) -> list[list[Run]]:
    """Choose the tokens that differ most.

    Args:
        grafts: of one prompt, in order.
        deviation: [n], of all their tokens, in order.
        share: of the tokens.

    Returns:
        Runs of each graft, in order.
    """
    budget = round(share * len(deviation))
    picked = set(torch.topk(deviation, budget).indices.tolist())
    runs: list[list[Run]] = []
    first = 0
    for graft in grafts:
        moved = graft.start - first
        tokens = range(first, first + graft.end - graft.start)
        runs.append(joined((token + moved, token + moved + 1) for token in tokens if token in picked))
        first = tokens.stop
    return runs


def joined(runs: Iterable[Run]) -> list[Run]:
    """Make one of runs that lie close together."""
    together: list[Run] = []
    for start, end in sorted(runs):
        if together and start - together[-1][1] <= _BRIDGED:
            first, last = together.pop()
            together.append((first, max(last, end)))
        else:
            together.append((start, end))
    return together


def _relative(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Squared distance of each token's vectors, [n], over the mean square of all."""
    old, new = (part.float().transpose(0, 1).flatten(1) for part in (old, new))
    scale = new.square().sum(1).mean().clamp(min=torch.finfo(torch.float32).tiny)
    return ((new - old).square().sum(1) / scale).cpu()
