"""Where a simulated server's time goes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ServerTimes:
    """Where the server's time went, and what requests waited for.

    Attributes:
        recompute_s: prefill time of tokens that had been cached before.
        queue_s: waiting time of every request until it was admitted.
        ttft_s: time of every request from arrival to first token.
    """

    prefill_s: float = 0.0
    decode_s: float = 0.0
    recompute_s: float = 0.0
    retractions: int = 0
    rejected: int = 0
    queue_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
