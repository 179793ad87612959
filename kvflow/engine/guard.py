"""The guard: how far prediction is trusted, and how much trusting it has cost against LRU."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from kvflow.engine.accounting import Tier
from kvflow.engine.choice import Choice
from kvflow.engine.digests import remember
from kvflow.engine.shadow import ShadowLRU
from kvflow.policy import ServingCosts

_SHADOW_UNITS = 4096
"""A cache of more units than this is followed by samples of its digests."""
_SHARES = ((0.25, 1.0), (0.5, 0.5), (0.75, 0.25), (1.0, 0.125))
"""(spent share of what may be lost, share λ of the leaves among which prediction chooses)."""
_RECOVERED = 0.75
_MOST_CREDIT = 2
"""Earlier gains that can make up for losses, as a multiple of what may be lost."""
_MEMORY_CAPACITIES = 256
"""Losses and gains fade as the cache is filled anew so many times."""
_RATE_TOKENS = 1000
"""Of a prompt whose computing tells by how much costs have changed."""
_MAX_RUNNING = 16_384
_MAX_SEEN = 16 * _SHADOW_UNITS
"""Digests remembered to tell what LRU has lost from what is new."""
_MAX_WAITING = 256
"""Prompts of which the sample is remembered while their requests wait; SGLang looks for 128 at most in a pass."""
_PROMPT_WEIGHT = 0.05
_HOST_ALLOWANCE = 2
"""Prompts on the host for each one of the allowance: what is kept there and what leaves for it share the window."""


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
    """What wrong predictions may cost.

    Attributes:
        ratio: share of LRU's own cost that may be lost against it; of the tokens it computes again, too, as far as the
            host tier's order goes.
        allowance_prompts: on top of it, the cost of computing so many prompts: in a small or young cache a single
            eviction is a large share.
    """

    ratio: float = 0.02
    allowance_prompts: float = 1.0


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

    Prediction may choose only among the oldest leaves that make up a share λ of what could be evicted. What it has
    lost against a shadow LRU, gains set off, may not exceed a share of what LRU itself has cost. λ is 1 while less than
    a quarter of that is spent, halves with every further quarter, and once all is spent the order is LRU. LRU's own
    cost goes on growing and with it what may be lost, so prediction gets another chance after a while, the later the
    more it has lost.

    What leaves the host tier has to be computed again, at many times the cost of a load, and few mistakes there are
    worth more than all that LRU computes again. So on the host prediction chooses only among the oldest leaves of
    :attr:`host_window_tokens`, what may still be lost, counted in tokens. What is kept there longer than LRU would have
    kept it ends up in the window and fills it, so that no more than that is ever kept at the expense of what LRU has.
    That a workflow has ended is no prediction: see :class:`kvflow.engine.Choice`.

    Source: LARU (arXiv 2509.20979) for the oldest leaves and the halving. There every evicted item that returns within
    a phase is a mistake, and items have one size and cost. Leaves differ in size, and a miss on the device may cost a
    load or a computation, which differ by more than an order of magnitude; so mistakes are weighed in seconds, and
    phases are replaced by the running comparison.

    Args:
        costs: what hits save.
        unit_tokens: tokens per digest.

    Attributes:
        share: λ on the device.
        host_window_tokens: tokens of the host's oldest leaves among which prediction chooses.
        regret: what it has cost and gained.
    """

    def __init__(self, costs: ServingCosts, unit_tokens: int, settings: GuardSettings | None = None) -> None:
        self.share = 1.0
        self.host_window_tokens = 0.0
        self.regret = Regret()
        self._costs = costs
        self._unit_tokens = unit_tokens
        self._settings = settings or GuardSettings()
        self._device = ShadowLRU()
        self._host = ShadowLRU()
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._sample = 0
        self._prompt_s = self._rate_s = 0.0
        self._running: dict[Hashable, tuple[list[int], bool, int]] = {}
        self._looked_up: dict[Hashable, Sequence[int]] = {}
        self._samples: dict[int, list[int]] = {}
        self._balance_s = self._lru_s = 0.0
        self._balance_tokens = self._lru_tokens = 0.0
        self._prompt_tokens = 0.0

    @property
    def active(self) -> bool:
        """Whether prediction has a say at all."""
        return self.share > 0

    def choice(self, tier: Tier) -> Choice:
        """Among which leaves of a tier prediction may choose."""
        return Choice(self.share, self.host_window_tokens if tier is Tier.HOST else math.inf)

    @property
    def running(self) -> int:
        """Requests that have started and not ended."""
        return len(self._running)

    def looked_up(self, key: Hashable, digests: Sequence[int]) -> None:
        """A request that still waits has looked for its prompt. SGLang counts that as a use, and so does its LRU.

        Args:
            key: names the request.
            digests: of the prompt's full units.

        Cost: O(1) now, and O(log units) and that of what is found when the next request starts or ends; O(units) for
        the first look of a prompt.
        """
        self._looked_up.pop(key, None)  # whoever looks again has been the last to look
        self._looked_up[key] = digests

    def started(
        self,
        key: Hashable,
        digests: Sequence[int],
        *,
        device_hit: int,
        host_hit: int,
        memory: MemoryView,
        rest_tokens: int = 0,
    ) -> None:
        """Compare one prompt's hits with those LRU would have had, as its request starts to run.

        Args:
            key: names the request until it has :meth:`ended`.
            digests: of the prompt's full units.
            device_hit: its tokens found on the device.
            host_hit: its tokens behind those found on host or storage.
            memory: what there is.
            rest_tokens: its tokens behind the last full unit.
        """
        unit = self._unit_tokens
        self._keep_up()
        self._looked_up.pop(key, None)
        if not self._sample:
            self._sample = max(1, memory.device_tokens // (unit * _SHADOW_UNITS))
        sampled, held = self._sampled(digests)
        actual_s, shadow_s = self._compare(sampled, held, device_hit, device_hit + host_hit)
        if len(self._running) >= _MAX_RUNNING:
            self.ended(next(iter(self._running)), (), memory=memory)
        self._running[key] = held, bool(digests) and not digests[-1] % self._sample, rest_tokens
        prompt_s = self._costs.compute_s(0, len(digests) * unit)
        weight = _PROMPT_WEIGHT if self._prompt_s else 1.0
        self._prompt_s += weight * (prompt_s - self._prompt_s)
        self._prompt_tokens += weight * (len(digests) * unit - self._prompt_tokens)
        device, host = self._capacities(memory)
        group = max(1, memory.chunk_tokens // (unit * self._sample))
        rest = rest_tokens / (unit * self._sample)
        # requests of one batch look for their prompts when the one before has made room on the device; but the host
        # makes room when they have been computed
        self._device.hold(held, device, group, rest)
        self._renew()
        if host:
            self._host.hold(held, host, group, rest)
        remember(self._seen, held, _MAX_SEEN)
        missed_tokens = max(0, len(digests) * unit - device_hit)
        self._judge(actual_s * self._sample, shadow_s * self._sample, missed_tokens, memory)

    def _keep_up(self) -> None:
        """Have what is remembered in seconds cost what it does now, if costs have been learned anew."""
        rate_s = self._costs.compute_s(0, _RATE_TOKENS)
        if rate_s != self._rate_s > 0:
            scale = rate_s / self._rate_s
            self._balance_s, self._lru_s, self._prompt_s = (
                scale * seconds for seconds in (self._balance_s, self._lru_s, self._prompt_s)
            )
        self._rate_s = rate_s

    def _renew(self) -> None:
        """Touch what requests that wait have found."""
        for digests in self._looked_up.values():
            sampled = self._sample_of(digests)
            self._device.look_up(sampled)
            self._host.look_up(sampled)
        self._looked_up.clear()

    def _sample_of(self, digests: Sequence[int]) -> Sequence[int]:
        """The sample of a prompt that is looked for again and again. Its last digest stands for all of them."""
        if self._sample == 1 or not digests:
            return digests
        known = self._samples.get(digests[-1])
        if known is None:
            known = self._samples[digests[-1]] = self._sampled(digests)[1]
            if len(self._samples) > _MAX_WAITING:
                del self._samples[next(iter(self._samples))]
        return known

    def _compare(
        self, sampled: Sequence[int], held: Sequence[int], device_end: int, cached_end: int
    ) -> tuple[float, float]:
        """Seconds the misses of a prompt cost, and would have cost LRU; what neither could have had is left out."""
        regret, unit = self.regret, self._unit_tokens
        weight = unit * self._sample
        actual_s = shadow_s = 0.0
        on_device, on_host = self._device.prefix(held), self._host.prefix(held)  # under LRU
        for place in range(min(bisect_left(sampled, device_end // unit), on_device), len(held)):
            end = (sampled[place] + 1) * unit
            is_cached, was_cached = end <= cached_end, place < on_device or place < on_host
            if not is_cached and (held[place] not in self._seen or self._device.holds(held[place])):
                continue  # new, or a request that runs is computing it, so no order has lost it
            self._lru_tokens += weight * (not was_cached)
            self._balance_tokens += weight * (was_cached - is_cached)
            regret.gained_tokens += weight * (is_cached and not was_cached)
            regret.lost_tokens += weight * (was_cached and not is_cached)
            miss_s = self._miss_s(end, backed_up=is_cached)
            if end > device_end:
                actual_s += miss_s
            if place >= on_device:
                shadow_s += miss_s if was_cached == is_cached else self._miss_s(end, backed_up=was_cached)
        return actual_s, shadow_s

    def ended(self, key: Hashable, digests: Sequence[int], *, memory: MemoryView, rest_tokens: int = 0) -> None:
        """A request has ended, or was retracted or given up.

        Args:
            key: which one.
            digests: of the full units of all it leaves in the cache; its prompt's may be left out if it adds nothing.
            memory: what there is.
            rest_tokens: what it leaves behind the last full unit.
        """
        started = self._running.pop(key, None)
        if started is None:
            return
        self._renew()
        held, tip_sampled, held_rest_tokens = started
        added = self._sampled(digests)[1][len(held) :]
        if digests:
            tip_sampled = not digests[-1] % self._sample
        else:
            rest_tokens = held_rest_tokens
        unit, (device, host) = self._unit_tokens, self._capacities(memory)
        held_rest, rest = held_rest_tokens / (unit * self._sample), tip_sampled * rest_tokens / unit
        self._device.release(held, added, device, held_rest, rest)
        if host:
            self._host.release(held, added, host, held_rest, rest)
        remember(self._seen, added, _MAX_SEEN)

    def restart(self) -> None:
        """Another order is in use: trust it. What LRU would have in the cache does not depend on the order."""
        self.share = 1.0
        self._balance_s = self._balance_tokens = 0.0

    def clear(self) -> None:
        """The cache has been flushed."""
        self._device.clear()
        self._host.clear()
        self._seen.clear()

    def _sampled(self, digests: Sequence[int]) -> tuple[Sequence[int], list[int]]:
        """Of a prompt's digests those that are in the sample: their places, and they themselves."""
        if self._sample == 1:
            return range(len(digests)), list(digests)
        places = [place for place, digest in enumerate(digests) if not digest % self._sample]
        return places, [digests[place] for place in places]

    def _capacities(self, memory: MemoryView) -> tuple[int, int]:
        scale = self._unit_tokens * self._sample
        return max(0, memory.device_tokens - memory.private_tokens) // scale, memory.host_tokens // scale

    def _miss_s(self, end: int, *, backed_up: bool) -> float:
        return self._unit_tokens * self._costs.saved_token_s(end, backed_up=backed_up)

    def _judge(self, actual_s: float, shadow_s: float, missed_tokens: int, memory: MemoryView) -> None:
        difference_s = actual_s - shadow_s
        if difference_s > 0:
            self.regret.lost_s += difference_s
        else:
            self.regret.gained_s -= difference_s
        fade = math.exp(-missed_tokens / (_MEMORY_CAPACITIES * max(1, memory.device_tokens)))
        self._lru_s = self._lru_s * fade + shadow_s
        self._lru_tokens *= fade
        self._balance_tokens *= fade
        allowance_tokens = _HOST_ALLOWANCE * self._settings.allowance_prompts * self._prompt_tokens
        allowed_tokens = self._settings.ratio * self._lru_tokens + allowance_tokens
        self.host_window_tokens = max(0.0, allowed_tokens - self._balance_tokens)
        limit_s = self._settings.ratio * self._lru_s + self._settings.allowance_prompts * self._prompt_s
        self._balance_s = max(self._balance_s * fade + difference_s, -_MOST_CREDIT * limit_s)
        spent = self._balance_s / limit_s if limit_s > 0 else 0.0
        share = next((share for bound, share in _SHARES if spent < bound), 0.0)
        if share > 0 and not self.active and spent >= _RECOVERED:
            share = 0.0
        self.regret.mistakes += share < self.share
        self.regret.fallbacks += share == 0 < self.share
        self.regret.recoveries += self.share == 0 < share
        self.share = share
