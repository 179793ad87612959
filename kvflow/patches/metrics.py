"""The ``kvflow_*`` series in SGLang's /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvflow.engine import Counters


class Exporter:
    """Publishes counters of one rank.

    prometheus_client chooses its multi-process mode when first imported, so it is imported here, in the scheduler
    process, after SGLang has set the directory.

    Args:
        labels: SGLang's rank labels.
    """

    def __init__(self, labels: dict[str, Any]) -> None:
        from prometheus_client import Counter

        names = [*labels, "tier", "eviction_class"]
        self._labels = labels
        self._series = {
            name: Counter(f"kvflow_{name}", text, labelnames=names)
            for name, text in (
                ("requests", "Prompts prefilled."),
                ("prompt_tokens", "Tokens of prefilled prompts."),
                ("hit_tokens", "Prompt tokens found in the cache, by tier."),
                ("computed_tokens", "Prompt tokens computed."),
                ("recomputed_tokens", "Prompt tokens computed again because they had been evicted."),
                ("evicted_tokens", "Tokens that left a tier, by order class."),
                ("load_backs", "Host-to-device loads."),
                ("load_back_tokens", "Tokens loaded from host to device."),
                ("load_back_seconds", "Seconds host-to-device loads took."),
                ("stall_seconds", "Seconds forward passes waited for loads."),
            )
        }
        self._published: dict[tuple[str, str, str], float] = {}

    def publish(self, counters: Counters) -> None:
        """Add what has happened since the last call."""
        for name, tier, cls, value in _flatten(counters):
            key = (name, tier, cls)
            delta = value - self._published.get(key, 0)
            if delta:
                self._series[name].labels(**self._labels, tier=tier, eviction_class=cls).inc(delta)
                self._published[key] = value

    def restart(self) -> None:
        """The counters were set to zero; series go on from where they are."""
        self._published.clear()


def _flatten(counters: Counters) -> Iterator[tuple[str, str, str, float]]:
    yield "requests", "", "", counters.requests
    yield "prompt_tokens", "", "", counters.prompt_tokens
    for tier, tokens in counters.hit_tokens.items():
        yield "hit_tokens", tier, "", tokens
    yield "computed_tokens", "", "", counters.computed_tokens
    yield "recomputed_tokens", "", "", counters.recomputed_tokens
    for place, tokens in counters.evicted_tokens.items():
        tier, cls = place.split("/")
        yield "evicted_tokens", tier, cls, tokens
    yield "load_backs", "", "", counters.load_backs
    yield "load_back_tokens", "", "", counters.load_back_tokens
    yield "load_back_seconds", "", "", counters.load_back_s
    yield "stall_seconds", "", "", counters.stall_s
