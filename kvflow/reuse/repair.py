"""Repair: tokens of a spliced text that are computed nevertheless.

Its first ones, since they act as false attention sinks wherever they came from (EPIC, arXiv 2410.15332, LegoLink), and
a budgeted share of those that mean something else in their new context. Which these are shows in the first layers:
they are computed for all tokens, and where keys and values differ most from what was put in, the rest is computed as
well (CacheBlend, arXiv 2405.16444, section 4: tokens of high KV deviation).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import torch

from kvflow.reuse.kv import KV
from kvflow.reuse.splice import Graft

Run = tuple[int, int]
"""First token of a prompt, and the one after the last."""

_BRIDGED = 2
"""So few tokens between two runs of a text are computed, too: a run costs more than a token."""


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


def budget_tokens(share: float, tokens: int) -> int:
    """How many of so many tokens may be computed; never more than the share."""
    return int(share * tokens)


def chosen(grafts: Sequence[Graft], deviation: torch.Tensor, share: float) -> list[list[Run]]:
    """Choose the tokens that differ most, and with them the few that lie between two of them.

    Args:
        grafts: of one prompt, in order.
        deviation: [n], of all their tokens, in order.
        share: of the tokens; what is returned has so many of them at most, and a few less only if none fits any more.

    Returns:
        Runs of each graft, in order.

    Cost: O(n log n).
    """
    places = list(chain.from_iterable(range(graft.start, graft.end) for graft in grafts))
    ends = list(chain.from_iterable([(graft.start, graft.end)] * (graft.end - graft.start) for graft in grafts))
    left = budget_tokens(share, len(places))
    taken: set[int] = set()
    for index in torch.argsort(deviation, descending=True, stable=True).tolist():
        if not left:
            break
        new = _with_bridges(places[index], taken, *ends[index])
        if len(new) <= left:
            taken.update(new)
            left -= len(new)
    return [joined((at, at + 1) for at in range(graft.start, graft.end) if at in taken) for graft in grafts]


def _with_bridges(token: int, taken: set[int], start: int, end: int) -> list[int]:
    """What is to be computed with a token of a graft [start, end): itself, and what is left between it and others."""
    if token in taken:
        return []
    reach = _BRIDGED + 1
    before = next((at for at in range(token - 1, max(token - reach, start) - 1, -1) if at in taken), token)
    after = next((at for at in range(token + 1, min(token + reach, end - 1) + 1) if at in taken), token)
    return [at for at in range(before, after + 1) if at not in taken]


def joined(runs: Iterable[Run]) -> list[Run]:
    """Make one of runs that touch."""
    together: list[Run] = []
    for start, end in sorted(runs):
        if together and start <= together[-1][1]:
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
