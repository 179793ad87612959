"""Scores of probabilistic predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_CLIP = 1e-6


def area_under_curve(scores: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Return the chance that a random positive has a higher score than a random negative; ties count half.

    0.5 is blind. None if there are no positives or no negatives.

    Source: the Mann-Whitney statistic, Hanley and McNeil, Radiology 143(1), 1982.
    Cost: O(n log n).
    """
    positives = sum(labels)
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    order = sorted(range(len(scores)), key=scores.__getitem__)
    rank_sum, start = 0.0, 0
    while start < len(order):
        end = start
        while end < len(order) and scores[order[end]] == scores[order[start]]:
            end += 1
        rank_sum += (start + 1 + end) / 2 * sum(labels[i] for i in order[start:end])
        start = end
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def log_loss(probabilities: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Return the mean negative logarithm of the probability given to what happened, in nats, at most 13.8 a case."""
    if not labels:
        return None
    return math.fsum(surprise(p if y else 1 - p) for p, y in zip(probabilities, labels, strict=True)) / len(labels)


def surprise(probability: float) -> float:
    """Return the negative logarithm of a probability, in nats, at most 13.8."""
    return -math.log(max(probability, _CLIP))


def brier(probabilities: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Return the mean squared difference of probability and outcome. Source: Brier, Monthly Weather Review 78, 1950."""
    if not labels:
        return None
    return math.fsum((p - y) ** 2 for p, y in zip(probabilities, labels, strict=True)) / len(labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Cases whose predicted probability is alike: what was predicted, and what came of it."""

    count: int
    predicted: float
    observed: float


def reliability(probabilities: Sequence[float], labels: Sequence[bool], bins: int = 10) -> list[ReliabilityBin]:
    """Return the cases by predicted probability, in bins of equal width, the empty ones left out."""
    gathered: dict[int, list[tuple[float, bool]]] = {}
    for case in zip(probabilities, labels, strict=True):
        gathered.setdefault(min(bins - 1, int(case[0] * bins)), []).append(case)
    return [
        ReliabilityBin(
            count=len(cases),
            predicted=math.fsum(p for p, _ in cases) / len(cases),
            observed=sum(y for _, y in cases) / len(cases),
        )
        for _, cases in sorted(gathered.items())
    ]


def interval_coverage(levels: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return how many outcomes lie within the central interval that should hold a share of them.

    Args:
        levels: predicted probability that the outcome is below the bin it fell into, and below that bin's end. An
            outcome whose bin is cut by the interval's bound counts in part, so that a distribution in bins is measured
            for what it says and not for what it leaves open.
        share: of the interval, e.g. 0.8.

    Source: the non-randomized probability integral transform, Czado, Gneiting, Held, Biometrics 65(4), 2009.
    """
    if not levels:
        return None
    least, most = (1 - share) / 2, (1 + share) / 2
    inside = 0.0
    for low, high in levels:
        if high - low > 1e-12:
            inside += max(0.0, min(high, most) - max(low, least)) / (high - low)
        else:
            inside += least <= low <= most
    return inside / len(levels)


def median(values: Sequence[float]) -> float | None:
    """Return the middle value, the upper one of two."""
    return sorted(values)[len(values) // 2] if values else None
