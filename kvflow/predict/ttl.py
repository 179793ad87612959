"""How long to keep a context on the device while its agent waits for a tool: Continuum's rule."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvflow.predict.distribution import Durations

COLD_START_SAMPLES = 100
"""Continuum's K: with fewer observations of all tools, durations are taken to be Exp(1) and η to be 1."""


def continuum_ttl(
    durations: Durations,
    *,
    queue_s: float,
    eta: float,
    reload_s: float,
    cold_start_samples: float = COLD_START_SAMPLES,
) -> float:
    """Return the time-to-live that pays best: argmax over τ of P(D <= τ) · (T·η + reload) - τ, in seconds.

    Candidates are 0 and the durations seen. Keeping the context for τ costs τ (times its share of the memory, which
    cancels out); if the tool has answered by then, neither the context is loaded again nor the place in the queue lost.

    Cold start: with less than ``cold_start_samples`` (decayed) observations of all tools the answer is that for
    D ~ Exp(1) and η = 1, in closed form ln(T + reload), or 0 if that is negative. Continuum then uses the pooled
    distribution until the tool has K observations itself; here ``durations`` is shrunk towards it instead. Pass 0
    to do without: the durations have a prior of their own.

    Args:
        durations: of the tool waited for.
        queue_s: T, the mean queueing delay of requests whose context had been evicted.
        eta: η, from :meth:`kvflow.predict.Survival.eta`.
        reload_s: what bringing the context back takes: the *load* from the host tier if a copy is there, the
            recomputation only if none is (mixing them up overestimates 87-fold at 32 k tokens).
        cold_start_samples: K.

    Raises:
        ValueError: one of the numbers is not finite, or a time is negative.

    Source: Continuum (arXiv 2511.02230), sections 4.1 and 4.2.
    Cost: O(candidates), at most 64.
    """
    if not all(map(math.isfinite, (queue_s, eta, reload_s))) or queue_s < 0 or reload_s < 0:
        raise ValueError(f"times must be finite and at least 0: queue_s={queue_s}, eta={eta}, reload_s={reload_s}")
    if durations.total_weight < cold_start_samples:
        benefit_s = queue_s + reload_s
        return math.log(benefit_s) if benefit_s > 1 else 0.0
    benefit_s = queue_s * eta + reload_s
    if benefit_s <= 0:
        return 0.0
    best_s = best = 0.0
    for ttl_s, probability in durations.distribution():
        if benefit_s - ttl_s <= best:
            break
        gain = probability * benefit_s - ttl_s
        if gain > best:
            best_s, best = ttl_s, gain
    return best_s
