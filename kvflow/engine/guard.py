"""The guard: how far prediction is trusted, and how much trusting it has cost against LRU."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from kvflow.engine.shadow import ShadowLRU
from kvflow.policy import ServingCosts

_SHADOW_UNITS = 4096
"""A cache of more units than this is followed by samples of its digests."""
_LEAST_SHARE = 1 / 16
_TRIAL_SHARE = 1 / 4
_MAX_REST = 64
_MOST_CREDIT = 8
"""Mistakes that earlier gains can make up for."""
_MAX_RUNNING = 16_384


@dataclass(frozen=True, slots=True)
class MemoryView:
    """What there is to cache in.

    Attributes:
        device_tokens: capacity of the device.
        host_tokens: capacity of the host tier; 0 without one.
        private_tokens: tokens on the device that running requests have not entered into the cache yet.
        chunk_tokens: how many tokens of a prompt are computed and entered at a time.
    """

    device_tokens: int
    host_tokens: int
    private_tokens: int
    chunk_tokens: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """How patient the guard is.

    Attributes:
        budget: what a mistake may cost before it counts, as a share of the cost of losing the whole device cache.
        tolerance: share of LRU's own cost by which being worse is not held against prediction. The shadow is an ideal
            LRU; a real one holds memory for running requests and evicts whole nodes.
    """

    budget: float = 0.02
    tolerance: float = 0.02


@dataclass(slots=True)
class Regret:
    """What prediction has cost and gained against the shadow LRU, since start.

    Attributes:
        lost_tokens: tokens computed that LRU would have had in the cache.
        gained_tokens: tokens in the cache that LRU would have had to compute.
        lost_s: the same in seconds, loads included.
        gained_s: likewise.
        mistakes: times the candidates were halved.
        fallbacks: times the order was switched to LRU.
        recoveries: times it was switched back.
    """

    lost_tokens: int = 0
    gained_tokens: int = 0
    lost_s: float = 0.0
    gained_s: float = 0.0
    mistakes: int = 0
    fallbacks: int = 0
    recoveries: int = 0


class Guard:
    """Bounds the damage of wrong predictions.

    Prediction may choose only among the oldest leaves that make up a share λ of what could be evicted. λ starts at 1,
    halves at a mistake and doubles when prediction has earned as much as a mistake costs; below 1/16 the order is LRU.
    After a rest, whose length doubles with every failure, prediction is tried again with λ = 1/4.

    Source: LARU (arXiv 2509.20979), where every evicted item that returns within a phase is a mistake and items have
    one size and cost. Here a mistake is a net loss of seconds against a shadow LRU: leaves differ in size and a miss
    on the device may cost a load or a computation, which differ by more than an order of magnitude.

    Args:
        costs: what hits save.
        unit_tokens: tokens per digest.
    """

    def __init__(self, costs: ServingCosts, unit_tokens: int, settings: GuardSettings | None = None) -> None:
        self.share = 1.0
        self.regret = Regret()
        self._costs = costs
        self._unit_tokens = unit_tokens
        self._settings = settings or GuardSettings()
        self._device = ShadowLRU()
        self._host = ShadowLRU()
        self._sample = 0
        self._running: dict[Hashable, list[int]] = {}
        self._balance_s = 0.0
        self._rest = 1
        self._missed_tokens = 0
        self._resting_tokens = 0

    @property
    def active(self) -> bool:
        """Whether prediction has a say at all."""
        return self.share > 0

    @property
    def running(self) -> int:
        """Requests that have started and not ended."""
        return len(self._running)

    def started(
        self, key: Hashable, digests: Sequence[int], *, device_hit: int, host_hit: int, memory: MemoryView
    ) -> None:
        """Compare one prompt's hits with those LRU would have had, as its request starts to run.

        Args:
            key: names the request until it has :meth:`ended`.
            digests: of the prompt's full units.
            device_hit: its tokens found on the device.
            host_hit: its tokens behind those found on host or storage.
            memory: what there is.
        """
        unit = self._unit_tokens
        if not self._sample:
            self._sample = max(1, memory.device_tokens // (unit * _SHADOW_UNITS))
        actual_s = shadow_s = 0.0
        sampled = []
        for index, digest in enumerate(digests):
            if digest % self._sample:
                continue
            sampled.append(digest)
            end = (index + 1) * unit
            is_cached = end <= device_hit + host_hit
            was_cached = digest in self._device or digest in self._host
            self._missed_tokens += (end > device_hit) * unit * self._sample
            if not is_cached and not was_cached:
                continue  # new to both
            if is_cached and not was_cached:
                self.regret.gained_tokens += unit * self._sample
            elif was_cached and not is_cached:
                self.regret.lost_tokens += unit * self._sample
            if end > device_hit:
                actual_s += self._miss_s(end, backed_up=is_cached)
            if digest not in self._device:
                shadow_s += self._miss_s(end, backed_up=was_cached)
        if len(self._running) >= _MAX_RUNNING:
            self.ended(next(iter(self._running)), (), memory=memory)
        self._running[key] = sampled
        device, host = self._capacities(memory)
        group = max(1, memory.chunk_tokens // (unit * self._sample))
        self._device.hold(sampled, device, group)
        if host:
            self._host.hold(sampled, host, group)
        self._judge(actual_s * self._sample, shadow_s * self._sample, memory)

    def ended(self, key: Hashable, digests: Sequence[int], *, memory: MemoryView) -> None:
        """A request has ended, or was retracted or given up; ``digests`` are those of all it leaves in the cache."""
        held = self._running.pop(key, None)
        if held is None:
            return
        added = [digest for digest in digests if not digest % self._sample][len(held) :]
        device, host = self._capacities(memory)
        self._device.release(held, added, device)
        if host:
            self._host.release(held, added, host)

    def restart(self) -> None:
        """Another order is in use: trust it. What LRU would have in the cache does not depend on the order."""
        self.share = 1.0
        self._balance_s = 0.0
        self._rest = 1

    def clear(self) -> None:
        """The cache has been flushed."""
        self._device.clear()
        self._host.clear()

    def _capacities(self, memory: MemoryView) -> tuple[int, int]:
        scale = self._unit_tokens * self._sample
        return max(0, memory.device_tokens - memory.private_tokens) // scale, memory.host_tokens // scale

    def _miss_s(self, end: int, *, backed_up: bool) -> float:
        return self._unit_tokens * self._costs.saved_token_s(end, backed_up=backed_up)

    def _judge(self, actual_s: float, shadow_s: float, memory: MemoryView) -> None:
        difference_s = actual_s - shadow_s
        if difference_s > 0:
            self.regret.lost_s += difference_s
        else:
            self.regret.gained_s -= difference_s
        if not self.active:
            self._rest_on(memory.device_tokens)
            return
        whole_s = memory.device_tokens * self._costs.saved_token_s(0, backed_up=memory.host_tokens > 0)
        budget_s = self._settings.budget * whole_s
        self._balance_s += difference_s - self._settings.tolerance * shadow_s
        if self._balance_s > budget_s:
            self._balance_s = 0.0
            self.regret.mistakes += 1
            self.share /= 2
            if self.share < _LEAST_SHARE:
                self._fall_back()
        elif self._balance_s < -budget_s and self.share < 1:
            self._balance_s = 0.0
            self.share = min(1.0, 2 * self.share)
            if self.share == 1.0:
                self._rest = 1
        self._balance_s = max(self._balance_s, -_MOST_CREDIT * budget_s)

    def _fall_back(self) -> None:
        self.share = 0.0
        self.regret.fallbacks += 1
        self._resting_tokens = self._missed_tokens

    def _rest_on(self, device_tokens: int) -> None:
        if self._missed_tokens - self._resting_tokens < self._rest * device_tokens:
            return
        self._rest = min(_MAX_REST, 2 * self._rest)
        self.share = _TRIAL_SHARE
        self._balance_s = 0.0
        self.regret.recoveries += 1
