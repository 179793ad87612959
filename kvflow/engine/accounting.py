"""Counting where time and tokens go. Nothing here takes part in a decision."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvflow.engine.digests import remember
from kvflow.policy import EvictionClass


class Tier(StrEnum):
    """Where cached KV lives."""

    DEVICE = "device"
    HOST = "host"
    STORAGE = "storage"


_PLACES = {(tier, cls): f"{tier}/{cls.name.lower()}" for tier in (Tier.DEVICE, Tier.HOST) for cls in EvictionClass}


def _by_tier_and_class() -> dict[str, int]:
    return dict.fromkeys(_PLACES.values(), 0)


@dataclass(slots=True)
class Counters:
    """Totals since start or the last reset.

    Attributes:
        requests: prompts prefilled.
        prompt_tokens: tokens of these prompts.
        hit_tokens: prompt tokens found in the cache, by tier.
        computed_tokens: prompt tokens the model had to compute.
        recomputed_tokens: those of them that had been cached before and were evicted.
        evicted_tokens: tokens that left a tier, by ``tier/class``.
        dropped_copy_tokens: copies that a full host has dropped because the device holds them.
        load_backs: host-to-device loads, of any kind below or by a batch for itself, which uses them.
        load_back_tokens: tokens they moved.
        load_back_s: seconds the transfers took, where the platform can time them.
        stall_s: seconds the forward pass waited for them.
        background_loads: loads of them while the request that needed them waited in the queue and others ran.
        background_load_tokens: tokens these moved.
        background_used_tokens: those that a request used, whoever it was that they were loaded for.
        background_wasted_tokens: those that left the device again unused: whoever asked has given up.
        prefetches: loads of them that began before a request asked.
        prefetched_tokens: tokens these moved.
        prefetch_used_tokens: those that were there when a request came.
        prefetch_late_tokens: those that a request used, but came before.
        prefetch_wasted_tokens: those that left the device again unused.
        fetches: contexts asked of storage before a request came.
        fetched_tokens: tokens that came.
        fetch_used_tokens: those that a request used.
        fetch_wasted_tokens: those that left the host again unused.
        backups: contexts copied to the host because they face a long wait.
        passed_over: times a request was passed over because its context was still being loaded.
    """

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, Tier), 0))
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    evicted_tokens: dict[str, int] = field(default_factory=_by_tier_and_class)
    dropped_copy_tokens: int = 0
    load_backs: int = 0
    load_back_tokens: int = 0
    load_back_s: float = 0.0
    stall_s: float = 0.0
    background_loads: int = 0
    background_load_tokens: int = 0
    background_used_tokens: int = 0
    background_wasted_tokens: int = 0
    prefetches: int = 0
    prefetched_tokens: int = 0
    prefetch_used_tokens: int = 0
    prefetch_late_tokens: int = 0
    prefetch_wasted_tokens: int = 0
    fetches: int = 0
    fetched_tokens: int = 0
    fetch_used_tokens: int = 0
    fetch_wasted_tokens: int = 0
    backups: int = 0
    passed_over: int = 0


class Accounting:
    """Counts hits, recomputes, evictions and loads for one engine.

    Args:
        unit_tokens: how many tokens a digest stands for (see :mod:`kvflow.engine.digests`).
        ghost_pages: how many digests to remember for telling a recompute from a first computation.
    """

    def __init__(self, unit_tokens: int, ghost_pages: int = 262_144) -> None:
        self.counters = Counters()
        self.unit_tokens = unit_tokens
        self._ghost = GhostPages(unit_tokens, ghost_pages)

    def known(self, digests: Sequence[int], hit: int) -> int:
        """Tokens of a prompt behind its first ``hit`` ones that have been cached before."""
        return self._ghost.known(digests, hit)

    def prompt(self, tokens: int, digests: Sequence[int], hits: dict[Tier, int], recomputed: int | None = None) -> int:
        """Count one prefilled prompt; returns how many of its computed tokens had been cached before.

        Args:
            tokens: length of the prompt.
            digests: of its full units.
            hits: tokens found per tier; tiers left out had none.
            recomputed: what :meth:`known` said when its batch began; None to ask now. Prompts of one batch that share
                a new prefix all compute it, but none of them has lost it before.
        """
        counters = self.counters
        hit = sum(hits.values())
        counters.requests += 1
        counters.prompt_tokens += tokens
        for tier, count in hits.items():
            counters.hit_tokens[tier] += count
        counters.computed_tokens += tokens - hit
        if recomputed is None:
            recomputed = self._ghost.known(digests, hit)
        self._ghost.remember(digests)
        counters.recomputed_tokens += recomputed
        return recomputed

    def cached(self, digests: Sequence[int]) -> None:
        """Remember what is cached beyond the prompt: the answer, once it is complete."""
        self._ghost.remember(digests)

    def retracted(self, tokens: int) -> None:
        """Count tokens computed again because a running request had to give up its memory."""
        self.counters.computed_tokens += tokens
        self.counters.recomputed_tokens += tokens

    def evicted(self, tier: Tier, cls: EvictionClass, tokens: int) -> None:
        """Count tokens that left a tier."""
        self.counters.evicted_tokens[_PLACES[tier, cls]] += tokens

    def loaded_back(self, tokens: int) -> None:
        """Count one host-to-device load."""
        self.counters.load_backs += 1
        self.counters.load_back_tokens += tokens

    def reset(self) -> None:
        """Set all counters to zero."""
        self.counters = Counters()

    def forget_pages(self) -> None:
        """Forget what was cached before: what a flush dropped does not count as evicted."""
        self._ghost.clear()


class GhostPages:
    """Digests of what has been cached before, in bounded memory (about 100 bytes each)."""

    def __init__(self, unit_tokens: int, capacity: int) -> None:
        self._unit_tokens = unit_tokens
        self._capacity = capacity
        self._seen: OrderedDict[int, None] = OrderedDict()

    def known(self, digests: Sequence[int], computed_from: int) -> int:
        """Tokens from ``computed_from`` on that have been cached before."""
        return self._unit_tokens * sum(digest in self._seen for digest in digests[computed_from // self._unit_tokens :])

    def remember(self, digests: Sequence[int]) -> None:
        """Take note of what is cached now."""
        remember(self._seen, digests, self._capacity)

    def clear(self) -> None:
        """Forget every page."""
        self._seen.clear()
