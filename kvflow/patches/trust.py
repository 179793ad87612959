"""How far predictions are trusted here: the engine's guard, fed with what SGLang's requests find and leave."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kvflow import config
from kvflow.engine import FREE_CHOICE, NO_CHOICE, Choice, Coordinator, Guard, GuardSettings, Regret, Tier
from kvflow.engine.guard import MemoryView

logger = logging.getLogger(__name__)


class Trust:
    """Guards whichever order is in use, if it is one that is to be guarded.

    Decides by what every rank sees alike.

    Args:
        coordinator: its order is guarded, and what its requests save measures the damage.
        unit_tokens: tokens per digest.

    Attributes:
        regret: what predictions have cost and gained against LRU since start or the last reset, whichever the order.
    """

    def __init__(self, settings: config.Guard, coordinator: Coordinator, unit_tokens: int) -> None:
        self._settings = settings
        self._coordinator = coordinator
        self._unit_tokens = unit_tokens
        self._guard: Guard | None = None
        self._given_up = False
        self.regret = Regret()
        self.restart()

    @property
    def share(self) -> float:
        """Share of the cached tokens, oldest first, among which predictions choose."""
        return self._guard.share if self._guard is not None else 1.0

    def choice(self, tier: Tier) -> Choice:
        """Among which leaves of a tier predictions choose."""
        if self._guard is None:
            return FREE_CHOICE
        return NO_CHOICE if self._given_up else self._guard.choice(tier)

    @property
    def guarded(self) -> bool:
        """Whether the order in use is guarded."""
        return self._guard is not None

    @property
    def active(self) -> bool:
        """Whether predictions have a say at all."""
        return self._guard is None or (self._guard.active and not self._given_up)

    def give_up(self) -> None:
        """What predictions cost is not followed any more: a guarded order has no say from now on."""
        self._given_up = True

    def restart(self) -> None:
        """Trust the order that is in use now, whatever another one has done."""
        self._policy = self._coordinator.policy
        if not self._settings.enabled or not self._coordinator.guarded:
            self._guard = None
        elif self._guard is None:
            settings = GuardSettings(**self._settings.model_dump(exclude={"enabled"}))
            self._guard = Guard(self._coordinator.costs, self._unit_tokens, settings)
            self._guard.regret = self.regret
        else:
            self._guard.restart()

    def looked_up(self, rid: str, digests: Sequence[int]) -> None:
        """A request that waits has looked for its prompt."""
        if self._guard is not None:
            self._guard.looked_up(rid, digests)

    def started(
        self, rid: str, digests: Sequence[int], hits: Mapping[Tier, int], memory: MemoryView, rest_tokens: int = 0
    ) -> None:
        """A request has been given its memory; ``hits`` are the tokens it found per tier."""
        if self._policy != self._coordinator.policy:
            self.restart()
        guard = self._guard
        if guard is None:
            return
        trusted = guard.active
        elsewhere = hits[Tier.HOST] + hits[Tier.STORAGE]
        guard.started(
            rid,
            digests,
            device_hit=hits[Tier.DEVICE],
            host_hit=elsewhere,
            memory=memory,
            rest_tokens=rest_tokens,
        )
        if guard.active != trusted:
            self._tell(guard)

    def ended(self, rid: str, digests: Sequence[int], memory: MemoryView, rest_tokens: int = 0) -> None:
        """A request has given its memory back; ``digests`` are those of what it leaves in the cache."""
        if self._guard is not None:
            self._guard.ended(rid, digests, memory=memory, rest_tokens=rest_tokens)

    def clear(self) -> None:
        """The cache has been flushed."""
        if self._guard is not None:
            self._guard.clear()

    def reset_regret(self) -> None:
        """Count from zero."""
        self.regret = Regret()
        if self._guard is not None:
            self._guard.regret = self.regret

    def as_dict(self) -> dict[str, Any]:
        """State and counters, for reports."""
        return {
            "guarded": self.guarded,
            "active": self.active,
            "share": self.share,
            "host_window_tokens": round(self._guard.host_window_tokens) if self._guard is not None else None,
            "running": self._guard.running if self._guard is not None else 0,
            **asdict(self.regret),
        }

    def _tell(self, guard: Guard) -> None:
        regret = guard.regret
        if guard.active:
            logger.info(
                "kvflow: %s is tried again, on the oldest %.0f %% of the cache", self._policy, 100 * guard.share
            )
            return
        logger.warning(
            "kvflow: %s does worse than LRU (lost %.2f s, gained %.2f s so far): evicting by recency for a while",
            self._policy,
            regret.lost_s,
            regret.gained_s,
        )
