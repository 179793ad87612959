"""The guard: how far prediction is trusted, and how much trusting it has cost against LRU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvflow.engine.shadow import ShadowLRU
from kvflow.policy import ServingCosts

SAMPLE = 4
"""One digest in so many is followed in the shadow cache."""
_LEAST_SHARE = 1 / 16
_TRIAL_SHARE = 1 / 4
_MAX_REST = 64


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
        self._balance_s = 0.0
        self._rest = 1
        self._missed_tokens = 0
        self._resting_tokens = 0

    @property
    def active(self) -> bool:
        """Whether prediction has a say at all."""
        return self.share > 0

    def observe(
        self, digests: Sequence[int], *, device_hit: int, host_hit: int, device_tokens: int, host_tokens: int
    ) -> None:
        """Compare one prompt's hits with those LRU would have had.

        Args:
            digests: of the prompt's full units.
            device_hit: its tokens found on the device.
            host_hit: its tokens behind those found on host or storage.
            device_tokens: tokens the device cache can hold now, apart from what running requests have generated.
            host_tokens: the same for the host tier; 0 without one.
        """
        unit = self._unit_tokens
        actual_s = shadow_s = 0.0
        sampled = []
        for index, digest in enumerate(digests):
            if digest % SAMPLE:
                continue
            sampled.append(digest)
            end = (index + 1) * unit
            is_cached = end <= device_hit + host_hit
            was_cached = digest in self._device or digest in self._host
            actual = 0.0 if end <= device_hit else self._miss_s(end, backed_up=is_cached)
            shadow = 0.0 if digest in self._device else self._miss_s(end, backed_up=digest in self._host)
            if is_cached and not was_cached:
                self.regret.gained_tokens += unit * SAMPLE
            elif was_cached and not is_cached:
                self.regret.lost_tokens += unit * SAMPLE
            actual_s += actual
            if was_cached or is_cached:  # what is new to both is no regret
                shadow_s += shadow
            else:
                actual_s -= actual
            self._missed_tokens += (end > device_hit) * unit * SAMPLE
        self._touch(sampled, device_tokens, host_tokens)
        self._judge(actual_s * SAMPLE, shadow_s * SAMPLE, device_tokens, has_host=host_tokens > 0)

    def cached(self, digests: Sequence[int], *, device_tokens: int, host_tokens: int) -> None:
        """Take note of what a finished request leaves in the cache."""
        self._touch([digest for digest in digests if not digest % SAMPLE], device_tokens, host_tokens)

    def clear(self) -> None:
        """The cache has been flushed."""
        self._device.clear()
        self._host.clear()

    def _touch(self, sampled: Sequence[int], device_tokens: int, host_tokens: int) -> None:
        scale = self._unit_tokens * SAMPLE
        self._device.touch(sampled, max(0, device_tokens) // scale)
        if host_tokens:
            self._host.touch(sampled, host_tokens // scale)

    def _miss_s(self, end: int, *, backed_up: bool) -> float:
        return self._unit_tokens * self._costs.saved_token_s(end, backed_up=backed_up)

    def _judge(self, actual_s: float, shadow_s: float, device_tokens: int, *, has_host: bool) -> None:
        difference_s = actual_s - shadow_s
        if difference_s > 0:
            self.regret.lost_s += difference_s
        else:
            self.regret.gained_s -= difference_s
        if not self.active:
            self._rest_on(device_tokens)
            return
        whole_s = device_tokens * self._costs.saved_token_s(0, backed_up=has_host)
        budget_s = self._settings.budget * whole_s
        self._balance_s += difference_s - self._settings.tolerance * shadow_s
        if self._balance_s > budget_s:
            self._balance_s = 0.0
            self.regret.mistakes += 1
            self.share /= 2
            if self.share < _LEAST_SHARE:
                self._fall_back()
        elif self._balance_s < -budget_s:
            self._balance_s = 0.0
            self.share = min(1.0, 2 * self.share)
            if self.share == 1.0:
                self._rest = max(1, self._rest // 2)

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
