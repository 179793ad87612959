"""The ``kvflow_*`` series in SGLang's /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvflow.engine import Counters, Programs, Regret
from kvflow.patches.guard import degraded
from kvflow.patches.trust import Trust

COUNTERS = (
    ("requests", "Prompts prefilled."),
    ("prompt_tokens", "Tokens of prefilled prompts."),
    ("hit_tokens", "Prompt tokens found in the cache, by tier."),
    ("computed_tokens", "Prompt tokens that no tier had: computed, or put in by reuse."),
    ("recomputed_tokens", "Prompt tokens computed again because they had been evicted."),
    ("evicted_tokens", "Tokens that left a tier, by order class."),
    ("dropped_copy_tokens", "Tokens of host copies dropped because the device holds them."),
    ("load_backs", "Host-to-device loads."),
    ("load_back_tokens", "Tokens loaded from host to device."),
    ("load_back_seconds", "Seconds host-to-device loads took."),
    ("stall_seconds", "Seconds forward passes waited for loads."),
    ("background_loads", "Loads while the request that needed them waited and others ran."),
    ("background_load_tokens", "Tokens of these loads."),
    ("background_used_tokens", "Of those, tokens that a request used."),
    ("background_wasted_tokens", "Of those, tokens that left the device again unused."),
    ("prefetches", "Loads ahead of use."),
    ("prefetched_tokens", "Tokens loaded ahead of use."),
    ("prefetch_used_tokens", "Of those, tokens that were there when a request came."),
    ("prefetch_late_tokens", "Of those, tokens that a request had to wait for."),
    ("prefetch_wasted_tokens", "Of those, tokens that left the device again unused."),
    ("fetches", "Contexts asked of storage ahead of use."),
    ("fetched_tokens", "Tokens that came from storage ahead of use."),
    ("fetch_used_tokens", "Of those, tokens that a request used."),
    ("fetch_wasted_tokens", "Of those, tokens that left the host again unused."),
    ("backups", "Contexts copied to the host because they face a long wait."),
    ("passed_over", "Times a request was passed over because its context was still being loaded."),
    ("regret_lost_tokens", "Tokens computed that LRU would have had in the cache."),
    ("regret_gained_tokens", "Tokens in the cache that LRU would have had to compute."),
    ("regret_lost_seconds", "Seconds lost against LRU, loads included."),
    ("regret_gained_seconds", "Seconds gained against LRU, loads included."),
    ("guard_mistakes", "Times predictions were trusted less."),
    ("guard_fallbacks", "Times the order was switched to LRU."),
    ("guard_recoveries", "Times it was switched back."),
)
GAUGES = (
    ("guard_share", "Share of the cached tokens, oldest first, among which predictions choose."),
    ("degraded", "Errors that kvflow caught in this scheduler, and went on without a part of itself."),
    ("programs", "Programs that have not ended, as far as known."),
    ("held_requests", "Requests that wait for their program's turn."),
)


class Exporter:
    """Publishes counters of one rank, and the state of its guard.

    prometheus_client chooses its multi-process mode when first imported, so it is imported here, in the scheduler
    process, after SGLang has set the directory.

    Args:
        labels: SGLang's rank labels.
    """

    def __init__(self, labels: dict[str, Any]) -> None:
        from prometheus_client import Counter, Gauge

        names = [*labels, "tier", "eviction_class"]
        self._labels = labels
        self._series = {name: Counter(f"kvflow_{name}", text, labelnames=names) for name, text in COUNTERS}
        self._gauges = {
            name: Gauge(f"kvflow_{name}", text, labelnames=list(labels), multiprocess_mode="mostrecent").labels(
                **labels
            )
            for name, text in GAUGES
        }
        self._states: dict[str, float] = {}
        self._published: dict[tuple[str, str, str], float] = {}

    def publish(self, counters: Counters, trust: Trust, programs: Programs | None) -> None:
        """Add what has happened since the last call."""
        states = {"guard_share": trust.share, "degraded": degraded.total()}
        if programs is not None:
            states |= {"programs": programs.known, "held_requests": programs.held}
        for name, value in states.items():
            if self._states.get(name) != value:
                self._gauges[name].set(value)
        self._states = states
        for name, tier, cls, value in (*_flatten(counters), *_flatten_regret(trust.regret)):
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
    yield "dropped_copy_tokens", "", "", counters.dropped_copy_tokens
    yield "load_backs", "", "", counters.load_backs
    yield "load_back_tokens", "", "", counters.load_back_tokens
    yield "load_back_seconds", "", "", counters.load_back_s
    yield "stall_seconds", "", "", counters.stall_s
    yield "background_loads", "", "", counters.background_loads
    yield "background_load_tokens", "", "", counters.background_load_tokens
    yield "background_used_tokens", "", "", counters.background_used_tokens
    yield "background_wasted_tokens", "", "", counters.background_wasted_tokens
    yield "prefetches", "", "", counters.prefetches
    yield "prefetched_tokens", "", "", counters.prefetched_tokens
    yield "prefetch_used_tokens", "", "", counters.prefetch_used_tokens
    yield "prefetch_late_tokens", "", "", counters.prefetch_late_tokens
    yield "prefetch_wasted_tokens", "", "", counters.prefetch_wasted_tokens
    yield "fetches", "", "", counters.fetches
    yield "fetched_tokens", "", "", counters.fetched_tokens
    yield "fetch_used_tokens", "", "", counters.fetch_used_tokens
    yield "fetch_wasted_tokens", "", "", counters.fetch_wasted_tokens
    yield "backups", "", "", counters.backups
    yield "passed_over", "", "", counters.passed_over


def _flatten_regret(regret: Regret) -> Iterator[tuple[str, str, str, float]]:
    yield "regret_lost_tokens", "", "", regret.lost_tokens
    yield "regret_gained_tokens", "", "", regret.gained_tokens
    yield "regret_lost_seconds", "", "", regret.lost_s
    yield "regret_gained_seconds", "", "", regret.gained_s
    yield "guard_mistakes", "", "", regret.mistakes
    yield "guard_fallbacks", "", "", regret.fallbacks
    yield "guard_recoveries", "", "", regret.recoveries
