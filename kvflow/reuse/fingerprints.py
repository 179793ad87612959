"""Finding text again wherever it stands: winnowed fingerprints of token runs.

Source: Schleimer, Wilkerson, Aiken, "Winnowing: local algorithms for document fingerprinting" (SIGMOD 2003), over token
ids instead of characters: of every window of :data:`WINDOW` hashed grams the smallest is kept. Two texts that share
:data:`SHARED_TOKENS` tokens in a row share a fingerprint, whatever surrounds them, and about one gram in eight is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

GRAM_TOKENS = 16
WINDOW = 16
SHARED_TOKENS = GRAM_TOKENS + WINDOW - 1
"""Runs of at least so many tokens are always found."""

_BLOCK = 256
"""Tokens that are compared at first; most runs end soon, and texts may be long."""

_BASE = 0x9E3779B97F4A7C15 - 2**64  # as a signed 64-bit number; arithmetic wraps around
_MIX = 0xBF58476D1CE4E5B9 - 2**64


def fingerprints(tokens: torch.Tensor, gram: int = GRAM_TOKENS, window: int = WINDOW) -> list[tuple[int, int]]:
    """Return positions and hashes of the grams that stand for a run of tokens, in order.

    Args:
        tokens: [n] int64 on the CPU.
        gram: tokens of one gram.
        window: grams of which one is kept.

    Returns:
        Pairs of where a gram starts and its 64-bit hash; empty for less than ``gram + window - 1`` tokens.
    """
    count = len(tokens) - gram + 1
    if count < window:
        return []
    mixed = _scatter(tokens + 1)
    hashes = torch.zeros(count, dtype=torch.int64)
    for place in range(gram):
        hashes = hashes * _BASE + mixed[place : place + count]
    hashes = _scatter(hashes)
    starts = torch.arange(count - window + 1)
    smallest = torch.unique(starts + hashes.unfold(0, window, 1).argmin(dim=1))
    kept: list[tuple[int, int]] = []
    for at, mark in zip(smallest.tolist(), hashes[smallest].tolist(), strict=True):
        if not kept or mark != kept[-1][1] or at - kept[-1][0] >= window:  # repetitive text: one of a window is enough
            kept.append((at, mark))
    return kept


def marks_of(text: Sequence[int], gram: int) -> list[int]:
    """Fingerprints of a text without their places, one of every ``gram`` grams of ``gram`` tokens or bytes."""
    return [mark for _, mark in fingerprints(torch.tensor(text, dtype=torch.int64), gram, window=gram)]


def common_run(
    left: torch.Tensor, right: torch.Tensor, left_at: int, right_at: int, *, floor: int, ceiling: int
) -> tuple[int, int]:
    """Widen a shared position to the longest run both texts share around it.

    Args:
        left: [n] tokens.
        right: [m] tokens.
        left_at: a position of ``left`` ...
        right_at: ... and the one of ``right`` that corresponds to it.
        floor: the run starts no earlier in ``left``.
        ceiling: and ends no later there.

    Returns:
        Start and end of the run in ``left``.
    """
    back = min(left_at - floor, right_at)
    ahead = min(ceiling - left_at, len(right) - right_at)
    before = _leading(left[left_at - back : left_at], right[right_at - back : right_at], backwards=True)
    after = _leading(left[left_at : left_at + ahead], right[right_at : right_at + ahead])
    return left_at - before, left_at + after


def _leading(left: torch.Tensor, right: torch.Tensor, *, backwards: bool = False) -> int:
    """How many tokens are the same before the first that is not, from the start or the end of two texts of a length.

    Compared in blocks, each twice as long as the one before.
    """
    length, same, block = len(left), 0, _BLOCK
    while same < length:
        end = min(length, same + block)
        part = slice(length - end, length - same) if backwards else slice(same, end)
        equal = left[part] == right[part]
        if not equal.all():
            return same + int((equal.flip(0) if backwards else equal).long().cumprod(0).sum())
        same, block = end, 2 * block
    return same


def _scatter(numbers: torch.Tensor) -> torch.Tensor:
    numbers = (numbers ^ (numbers >> 30)) * _MIX
    return numbers ^ (numbers >> 27)
